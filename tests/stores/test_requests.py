"""How many requests a micro-batch makes of a store, and that a log checkpoint does not make later ones costly."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from state_engine.microbatch import coordinator
from state_engine.storage.delta.kernel import DeltaKernel
from state_engine.storage.java_gateway import background_thread
from state_engine.storage.stores.files import open_location
from tests.faults.workloads import CUT, LETTERS, WORKLOADS, Site
from tests.support.store_proxy import Request, StoreProxy

pytestmark = [pytest.mark.spark_tasks, pytest.mark.usefixtures("quick_race")]

THIRD, MORE = 54, 6
"""The most requests of the third micro-batch of a job with one operator and one sink, and how many more each later one
may make: it reads the two files of changes that the one before it wrote, and one more entry of the log of the sink."""
WRITTEN = re.compile(r"/(changelog|dead_letters|sinks/delta|sinks/delta_too)/[^_].*\.parquet")
"""Files of changes, refused rows and outputs."""


def test_requests_of_a_micro_batch_have_a_bound_and_a_slope(
    store: StoreProxy, uri: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "may_look_ahead", lambda job, batch: False)  # one after the other
    marks = []

    def mark(_: object) -> None:
        background_thread().submit(lambda: None).result()  # what follows a commit, too
        marks.append(len(store.seen))

    Site(tmp_path, WORKLOADS["keyed"], spark, cut=3, store=uri).run(on_progress=mark)
    # beside the second one, checksums of the tables that the first one made may still be written
    made = [after - before for before, after in pairwise(marks[1:])]
    assert len(made) > 3
    assert [number for i, number in enumerate(made) if number > THIRD + MORE * i] == [], made


def test_a_subtask_writes_its_files_side_by_side(
    store: StoreProxy, uri: str, tmp_path: Path, spark: SparkSession
) -> None:
    """Changes, two sinks and dead letters: none of them arrives before all are on their way."""
    site, meeting = Site(tmp_path, WORKLOADS["sinks"], spark, cut=CUT, store=uri), Barrier(4)

    def meet(asked: Request) -> None:
        if asked.method == "PUT" and WRITTEN.search(asked.path):
            meeting.wait(timeout=30)

    store.fault = meet
    site.run(parallelism=1, max_batches=1)
    store.fault = lambda _: None
    assert not meeting.broken
    outputs = site.outputs()
    assert outputs["delta"] == outputs["delta_too"]
    assert outputs["delta"]
    assert outputs[LETTERS]


def test_after_a_log_checkpoint_checksums_are_handed_on_again(
    store: StoreProxy, uri: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the log checkpoint took so long that commits came before the checksum that they hand on."""
    kinds, real = list[str](), DeltaKernel._after_commit

    def after_commit(self: DeltaKernel, at: str, version: int, hook: Any) -> None:
        kinds.append(hook.getType().toString())
        real(self, at, version, hook)

    monkeypatch.setattr(DeltaKernel, "_after_commit", after_commit)
    kernel = DeltaKernel(spark)
    kernel.create_table(uri, pa.schema([("n", pa.int64())]))
    with store.counted() as requests:
        for version in range(1, 15):
            if version in (10, 11):
                kernel._snapshots.forget(uri)  # as a log checkpoint has it
            else:
                kernel.join_hooks()
            kernel.append(uri, [])
        kernel.join_hooks()
    assert kinds.count("CHECKPOINT") == 1
    assert kinds.index("CHECKPOINT") == 11, "after the checksums of all versions up to its own"
    assert kinds[-2:] == ["CHECKSUM_SIMPLE", "CHECKSUM_SIMPLE"]
    kept = [name for name in open_location(f"{uri}/_delta_log").names() if name.endswith(".crc")]
    assert min(kept) == f"{10:020d}.crc", "those before the log checkpoint are gone"
    deletions = [path for method, path in requests if "delete" in path or method == "DELETE"]
    assert deletions == ["/bucket?delete"], "together"
