"""Reads from a store that fails: nothing incomplete is written, no row is blamed, and errors say what failed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from state_engine.core.errors import StorageError
from state_engine.storage.delta.kernel import DeltaKernel
from state_engine.storage.stores.failures import keeping
from state_engine.storage.stores.files import open_location
from tests.faults.workloads import CUT, WORKLOADS, Site
from tests.support.store_proxy import Fault, Request, StoreProxy

pytestmark = [pytest.mark.spark_tasks, pytest.mark.usefixtures("quick_race")]
SCHEMA = pa.schema([("n", pa.int64())])
EVERY = 10
"""Versions from one log checkpoint to the next."""


def unreadable(part: str) -> Callable[[Request], Fault | None]:
    """Files with this in their path are refused to whoever reads them."""
    return lambda asked: Fault(status=403) if asked.method == "GET" and part in asked.path else None


def test_a_log_checkpoint_that_could_not_read_the_log_is_not_there(
    store: StoreProxy, uri: str, spark: SparkSession
) -> None:
    kernel = DeltaKernel(spark)
    kernel.create_table(uri, SCHEMA)
    for _ in range(1, EVERY):
        kernel.append(uri, [])
        kernel.join_hooks()
    store.fault = unreadable("_delta_log/00000000000000000003.json")
    kernel.append(uri, [])
    kernel.join_hooks()
    store.fault = lambda _: None
    names = open_location(f"{uri}/_delta_log").names()
    assert f"{EVERY:020d}.json" in names
    assert not [name for name in names if "checkpoint" in name]
    assert DeltaKernel(spark).facts(uri) is not None

    for _ in range(EVERY):
        kernel.append(uri, [])
        kernel.join_hooks()
    assert f"{2 * EVERY:020d}.checkpoint.parquet" in open_location(f"{uri}/_delta_log").names()


def test_a_row_is_no_dead_letter_because_its_state_could_not_be_read(
    store: StoreProxy, uri: str, tmp_path: Path, spark: SparkSession
) -> None:
    workload = WORKLOADS["sinks"]
    on_a_disk = Site(tmp_path / "disk", workload, spark, cut=CUT)
    on_a_disk.run()
    site = Site(tmp_path / "store", workload, spark, cut=CUT, store=uri)
    site.run(max_batches=1)
    store.fault = unreadable("/changelog/write_id")
    with pytest.raises(StorageError, match="cannot be read"):
        site.run()
    store.fault = lambda _: None
    site.run()
    assert site.seen() == on_a_disk.seen()


def test_what_java_could_not_read_is_the_stores_failure(
    store: StoreProxy, uri: str, spark: SparkSession
) -> None:
    kernel = DeltaKernel(spark)
    kernel.create_table(uri, SCHEMA)
    kernel.append(uri, [])
    kernel.join_hooks()
    another = DeltaKernel(spark)
    assert another.version(uri) == 1  # by names and a checksum
    store.fault = unreadable(".json")
    with (
        pytest.raises(StorageError, match="Status Code: 403") as caught,
        keeping("totals", "Nothing was done", at=uri),
    ):
        another.latest_transaction(uri, "unknown")
    failure = caught.value
    assert "job 'totals'" in str(failure)
    assert "the permission is denied" in str(failure)
    assert "Give the keys of the store the right to it" in str(failure)
