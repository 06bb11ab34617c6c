"""Several engines in one process, in threads: what one of them does is not seen by another."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from state_engine import FileSource, ForeachBatchSink, StateEngine, StatefulJob
from state_engine.core.errors import SinkError


def _job(name: str, inbox: Path, received: list[int], *, fails: bool = False) -> StatefulJob:
    def called(rows: pa.Table, checkpoint_id: int) -> None:
        if fails:
            raise OSError("the mail server is down")
        received.extend(rows["n"].to_pylist())

    job = StatefulJob(name)
    job.source("numbers", FileSource(str(inbox), schema="n bigint")).sink(
        "out", ForeachBatchSink(called, name="export")
    )
    return job


def test_functions_of_one_name_in_two_jobs(tmp_path: Path, spark: SparkSession) -> None:
    """Also where the rows of one of them waited for its function."""
    received: dict[str, list[int]] = {"north": [], "south": []}
    for n, name in enumerate(received):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"n": [n]}), tmp_path / name / "1.parquet")

    def run(name: str, *, fails: bool) -> str:
        with StateEngine(tmp_path / "root", spark) as engine:
            try:
                engine.run(_job(name, tmp_path / name, received[name], fails=fails))
            except SinkError as error:
                return str(error)
            return ""

    with ThreadPoolExecutor(2) as threads:
        first = threads.map(lambda name: run(name, fails=name == "south"), received)
        assert ["mail server" in error for error in first] == [False, True]
        assert list(threads.map(lambda name: run(name, fails=False), received)) == ["", ""]
    assert received == {"north": [0], "south": [1]}
