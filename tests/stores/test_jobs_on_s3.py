"""Jobs whose root and Delta tables are in a store give what they give on a disk, and their operations do, too."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.faults.workloads import WORKLOADS, Seen, Site
from tests.support.store_proxy import StoreProxy

CUT = 5


@pytest.fixture(scope="module")
def on_a_disk(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> dict[str, Seen]:
    """The results of each workload on a disk."""
    shown = {}
    for name, workload in WORKLOADS.items():
        site = Site(tmp_path_factory.mktemp(name), workload, spark, cut=CUT)
        site.run()
        shown[name] = site.seen()
    return shown


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_job_in_a_store_gives_what_it_gives_on_a_disk(
    workload: str, store: StoreProxy, uri: str, tmp_path: Path, spark: SparkSession, on_a_disk: dict[str, Seen]
) -> None:
    site = Site(tmp_path, WORKLOADS[workload], spark, cut=CUT, store=uri)
    site.run()
    assert site.seen() == on_a_disk[workload]
