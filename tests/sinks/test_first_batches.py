"""A first batch that fails does not hinder the second try, even if the job changed in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from state_engine import DataStream, FileSink, StatefulJob
from state_engine.core.errors import CommitFailedError, SinkError, SinkIdentityError, UserFunctionError
from state_engine.microbatch.coordinator import CheckpointCoordinator
from state_engine.storage.checkpoint_log import CheckpointLog
from tests.faults.plane import Fault, installed
from tests.support.tiny import ROWS, Site, Sum

pytestmark = pytest.mark.spark

OTHER = "k string, total double"


def failing(value: Any, total: int) -> Any:
    raise ValueError("not today")


def other(value: Any, total: int) -> Any:
    return [(value.k, float(total))]


def fail_first(site: Site) -> None:
    with pytest.raises(UserFunctionError, match="not today"):
        site.engine().run(site.job(Sum(failing)))
    assert DeltaTable(str(site.sink)).schema().to_arrow() is not None  # it was made before


def test_other_columns_and_another_key_after_a_failed_first_batch(
    tmp_path: Path, spark: SparkSession
) -> None:
    site = Site(tmp_path, spark).put(ROWS)
    fail_first(site)
    assert spark.read.format("delta").load(str(site.sink)).columns == [
        "k",
        "v",
        "total",
    ]  # Spark remembers it
    site.engine().run(site.job(Sum(other), output=OTHER, key_by=("k", "v")))
    assert site.outputs() == [("a", 1.0), ("a", 3.0), ("b", 2.0), ("c", 4.0)]
    assert (
        sorted(tuple(r) for r in spark.read.format("delta").load(str(site.sink)).collect()) == site.outputs()
    )


def test_a_table_that_is_not_the_engines_or_is_used_stays(tmp_path: Path, spark: SparkSession) -> None:
    site = Site(tmp_path, spark).put(ROWS)
    spark.sql(f"CREATE TABLE delta.`{site.sink}` (mine string) USING delta")
    with pytest.raises(SinkError, match="mine"):
        site.engine().run(site.job(Sum(other), output=OTHER))
    assert spark.read.format("delta").load(str(site.sink)).columns == ["mine"]

    used = Site(tmp_path / "used", spark).put(ROWS)
    fail_first(used)
    (used.sink / "somebody.parquet").touch()
    with pytest.raises(SinkError, match="total"):
        used.engine().run(used.job(Sum(other), output=OTHER))
    (used.sink / "somebody.parquet").unlink()
    used.engine().run(used.job())
    with pytest.raises(SinkError, match="total"):
        used.put({"k": ["z"], "v": [1]}, "more").engine().run(used.job(Sum(other), output=OTHER))


class Crash(BaseException):
    """The death of the process."""


def crashes(*args: Any, **options: Any) -> Any:
    raise Crash


def fails(*args: Any) -> Any:
    raise CommitFailedError("out of luck")


@pytest.mark.parametrize("how", ["certainly", "in a crash"])
def test_the_table_of_changes_that_a_failed_first_batch_left(
    how: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt that certainly failed removes its changes, a crash leaves them; the columns of the table stay."""
    site, crash = Site(tmp_path, spark).put(ROWS), how == "in a crash"
    with monkeypatch.context() as patch:
        patch.setattr(CheckpointCoordinator, "commit", crashes if crash else fails)
        with pytest.raises((Crash, CommitFailedError)):
            site.engine().run(site.job())
    table = tmp_path / "root" / "tiny" / "operators" / "sums" / "changelog"
    left = DeltaTable(str(table))
    assert pa.schema(left.schema().to_arrow()).field("key").type == pa.struct([("k", pa.string())])
    assert bool(left.file_uris()) == crash

    key = "k" if crash else "v"
    rows: dict[str, list[Any]] = {"k": [1, 2, 1, 3] if crash else ["a", "b", "a", "c"], "v": [1, 2, 3, 4]}
    options: dict[str, Any] = {"function": Sum(lambda v, total: [], kind=float if crash else int)}
    site.put(rows).engine().run(site.job(key_by=(key,), **options))
    changes = DeltaTable(str(table)).to_pyarrow_table()
    assert changes.schema.field("key").type == pa.struct([(key, pa.int64())])
    assert changes.schema.field("v_total").type == (pa.float64() if crash else pa.int64())
    listed = [f for row in site.engine().checkpoints("tiny") for f in row.operators[0].changelog]
    assert changes.num_rows == sum(f.rows for f in listed)
    site.put({"k": rows["k"][:1], "v": [1]}, "1").engine().run(site.job(key_by=(key,), **options))
    assert site.state() == ({1: 5.0, 2: 2.0, 3: 4.0} if crash else {1: 2, 2: 2, 3: 3, 4: 4})


def test_the_table_of_bases_that_a_failed_bootstrap_left(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path, spark).put({"k": [1, 2], "v": [1, 2]})
    given = spark.createDataFrame([("a", 10)], "k string, value int")
    with monkeypatch.context() as patch:
        patch.setattr(CheckpointLog, "_append", crashes)
        with pytest.raises(Crash):
            site.engine().state_processor(site.job()).bootstrap({"sums": {"total": given}})
    again = spark.createDataFrame([(1, 10)], "k bigint, value int")
    site.engine().state_processor(site.job()).bootstrap({"sums": {"total": again}})
    site.engine().run(site.job())
    assert site.state() == {1: 11, 2: 2}
    base = DeltaTable(str(tmp_path / "root" / "tiny" / "operators" / "sums" / "base")).to_pyarrow_table()
    assert base["key"].to_pylist() == [{"k": 1}]


def into_files(site: Site, directory: Path) -> StatefulJob:
    job = site.job()
    stream = job.sinks["out"].parent
    DataStream(job, stream).sink("files", FileSink(str(directory)))
    return job


def test_one_that_slept_while_another_root_began_there_commits_nothing(
    tmp_path: Path, spark: SparkSession
) -> None:
    directory = tmp_path / "files"
    slow, quick = (Site(tmp_path / name, spark).put(ROWS) for name in ("slow", "quick"))

    def meanwhile() -> None:
        quick.engine().run(into_files(quick, directory))

    asleep = Fault("after prepared sink", nth=2, action="zombie")  # its tasks have written nothing yet
    with (
        installed([asleep], meanwhile=meanwhile) as plane,
        pytest.raises(SinkIdentityError, match="re-created since rows were staged"),
    ):
        slow.engine().run(into_files(slow, directory))
    assert plane.fired
    assert slow.nothing_happened()
    assert not list(directory.glob("_staged-*"))
    assert quick.engine().run(into_files(quick, directory)).batches == []
