"""Tables that are compared as a whole, or made anew: after backups, cleaned logs, lost files and other columns."""

from __future__ import annotations

import logging
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from pyspark.sql import SparkSession

from state_engine import (
    DeltaStateTable,
    KeyedProcessFunction,
    RuntimeContext,
    SqlStateTable,
    StateEngine,
    StatefulJob,
    ValueStateDescriptor,
)
from state_engine.core.errors import SinkError
from state_engine.publishing.published_tables import PublishedTables
from state_engine.state_tables.base import TableColumns
from state_engine.state_tables.difference import compared, compared_by_portions
from tests.state_tables.histories import Site, WideSite, random_rows


def wide_site(directory: Path, spark: SparkSession, *, databases: bool = True) -> WideSite:
    chance = random.Random(1)
    lite = {"lite": {"url": f"sqlite:///{directory}/out.db"}} if databases else {}
    directory.mkdir(parents=True, exist_ok=True)
    engine = StateEngine(directory / "root", spark=spark)
    return WideSite(directory, random_rows(chance, 60), engine, chance, databases=lite)


def run(site: WideSite, batches: int) -> Any:
    return site.engine.run(site.job(), max_batches=batches, clock=site.now_ms)


# -- a root that was put back from a backup ----


def test_tables_ahead_of_a_root_that_was_put_back_are_compared(
    tmp_path: Path, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    site = wide_site(tmp_path, spark)
    run(site, 2)
    site.put_root_back()  # makes the backup
    run(site, 3)
    with caplog.at_level(logging.WARNING):
        site.put_root_back()
    site.check()
    said = [r.getMessage() for r in caplog.records if "compared as a whole" in r.getMessage()]
    assert len(said) == 7, "four tables of Delta, three of SQLite"
    why = "it shows checkpoint 5, and the newest of this root is 2: the root was put back from a backup"
    assert all(why in one for one in said)
    caplog.clear()
    run(site, 2)
    site.check()
    assert "as a whole" not in caplog.text, "once is enough"
    for name in ("balance", "lite_balance"):
        assert site.engine.published("shops").verify(name).rows == 0


def test_a_checkpoint_of_the_same_number_is_not_the_same(
    tmp_path: Path, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    """The root goes on from the backup, with other rows, beyond the number that the tables show."""
    site = wide_site(tmp_path, spark)
    run(site, 2)
    site.put_root_back()
    run(site, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PublishedTables, "follow", lambda *_: [])
        site.put_root_back()
        site.rows[6:] = site.rows[6:][::-1]
        run(site, 3)
    with caplog.at_level(logging.WARNING):
        site.opened_anew()
    site.check()
    assert "it shows checkpoint 4, and that of this root is another one: the root was put back" in caplog.text


# -- a log that was cleaned ----


def test_what_a_cleaned_log_does_not_show_is_compared(
    tmp_path: Path, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody deletes rows, and the entry of the log that says so is cleaned up before the next publish."""
    site = Site.begun(tmp_path, spark, seed=1, rows=30)
    site.engine.run(site.job(), max_batches=4)
    path = site.table("per_shop")
    DeltaTable(path).delete("shop = 'x'")
    for days in (40, 41):
        DeltaTable(path).alter.set_table_properties({"delta.logRetentionDuration": f"interval {days} days"})
    DeltaTable(path).create_checkpoint()
    newest = DeltaTable(path).version()
    for entry in Path(path, "_delta_log").glob("*.json"):
        if entry.stem.isdigit() and int(entry.stem) < newest:
            entry.unlink()
    with caplog.at_level(logging.WARNING):
        site.engine.run(site.job(), max_batches=1)
    site.check()
    said = [r.getMessage() for r in caplog.records if "as a whole" in r.getMessage()]
    assert len(said) == 1
    assert "per_shop was cleaned up and does not reach back to the last publish" in said[0]
    caplog.clear()
    site.engine.run(site.job())
    site.check()
    assert "as a whole" not in caplog.text


# -- files of the way ----


def test_damaged_files_of_the_way_are_no_matter(
    tmp_path: Path, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    site = wide_site(tmp_path, spark)
    run(site, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PublishedTables, "follow", lambda *_: [])
        run(site, 3)
        site.engine.compact("shops", full=True)
    changelog = tmp_path / "root" / "shops" / "operators" / "balances" / "changelog"
    for file in changelog.rglob("*.parquet"):
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 0xFF
        file.write_bytes(bytes(content))
    with caplog.at_level(logging.WARNING):
        site.opened_anew()
    site.check()
    assert "files of checkpoints since 2 are damaged" in caplog.text


# -- edits that nothing shows ----


def test_only_verify_table_sees_an_edit_that_leaves_the_mark_of_a_row_alone(
    tmp_path: Path, spark: SparkSession
) -> None:
    site = wide_site(tmp_path, spark)
    run(site, 2)
    total = dict(site.of_database("lite", "balance"))
    key = min(total)
    site.query("lite", f"UPDATE balance SET value = -1 WHERE k = '{key}'")
    site.rows[6:] = [row for row in site.rows[6:] if row[0] != key]
    run(site, 2)
    published = site.engine.published("shops")
    assert dict(site.of_database("lite", "balance"))[key] == -1
    verified = published.verify("lite_balance")
    assert (verified.rows, verified.deleted) == (1, 0)
    published.rebuild("lite_balance")
    site.check()


# -- counts ----


def test_only_delta_commits_are_counted(tmp_path: Path, spark: SparkSession) -> None:
    counts = []
    for databases in (False, True):
        site = wide_site(tmp_path / str(databases), spark, databases=databases)
        counts.append([batch.delta_commits for batch in run(site, 2).batches])
    assert counts[0] == counts[1]


# -- in portions ----

COLUMNS = TableColumns(
    pa.schema([("k", pa.string()), ("e", pa.int64()), ("v", pa.float64())]), ("k",), ("e",)
)


@pytest.mark.parametrize("seed", range(5))
def test_a_comparison_by_portions_is_that_of_all_at_once(seed: int) -> None:
    chance = random.Random(seed)

    def rows() -> pa.Table:
        keys = {
            (chance.choice("abcdefghij"), chance.randrange(30)) for _ in range(chance.choice([0, 3, 200]))
        }
        values = [(*key, chance.choice([None, 0.5, float("nan")])) for key in keys]
        columns = zip(*values, strict=True) if values else [[], [], []]
        return pa.table(
            [pa.array(list(one), f.type) for one, f in zip(columns, COLUMNS.schema, strict=True)],
            COLUMNS.schema,
        )

    old, new = rows(), rows()
    whole = compared(COLUMNS, old, new)
    parts = compared_by_portions(
        COLUMNS,
        *([pa.Table.from_batches([b]) for b in one.to_batches(max_chunksize=7)] for one in (old, new)),
    )
    for all_at_once, by_portions in ((whole.deleted, parts.deleted), (whole.rows, parts.rows)):
        assert sorted(map(repr, by_portions.to_pylist())) == sorted(map(repr, all_at_once.to_pylist()))


def test_a_row_that_stands_twice_comes_again() -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    columns = TableColumns(schema, ("k",))
    old, new = (pa.table({"k": k, "v": v}, schema) for k, v in (([1, 2, 1], [1, 2, 1]), ([1, 2], [1, 2])))
    assert compared(columns, old, new).rows.to_pylist() == [{"k": 1, "v": 1}]


# -- other columns ----


@dataclass(frozen=True)
class Place:
    city: str


@dataclass(frozen=True)
class PlaceWithStreet:
    city: str
    street: str | None = None


@dataclass(frozen=True)
class PlaceRenamed:
    town: str = field(metadata={"alias": "city"})


@dataclass(frozen=True)
class First:
    n: int


@dataclass(frozen=True)
class WithLabel:
    n: int
    label: str | None = None


@dataclass(frozen=True)
class Renamed:
    amount: int = field(metadata={"alias": "n"})


@dataclass(frozen=True)
class Nested:
    n: int
    place: Place


@dataclass(frozen=True)
class NestedWithStreet:
    n: int
    place: PlaceWithStreet


@dataclass(frozen=True)
class NestedRenamed:
    n: int
    place: PlaceRenamed


MADE: dict[type, Callable[[int], Any]] = {
    First: First,
    WithLabel: lambda n: WithLabel(n, f"l{n}"),
    Renamed: Renamed,
    Nested: lambda n: Nested(n, Place(f"c{n}")),
    NestedWithStreet: lambda n: NestedWithStreet(n, PlaceWithStreet(f"c{n}", f"s{n}")),
    NestedRenamed: lambda n: NestedRenamed(n, PlaceRenamed(f"c{n}")),
}


class Latest(KeyedProcessFunction):
    """The last number of a key, as a record of some class."""

    def __init__(self, record: type) -> None:
        self.record = record

    def open(self, runtime_context: RuntimeContext) -> None:
        self.latest = runtime_context.get_state(ValueStateDescriptor("latest", self.record))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.latest.update(MADE[self.record](value.n))
        yield value


@dataclass
class Evolving:
    """A job whose state changes its class."""

    directory: Path
    engine: StateEngine

    def job(self, record: type) -> StatefulJob:
        """A micro-batch a row."""
        rows = [("a", 1), ("b", 2), ("a", 3), ("c", 4), ("b", 5), ("d", 6)]
        job = StatefulJob("latest", compaction=None)
        events = job.from_collection(rows, "k string, n bigint", name="events", max_rows_per_batch=1)
        outputs = events.key_by("k").process(Latest(record), output_type="k string, n bigint", uid="latest")
        for vectors in (True, False):
            table = DeltaStateTable(str(self.directory / f"{vectors}"), deletion_vectors=vectors)
            outputs.publish_state("latest", table, name=f"{vectors}".lower())
        if "place" not in record.__annotations__:
            lite = SqlStateTable(f"sqlite:///{self.directory}/out.db", "latest")
            outputs.publish_state("latest", lite, name="lite")
        return job

    def run(self, record: type, batches: int) -> None:
        self.engine.run(self.job(record), max_batches=batches)

    def shown(self) -> list[dict[str, Any]]:
        """As polars, and without deletion vectors delta-rs, read the tables; one has what the other has."""
        read = [pl.read_delta(str(self.directory / name)).sort("k").to_dicts() for name in ("True", "False")]
        assert read[0] == read[1]
        return read[0]

    def lite(self, names: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.directory / "out.db")) as lite:
            return sorted(lite.execute(f"SELECT {names} FROM latest").fetchall())


@pytest.fixture
def evolving(tmp_path: Path, spark: SparkSession) -> Evolving:
    return Evolving(tmp_path, StateEngine(tmp_path / "root", spark=spark))


def test_a_field_that_is_added_becomes_a_column_and_goes_with_a_restore(
    evolving: Evolving, caplog: pytest.LogCaptureFixture, spark: SparkSession
) -> None:
    evolving.run(First, 2)
    with caplog.at_level(logging.WARNING):
        evolving.run(WithLabel, 1)
    assert evolving.shown() == [{"k": "a", "n": 3, "label": "l3"}, {"k": "b", "n": 2, "label": None}]
    assert evolving.lite("k, n, label") == [("a", 3, "l3"), ("b", 2, None)]
    assert "was rebuilt from the state as of checkpoint 3, because the state has more columns" in caplog.text
    read = (
        spark.read.format("delta").load(str(evolving.directory / "True")).select("k", "n", "label").collect()
    )
    assert sorted(map(tuple, read)) == [("a", 3, "l3"), ("b", 2, None)]
    evolving.run(WithLabel, 1)
    assert evolving.shown()[2] == {"k": "c", "n": 4, "label": "l4"}
    planned = evolving.engine.restore(evolving.job(First), checkpoint_id=2, dry_run=True)
    done = evolving.engine.restore(evolving.job(First), checkpoint_id=2)
    assert done.tables == planned.tables
    assert evolving.shown() == [{"k": "a", "n": 1}, {"k": "b", "n": 2}]
    assert evolving.lite("k, n") == [("a", 1), ("b", 2)]
    evolving.run(First, 10)
    assert [(row["k"], row["n"]) for row in evolving.shown()] == [("a", 3), ("b", 5), ("c", 4), ("d", 6)]


def test_a_field_that_is_added_inside_of_a_record(evolving: Evolving) -> None:
    evolving.run(Nested, 2)
    evolving.run(NestedWithStreet, 1)
    assert evolving.shown() == [
        {"k": "a", "n": 3, "place": {"city": "c3", "street": "s3"}},
        {"k": "b", "n": 2, "place": {"city": "c2", "street": None}},
    ]


def test_a_table_whose_field_is_renamed_is_rebuilt(evolving: Evolving, spark: SparkSession) -> None:
    evolving.run(First, 2)
    with pytest.raises(SinkError, match=r"Nothing was written.*`statelake rebuild-table latest true`"):
        evolving.run(Renamed, 1)
    assert evolving.shown() == [{"k": "a", "n": 1}, {"k": "b", "n": 2}]
    published = evolving.engine.published(evolving.job(Renamed))
    assert published.verify("true").rows == 0, "of the checkpoint that it shows"
    versions = [DeltaTable(str(evolving.directory / "False")).version()]
    for name in ("true", "false"):
        assert published.rebuild(name).rows == 2
    versions.append(DeltaTable(str(evolving.directory / "False")).version())
    assert versions[1] == versions[0] + 1, "one transaction"
    assert evolving.shown() == [{"k": "a", "amount": 3}, {"k": "b", "amount": 2}]
    evolving.run(Renamed, 2)
    assert evolving.shown() == [{"k": "a", "amount": 3}, {"k": "b", "amount": 5}, {"k": "c", "amount": 4}]
    read = spark.read.format("delta").load(str(evolving.directory / "True")).select("k", "amount").collect()
    assert sorted(map(tuple, read)) == [("a", 3), ("b", 5), ("c", 4)]
    assert evolving.lite("k, amount") == [("a", 3), ("b", 5), ("c", 4)], "a column more"


def test_a_table_whose_field_is_renamed_inside_of_a_record_is_rebuilt(evolving: Evolving) -> None:
    evolving.run(Nested, 2)
    with pytest.raises(SinkError, match="`statelake rebuild-table latest true`"):
        evolving.run(NestedRenamed, 1)
    for name in ("true", "false"):
        evolving.engine.published(evolving.job(NestedRenamed)).rebuild(name)
    assert evolving.shown() == [
        {"k": "a", "n": 3, "place": {"town": "c3"}},
        {"k": "b", "n": 2, "place": {"town": "c2"}},
    ]


def test_a_column_of_somebody_else_is_not_taken_away(evolving: Evolving) -> None:
    """Only where the state has other columns than it had is a table made anew."""
    evolving.run(First, 2)
    path = str(evolving.directory / "False")
    DeltaTable(path).alter.add_columns([Field("theirs", PrimitiveType("string"))])
    with pytest.raises(SinkError, match=r"fewer columns than the table.*rebuild-table latest false"):
        evolving.run(First, 1)
    published = evolving.engine.published(evolving.job(First))
    planned = published.rebuild("false", dry_run=True)
    assert (planned.rows, "fewer columns than the table" in planned.whole) == (2, True)
    assert "theirs" in pl.read_delta(path).columns
    published.rebuild("false")
    assert evolving.shown() == [{"k": "a", "n": 3}, {"k": "b", "n": 2}]
