"""State read without Spark equals state read by Spark: every kind and checkpoint, expired or not, compacted or not."""

from __future__ import annotations

import random
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from state_engine import (
    DataStream,
    KeyedProcessFunction,
    RuntimeContext,
    StatefulJob,
    ValueStateDescriptor,
    open_state,
)
from tests.engine.test_evolution_on_spark import After, Before, keeping
from tests.support.pipelines import Pipeline
from tests.support.remembering import STATES, Event, Memory, by_key, entries, model


class Remembers(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.n = runtime_context.get_state(ValueStateDescriptor("n", int))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        self.n.update(value.n)
        return []


BATCHES: list[list[Event]] = [
    [("a", 1, 5), ("a", 1, 7), ("b", 1, 3), ("b", 2, 3)],
    [("a", 1, 2), ("c", 1, 9)],
    [("b", 1, 0), ("a", 1, -2), ("d", 4, 4)],
    [("b", 1, 8), ("c", 1, -9)],
    [("a", 2, 1)],
    [("d", 4, 6), ("a", 1, 11)],
]


def opened(memory: Memory, state: str, **options: Any) -> pa.Table:
    return open_state.read_state(memory.root, "memory", "remembers", state, **options)


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Memory:
    site = Memory(tmp_path_factory.mktemp("open"), spark)
    for batch in BATCHES[:3]:
        site.run(batch)
    return site


def test_states_are_what_a_fold_by_hand_gives(memory: Memory) -> None:
    for checkpoint_id in (1, 2, 3):
        for include_expired in (False, True):
            expected = model(BATCHES[:checkpoint_id], include_expired=include_expired)
            for state, folded in expected.items():
                table = opened(memory, state, checkpoint_id=checkpoint_id, include_expired=include_expired)
                assert by_key(entries(table)) == folded, (checkpoint_id, state, include_expired)


def test_columns_are_those_that_spark_gives(memory: Memory) -> None:
    for state in ("last", "all", "ranked"):
        for metadata in (False, True):
            frame = memory.engine.read_state("memory", "remembers", state, metadata=metadata)
            table = opened(memory, state, metadata=metadata)
            assert table.column_names == frame.columns
            kinds = [str(f.type).replace("element: ", "item: ") for f in frame.toArrow().schema]
            assert [str(f.type) for f in table.schema] == kinds, state
    # a key column that is called as the value is
    assert opened(memory, "counts").column_names == ["k", "key_value", "map_key", "value"]


KEY = (
    "day date, price decimal(10,2), ok boolean, raw binary, small smallint, ratio float, "
    "at timestamp, part struct<day: date, `it's`: decimal(5,1), deep: struct<ok: boolean>>"
)
AT = datetime(2026, 1, 1, 10, tzinfo=UTC)
KEYS: list[tuple[Any, ...]] = [
    (
        date(2026, 1, 1),
        Decimal("1.10"),
        True,
        b"\x00\xff",
        7,
        0.5,
        AT,
        (date(1, 1, 1), Decimal("-0.5"), (False,)),
    ),
    (date(9999, 12, 31), Decimal("-99999999.99"), False, b"", -7, -0.5, AT, (None, None, None)),
    (None, None, None, None, None, None, None, None),
]


def test_keys_are_shown_as_the_values_that_they_are(tmp_path: Path, spark: SparkSession) -> None:
    def build(job: StatefulJob) -> dict[str, DataStream]:
        rows = job.from_collection([(*key, 1) for key in KEYS], f"{KEY}, n int", name="rows")
        names = ("day", "price", "ok", "raw", "small", "ratio", "at", "part", "n")
        return {"out": rows.key_by(*names).process(Remembers(), uid="remembers", output_type=int)}

    pipeline = Pipeline(tmp_path, spark, build, parallelism=2)
    pipeline.run()
    with pipeline.engine() as engine:
        frame = engine.read_state("pipeline", "remembers", "n")
        by_spark, kinds = frame.toArrow(), dict(frame.dtypes)
    assert kinds["day"] == "date"
    assert (kinds["price"], kinds["ok"], kinds["small"]) == ("decimal(10,2)", "boolean", "bigint")
    assert kinds["part"] == "struct<day:date,it's:decimal(5,1),deep:struct<ok:boolean>>"
    table = open_state.read_state(tmp_path / "root", "pipeline", "remembers", "n")
    assert sorted(map(repr, table.to_pylist())) == sorted(map(repr, by_spark.to_pylist()))

    def flat(value: Any) -> Any:
        return tuple(map(flat, value.values())) if isinstance(value, dict) else value

    shown = {tuple(map(flat, list(row.values())[:8])) for row in table.to_pylist()}
    assert shown == set(KEYS)


@pytest.mark.long
def test_times_and_key_groups_are_there_where_asked_for(memory: Memory) -> None:
    (row,) = [r for r in opened(memory, "last", metadata=True).to_pylist() if r["k"] == "c"]
    start = datetime(1970, 1, 1, tzinfo=UTC)
    assert row["updated_at"] == start + timedelta(milliseconds=1040)
    assert row["expires_at"] == start + timedelta(milliseconds=1140)
    assert 0 <= row["key_group"] < 8
    (row,) = [r for r in opened(memory, "all", metadata=True).to_pylist() if r["k"] == "a"]
    assert row["value"] == [5, 7, 2]
    assert row["expires_at"] == start + timedelta(milliseconds=1140)  # of the newest element
    assert opened(memory, "total", metadata=True)["expires_at"].null_count == 4


@pytest.mark.long
def test_no_java_is_started(memory: Memory) -> None:
    code = (
        "import sys, psutil\n"
        "from state_engine import open_state\n"
        "table = open_state.read_state(sys.argv[1], 'memory', 'remembers', 'total')\n"
        "print(table.num_rows, psutil.Process().children(recursive=True))\n"
    )
    project = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code, str(memory.root)],
        cwd=project,
        env={"JAVA_HOME": "/nowhere", "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "4 []"


@pytest.mark.long
def test_renamed_fields_read_alike_at_every_checkpoint(tmp_path: Path, spark: SparkSession) -> None:
    Pipeline(tmp_path, spark, keeping(Before)).run(max_batches=2)
    pipeline = Pipeline(tmp_path, spark, keeping(After))
    pipeline.run()
    with pipeline.engine() as engine:
        for checkpoint_id, name in ((2, "number"), (3, "minutes")):
            for state in ("one", "many", "by_number"):
                options: dict[str, Any] = {"checkpoint_id": checkpoint_id, "metadata": True}
                table = open_state.read_state(tmp_path / "root", "pipeline", "records", state, **options)
                frame = engine.read_state("pipeline", "records", state, **options)
                assert f"<{name}: int64" in str(table.schema.field("value").type)
                assert entries(table) == entries(frame.toArrow()) != [], (checkpoint_id, state)


def random_batch(rng: random.Random) -> list[Event]:
    keys = [(k, part) for k in "abc" for part in (1, 2)]
    # numbers differ, for they are the order of the batch
    return [(*rng.choice(keys), n) for n in rng.sample(range(-4, 15), 6)]


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_jobs_read_alike_with_and_without_spark(
    tmp_path: Path, spark: SparkSession, seed: int
) -> None:
    """Before and after compaction, restore and rescale, with all options."""
    rng = random.Random(seed)
    memory = Memory(tmp_path, spark)
    for number in range(5):
        memory.run(random_batch(rng))
        if number == 1 + seed % 2:
            memory.engine.compact("memory")
        if number == 3 and seed > 1:
            memory.engine.restore("memory", checkpoint_id=2)
        if number == 2 and seed == 3:
            memory.engine.rescale(memory.job(), parallelism=3)
    ids = [row.checkpoint_id for row in memory.engine.checkpoints("memory")]
    compared = 0
    for checkpoint_id in rng.sample(ids, 3) + ids[-1:]:
        for state in STATES:
            options = {
                "checkpoint_id": checkpoint_id,
                "include_expired": rng.random() < 0.4,
                "metadata": rng.random() < 0.5,
            }
            rows = entries(opened(memory, state, **options))
            assert rows == memory.seen(state, **options), (state, options)
            compared += len(rows)
    assert compared > 50
