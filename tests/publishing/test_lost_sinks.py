"""An output that was deleted, emptied or put back from a backup, while an engine lives or before it starts."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from state_engine import (
    DataStream,
    DeltaSink,
    DeltaStateTable,
    FileSink,
    SqlSink,
)
from state_engine.core.errors import (
    SinkBehindError,
    SinkError,
    SinkIdentityError,
    TableChangedError,
)
from tests.sinks.databases import Database
from tests.support.summing import SumSite


class Place(SumSite):
    """A job with one output, which somebody deletes."""

    def __init__(self, directory: Path, spark: SparkSession, kind: str) -> None:
        super().__init__(directory, spark)
        self.kind, self.db = kind, Database(directory, f"sqlite:///{directory}/out.db")

    def send(self, sums: DataStream) -> None:
        path = str(self.directory / "out")
        sinks = {"delta": DeltaSink(path), "files": FileSink(path), "sql": SqlSink(self.db.url, "delays")}
        if self.kind == "published":
            sums.publish_state("sum", DeltaStateTable(path))
        else:
            sums.sink("out", sinks[self.kind])

    def delete(self) -> None:
        if self.kind == "sql":
            self.db.run("DROP TABLE delays")
        else:
            out = self.directory / "out"
            while out.exists():  # what follows a commit, such as its checksum, may still come
                shutil.rmtree(out, ignore_errors=True)

    def shown(self) -> list[tuple[str, int]]:
        if self.kind == "sql":
            return [tuple(r) for r in self.db.rows("SELECT key, sum FROM delays ORDER BY key, sum")]
        out = str(self.directory / "out")
        if self.kind == "files":
            table = ds.dataset(out, format="parquet", partitioning="hive").to_table()
        else:
            table = DeltaTable(out).to_pyarrow_table() if self.kind == "delta" else self.table(out)
        return sorted(
            zip(
                table["key"].to_pylist(),
                table["value" if self.kind == "published" else "sum"].to_pylist(),
                strict=True,
            )
        )

    def table(self, out: str) -> pa.Table:
        return pa.Table.from_pandas(self.spark.read.format("delta").load(out).toPandas())


@pytest.fixture
def place(tmp_path: Path, spark: SparkSession) -> Callable[[str], Place]:
    return lambda kind: Place(tmp_path, spark, kind)


ALL = [("a", 1), ("a", 3), ("b", 3)]


@pytest.mark.parametrize("living", [True, False], ids=["the same engine", "a new engine"])
@pytest.mark.parametrize("kind", ["delta", "files", "sql"])
def test_a_deleted_output_is_noticed_and_made_again_from_what_was_recorded(
    place: Callable[[str], Place], kind: str, living: bool
) -> None:
    at = place(kind)
    engine = at.new_engine()
    at.arrive("1", ("a", 1))
    engine.run(at.job())
    at.arrive("2", ("a", 2), ("b", 3))
    engine.run(at.job())
    assert at.shown() == ALL
    at.delete()
    at.arrive("3", ("b", 4))
    if not living:
        engine.close()
        engine = at.new_engine()
    for _ in range(2):
        with pytest.raises(SinkBehindError, match=r"does not show what checkpoint 1 published.*branch"):
            engine.run(at.job())
    assert len(engine.checkpoints("sums")) == 2, "nothing was committed"
    assert at.status().state == "unpublished"
    replayed = engine.replay(at.job(), from_checkpoint=0)
    with pytest.raises(SinkBehindError):
        engine.run(at.job())
    engine.promote(at.job(), replayed.branch)
    assert at.shown() == ALL
    engine.run(at.job())
    assert at.shown() == [*ALL, ("b", 7)]
    with at.new_engine() as again:
        assert again.run(at.job()).batches == []
    engine.close()


@pytest.mark.parametrize("living", [True, False], ids=["the same engine", "a new engine"])
@pytest.mark.parametrize("kind", ["delta", "files", "sql"])
def test_the_output_of_the_only_checkpoint_is_made_again_too(
    place: Callable[[str], Place], kind: str, living: bool
) -> None:
    at = place(kind)
    engine = at.new_engine()
    at.arrive("1", ("a", 1))
    engine.run(at.job())
    at.delete()
    if not living:
        engine.close()
        engine = at.new_engine()
    with pytest.raises(SinkIdentityError, match=r"branch create JOB --from 0.*branch promote"):
        engine.run(at.job())
    engine.promote(at.job(), engine.replay(at.job(), from_checkpoint=0).branch)
    at.arrive("2", ("a", 2))
    engine.run(at.job())
    assert at.shown() == [("a", 1), ("a", 3)]
    engine.close()


def test_a_table_with_the_version_that_is_known_may_be_another(
    place: Callable[[str], Place], tmp_path: Path
) -> None:
    """Put back from a backup, and written to by others up to the version that a living engine has seen."""
    at, out = place("published"), tmp_path / "out"
    engine = at.new_engine()
    at.arrive("1", ("a", 1))
    engine.run(at.job())
    shutil.copytree(out, tmp_path / "backup")
    at.arrive("2", ("b", 3))
    engine.run(at.job())
    version = DeltaTable(str(out)).version()
    shutil.rmtree(out)
    shutil.copytree(tmp_path / "backup", out)
    while DeltaTable(str(out)).version() < version:
        at.spark.sql(f"INSERT INTO delta.`{out}` VALUES ('foreign', 7)")
    at.arrive("3", ("c", 9))
    with pytest.raises(TableChangedError, match=r"changed rows that the state published"):
        engine.run(at.job())
    engine.close()


def test_a_deleted_published_table_is_built_from_the_state_by_a_living_engine(
    place: Callable[[str], Place],
) -> None:
    at = place("published")
    with at.new_engine() as engine:
        at.arrive("1", ("a", 1))
        engine.run(at.job())
        at.delete()
        at.arrive("2", ("b", 3))
        engine.run(at.job())
        assert at.shown() == [("a", 1), ("b", 3)]


def swapped(at: Place, *, rows: bool) -> None:
    """What a DBA does between two runs: another table under the name, with or without the rows."""
    at.db.run("ALTER TABLE delays RENAME TO old")
    at.db.run(f"CREATE TABLE delays AS SELECT * FROM old WHERE {int(rows)} = 1")
    at.db.run("DROP TABLE old")


@pytest.mark.parametrize("living", [True, False], ids=["the same engine", "a new engine"])
@pytest.mark.parametrize("checkpoints", [1, 2])
def test_another_table_under_the_name_of_a_sinks_gets_no_row_until_somebody_says_so(
    place: Callable[[str], Place], checkpoints: int, living: bool
) -> None:
    at, rows = place("sql"), ALL[:1] if checkpoints == 1 else ALL
    engine = at.new_engine()
    at.arrive("1", ("a", 1))
    engine.run(at.job())
    if checkpoints == 2:
        at.arrive("2", ("a", 2), ("b", 3))
        engine.run(at.job())
    swapped(at, rows=True)
    if not living:
        engine.close()
        engine = at.new_engine()
    at.arrive("3", ("b", 4))
    advice = (
        "was dropped and created again.*`statelake accept-table sums out`.*drop this one.*branch create (JOB|sums) "
        "--from 0.*branch promote"
    )
    for _ in range(2):
        with pytest.raises(SinkError, match=advice):
            engine.run(at.job())
    with pytest.raises(SinkError, match=advice):  # it would double the rows that the table may hold
        engine.publish_pending(at.job(), from_checkpoint=1)
    assert (at.shown(), at.status().state) == (rows, "unpublished")
    engine.published(at.job()).accept("out", dry_run=True)
    with pytest.raises(SinkError, match=advice):
        engine.run(at.job())
    engine.published(at.job()).accept("out", requested_by="ada")
    engine.run(at.job())
    rows = [*rows, ("b", 7 if checkpoints == 2 else 4)]
    assert at.shown() == rows
    assert at.status().state == "ok"
    swapped(at, rows=False)
    with pytest.raises(SinkError, match=advice):
        engine.promote(at.job(), engine.replay(at.job(), from_checkpoint=0).branch)
    at.delete()
    engine.promote(at.job(), engine.replay(at.job(), from_checkpoint=0).branch)
    at.arrive("4", ("c", 1))
    engine.run(at.job())
    assert at.shown() == [*rows, ("c", 1)]
    engine.close()


@pytest.mark.parametrize("kind", ["delta", "files"])
def test_only_a_table_of_a_database_is_accepted(place: Callable[[str], Place], kind: str) -> None:
    at = place(kind)
    at.arrive("1", ("a", 1))
    with at.new_engine() as engine:
        engine.run(at.job())
        with pytest.raises(SinkError, match="only the table of a SqlSink, or one that shows a state"):
            engine.published(at.job()).accept("out")
