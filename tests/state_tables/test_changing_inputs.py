"""From a Delta table that Spark changes to tables that others read: all equal a computation from the final table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from state_engine import (
    DeltaSource,
    DeltaStateTable,
    LastRow,
    RetentionPolicy,
    RowKind,
    StateEngine,
    StatefulJob,
)
from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.storage.delta.log import DeltaLog
from state_engine.storage.layout import JobLayout
from state_engine.storage.state.located_files import state_files
from state_engine.storage.stores.files import local_path
from state_engine.testing import run_in_memory
from tests.operators import payments
from tests.operators.payments import ALL, PAYMENT, payment, recomputed
from tests.state_tables.histories import dying, path_of
from tests.support.changes import as_rows

COLUMNS = ("id", "user", "n", "x", "price", "name")
ROW = f"id bigint, {PAYMENT}"
RESULT = (
    "user string, rows bigint, named bigint, n bigint, x double, price decimal(38,2), mean_n double, mean_x double, "
    "mean_price decimal(14,6), least_n bigint, most_n bigint, least_x double, most_x double, first string, "
    "last decimal(10,2)"
)
TABLES = ("rows", "totals", "accumulators", "values")
USERS = ("a", "b", "c")
Row = tuple[Any, ...]


def job_over(stream_of: Callable[[StatefulJob], Any], place: Path | None, **options: Any) -> StatefulJob:
    """The job over some stream of changes."""
    job = StatefulJob("users", max_parallelism=8, compaction=None, **options)
    changes = stream_of(job)
    rows = changes.key_by("id").process(LastRow(ROW, key=["id"]), uid="rows", output_type=ROW)
    totals = changes.key_by("user").aggregate(**ALL).uid("totals")
    results = totals.key_by("user").process(LastRow(RESULT, key=["user"]), uid="results", output_type=RESULT)
    if place is not None:
        plain: Any = {"deletion_vectors": False}
        rows.publish_state("row", DeltaStateTable(str(place / "rows")), name="rows")
        results.publish_state("row", DeltaStateTable(str(place / "totals"), **plain), name="totals")
        totals.publish_state("aggregates", DeltaStateTable(str(place / "accumulators")), name="accumulators")
        totals.publish_state("values_x", DeltaStateTable(str(place / "values")), name="values", map_key="x")
    return job


@dataclass
class World:
    """A table that changes, and a job that follows it."""

    directory: Path
    spark: SparkSession
    chance: Random
    vectors: bool
    done: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.engine = StateEngine(self.directory / "root", self.spark)
        self.next_id = 0
        self.sql(
            f"CREATE TABLE {{}} ({ROW}) USING delta TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true', "
            f"'delta.enableDeletionVectors' = '{str(self.vectors).lower()}')"
        )
        self.insert()

    @property
    def source(self) -> str:
        return str(self.directory / "source")

    def sql(self, statement: str) -> None:
        self.done.append(statement)
        self.spark.sql(statement.format(f"delta.`{self.source}`"))

    def job(self, **bounds: Any) -> StatefulJob:
        def stream(job: StatefulJob) -> Any:
            return job.source("changes", DeltaSource(self.source, changes=True, **bounds))

        return job_over(stream, self.directory / "tables", parallelism=2)

    # -- the table changes -----------------------------------------------------------------------------------------

    def new_rows(self, number: int) -> list[Row]:
        first, self.next_id = self.next_id, self.next_id + number
        return [self.row(number) for number in range(first, self.next_id)]

    def row(self, number: int) -> Row:
        return number, *payment(self.chance.choice(USERS), self.chance)

    def values(self, rows: list[Row]) -> str:
        def text(row: Row) -> str:
            number, user, n, x, price, name = row
            shown = f"{number}, '{user}', {n}, DOUBLE('{x!r}'), {price}, '{name}'"
            return (
                f"({shown})".replace("DOUBLE('None')", "NULL")
                .replace("'None'", "NULL")
                .replace("None", "NULL")
            )

        return ", ".join(map(text, rows))

    def some_ids(self) -> str:
        return ", ".join(str(self.chance.randrange(self.next_id)) for _ in range(self.chance.randrange(1, 4)))

    def insert(self) -> None:
        self.sql(f"INSERT INTO {{}} VALUES {self.values(self.new_rows(self.chance.randrange(2, 7)))}")

    def update(self) -> None:
        changed = self.chance.choice(
            ["x = x + 0.1", "user = 'b'", "x = NULL, n = n + 1", "price = -price", "name = 'zoë'"]
        )
        self.sql(f"UPDATE {{}} SET {changed} WHERE id IN ({self.some_ids()})")

    def swap(self) -> None:
        """Two keys change places, and others with them."""
        self.sql("UPDATE {} SET id = CASE WHEN id % 2 = 0 THEN id + 1 ELSE id - 1 END WHERE id < 4")

    def delete(self) -> None:
        where = self.chance.choice([f"id IN ({self.some_ids()})", f"user = '{self.chance.choice(USERS)}'"])
        self.sql(f"DELETE FROM {{}} WHERE {where}")

    def merge(self) -> None:
        known = [self.row(self.chance.randrange(self.next_id)) for _ in range(2)]
        rows = {row[0]: row for row in [*known, *self.new_rows(2)]}
        names = ", ".join(COLUMNS)
        self.sql(
            f"MERGE INTO {{}} t USING (SELECT * FROM VALUES {self.values(list(rows.values()))} AS s({names})) s "
            "ON t.id = s.id WHEN MATCHED AND s.n < 0 THEN DELETE WHEN MATCHED THEN UPDATE SET * "
            "WHEN NOT MATCHED THEN INSERT *"
        )

    def optimize(self) -> None:
        self.sql("OPTIMIZE {}")

    def overwrite(self) -> None:
        self.sql(f"INSERT OVERWRITE {{}} VALUES {self.values(self.new_rows(3))}")

    def by_delta_rs(self) -> None:
        """Another writer of the same table: only where there are no deletion vectors, which it does not read."""
        if self.vectors:
            return self.update()
        self.done.append("delta-rs")
        there = DeltaTable(self.source)
        there.update(updates={"user": "'c'"}, predicate=f"id IN ({self.some_ids()})")
        there.delete(f"id IN ({self.some_ids()})")
        columns = list(zip(*self.new_rows(3), strict=True))
        types = [pa.int64(), pa.string(), pa.int64(), pa.float64(), pa.decimal128(10, 2), pa.string()]
        arrays = [pa.array(c, t) for c, t in zip(columns, types, strict=True)]
        return write_deltalake(self.source, pa.table(arrays, names=list(COLUMNS)), mode="append")

    def change(self) -> None:
        self.chance.choice(
            [
                self.insert, self.update, self.update, self.swap, self.delete, self.merge, self.merge, self.optimize,
                self.overwrite, self.by_delta_rs,
            ]
        )()  # fmt: skip

    # -- the job goes on -------------------------------------------------------------------------------------------

    def step(self) -> None:
        step = self.chance.choice(
            [
                self.run, self.run, self.run, self.restore, self.replay, self.restart, self.crash, self.compact,
                self.expire,
            ]
        )  # fmt: skip
        self.done.append(step.__name__)
        step()

    def run(self) -> None:
        bounds: list[dict[str, int]] = [{"max_files_per_batch": 1}, {"max_rows_per_batch": 3}, {}]
        self.engine.run(self.job(**self.chance.choice(bounds)), max_batches=self.chance.choice([1, 3, None]))

    def restore(self) -> None:
        rows = [row for row in self.main if row.kind == "checkpoint"]
        retired = {i for row in self.main for i in row.retired}
        targets = [row.checkpoint_id for row in rows[:-1] if row.checkpoint_id not in retired]
        if targets:
            self.engine.restore(self.job(), checkpoint_id=self.chance.choice(targets))

    def replay(self) -> None:
        retired = {i for row in self.main for i in row.retired}
        ids = [row.checkpoint_id for row in self.path if row.kind == "checkpoint"]
        if len(ids) > 2 and ids[-3] not in retired:
            rebatch = self.chance.random() < 0.5
            report = self.engine.replay(self.job(), from_checkpoint=ids[-3], rebatch=rebatch)
            self.engine.promote(self.job(), report.branch)

    def restart(self) -> None:
        self.engine.close()
        self.engine = StateEngine(self.directory / "root", self.spark)

    def crash(self) -> None:
        """A publish ends at any of its steps."""
        with dying(self.chance.randrange(40)):  # or has fewer
            self.engine.run(self.job(max_rows_per_batch=2), max_batches=1)
        self.restart()

    def compact(self) -> None:
        self.engine.compact("users", full=self.chance.random() < 0.5)

    def expire(self) -> None:
        self.engine.expire_checkpoints("users", RetentionPolicy(self.chance.randint(1, 3)))

    @property
    def main(self) -> list[CheckpointRow]:
        return [row for row in self.engine.checkpoints("users") if row.branch == "main"]

    @property
    def path(self) -> list[CheckpointRow]:
        return path_of(self.engine, "users")

    # -- what must be ----------------------------------------------------------------------------------------------

    def left(self) -> list[Row]:
        """The rows of the table, as Spark reads it."""
        read = self.spark.read.format("delta").load(self.source).select(*COLUMNS)
        return sorted((tuple(row) for row in read.collect()), key=lambda row: row[0])

    def table_changes(self) -> list[tuple[str, int, int]]:
        """Rows that would come and go if each table were made the state as of the head."""
        published = self.engine.published(self.job())
        return [(move.name, move.rows, move.deleted) for move in map(published.verify, TABLES)]

    def expected(self) -> dict[str, Any]:
        """What tables and state are when all changes were read: what follows from the rows left alone."""
        left = self.left()
        aggregates, values = states_of(left)
        rows, results = shown_rows(left), shown_rows(recomputed([row[1:] for row in left]).values())
        return {"rows": rows, "totals": results, "accumulators": aggregates, "values": values} | {
            "rows by SQL": rows,
            "aggregates by SQL": {user: of[:2] for user, of in aggregates.items()},
            "aggregates": aggregates,
        }

    def shown(self) -> dict[str, Any]:
        """The same, as polars reads the tables, and as the engine reads the state."""
        tables = {name: pl.read_delta(str(self.directory / "tables" / name)) for name in TABLES}
        state = self.engine.read_state("users", "totals", "aggregates").toArrow().to_pylist()
        counts = self.queried("SELECT user, value.rows, value.count_name FROM totals__aggregates")
        return {
            "rows": shown_rows(tables["rows"].select(COLUMNS).rows()),
            "totals": shown_rows(tables["totals"].rows()),
            "accumulators": {row.pop("user"): bits(row) for row in tables["accumulators"].to_dicts()},
            "values": {(user, bits(x)): number for user, x, number in tables["values"].rows()},
            "rows by SQL": shown_rows(
                self.queried(
                    "SELECT id, value.user, value.n, value.x, value.price, value.name FROM rows__row"
                )
            ),
            "aggregates by SQL": {user: bits(of) for user, *of in counts},
            "aggregates": {row["user"]: bits(row["value"]) for row in state},
        }

    def queried(self, query: str) -> list[Row]:
        return [tuple(row) for row in self.engine.sql("users", query).collect()]


def shown_rows(rows: Iterable[Row]) -> list[str]:
    """Rows as text, in which NaN is NaN and zero has no sign, in order."""
    return sorted(payments.plain(row) for row in rows)


def bits(value: Any) -> Any:
    """A value as text that is the same for the same bits; records, however they are given, as their fields."""
    if isinstance(value, dict):
        return [bits(part) for part in value.values()]
    if isinstance(value, Decimal) and value.as_tuple().exponent == 0:
        return repr(int(value))  # tables have no other type for whole numbers beyond 64 bits
    return [bits(part) for part in value] if isinstance(value, list | tuple) else repr(value)


def states_of(rows: list[Row]) -> tuple[dict[str, Any], dict[Any, int]]:
    """The accumulators of each user, and the number of each of his values, in a job that got just these rows."""
    if not rows:
        return {}, {}  # such a job has no state yet

    def stream(job: StatefulJob) -> Any:
        inserts = as_rows([(RowKind.INSERT, row) for row in rows], *COLUMNS)
        return job.from_collection(inserts, ROW, changing=True)

    with run_in_memory(job_over(stream, None)) as run:
        run.run()
        aggregates = {user: bits(value) for user, value in run.state("totals", "aggregates").items()}
        values = run.state("totals", "values_x")
        return aggregates, {(user, bits(x)): n for user, some in values.items() for x, n in some.items()}


STEPS = 4


def go_through(seed: int, directory: Path, spark: SparkSession, *, steps: int = STEPS) -> None:
    world = World(directory, spark, Random(seed), vectors=seed % 2 == 0)
    world.run()
    for _ in range(steps):
        for _ in range(world.chance.randrange(1, 3)):
            world.change()
        world.step()
        assert world.table_changes() == [(name, 0, 0) for name in TABLES], world.done
    world.engine.run(world.job())
    assert world.shown() == world.expected(), world.done


@pytest.mark.parametrize("seed", range(3))
def test_states_and_tables_are_those_of_the_final_table(
    seed: int, tmp_path: Path, spark: SparkSession
) -> None:
    go_through(seed, tmp_path, spark)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 170))
def test_states_and_tables_are_those_of_the_final_table_in_many_histories(
    seed: int, tmp_path: Path, spark: SparkSession
) -> None:
    go_through(seed, tmp_path, spark, steps=10)


# -- a user who is deleted -------------------------------------------------------------------------------------------

GONE, HIS_X, HIS_PRICE, HIS_N = "Aurelie Q.", 77777.125, Decimal("31415.92"), 271828
"""Values that nobody else has."""


def spend(user: str, name: str, x: float, price: Decimal, n: int) -> str:
    return f"'{user}', {n}, DOUBLE('{x}'), {price}, '{name}'"


def holds_his_values(files: Iterable[Path]) -> bool:
    """Whether any file holds his name, a value of his, or a number that only comes of one."""
    texts = (json.dumps(pq.ParquetFile(file).read().to_pylist(), default=str) for file in files)
    return any(trace in text for text in texts for trace in (GONE, "77777.", "31415.92", "271828"))


def head_files(world: World) -> list[Path]:
    """The files that hold the keyed state of the head."""
    layout = JobLayout(world.engine.root, "users")
    files = [f for uid in ("rows", "totals", "results") for f in state_files(layout, world.path, uid)]
    return [local_path(file.listed.uri) for file in files]


def newest_files(world: World, table: str) -> list[Path]:
    at = world.directory / "tables" / table
    newest = DeltaLog(f"file://{at}").newest()
    assert newest is not None
    return [at / file for file in newest.files]


def users_in(files: Iterable[Path]) -> set[str]:
    return {user for file in files for user in pq.ParquetFile(file).read(["user"])["user"].to_pylist()}


def test_a_user_who_is_deleted_leaves_no_trace_as_of_the_head(tmp_path: Path, spark: SparkSession) -> None:
    """He has a key of his own, and values in the sums of other keys."""
    world = World(tmp_path, spark, Random(5), vectors=True)
    others = [spend(user, "zoë", 0.1, Decimal("0.10"), 1) for user in (*USERS, "untouched")]
    his = [spend(user, GONE, HIS_X, HIS_PRICE, HIS_N) for user in (GONE, *USERS)]
    rows = ", ".join(f"({id}, {row})" for id, row in enumerate([*his, *others], 100))
    world.sql(f"INSERT INTO {{}} VALUES {rows}")
    world.engine.run(world.job())
    assert holds_his_values(head_files(world))
    assert all(holds_his_values(newest_files(world, table)) for table in TABLES)

    world.sql(f"DELETE FROM {{}} WHERE name = '{GONE}'")
    world.engine.run(world.job())
    assert world.shown() == world.expected()
    assert holds_his_values(newest_files(world, "accumulators")), "a deletion vector only hides"

    processor = world.engine.state_processor("users")
    report = processor.erase_keys({"user": GONE})
    assert report.transform.changes == 0, "the delete took his keys out of the state"
    assert {table.name: (table.rows, table.files) for table in report.tables} == {
        "totals": (0, 0),  # without deletion vectors nothing is hidden
        "accumulators": (0, 1),
        "values": (0, 1),
    }
    report = processor.erase_keys([{"id": id} for id in range(100, 104)])
    assert {table.name: (table.rows, table.files) for table in report.tables} == {"rows": (0, 1)}
    assert not any(GONE in users_in(newest_files(world, table.name)) for table in report.tables)

    # what totals of other users were before stands hidden in files of theirs, until these are rewritten
    for table in ("accumulators", "values"):
        spark.sql(f"REORG TABLE delta.`{tmp_path / 'tables' / table}` APPLY (PURGE)")
    assert not any(holds_his_values(newest_files(world, table)) for table in TABLES)
    world.engine.compact("users", full=True)
    assert not holds_his_values(head_files(world)), "the new base is what the rows left give"
    world.restart()
    world.sql("INSERT INTO {} VALUES (200, 'a', 1, DOUBLE('0.2'), 0.20, 'zoë')")
    world.engine.run(world.job())
    assert world.shown() == world.expected()
