"""From a Delta table that Spark changes to tables that others read: all equal a computation from the final table."""

from __future__ import annotations

import json
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from state_engine.storage.delta.log import DeltaLog
from state_engine.storage.layout import JobLayout
from state_engine.storage.state.located_files import state_files
from state_engine.storage.stores.files import local_path
from tests.state_tables.changing_histories import TABLES, USERS, World

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
