"""``debug`` finds a key of every type that keys can have, runs it as recorded, and writes a test of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from state_engine import (
    DeltaSink,
    FileSource,
    Instant,
    KeyedProcessFunction,
    Row,
    RuntimeContext,
    StateEngine,
    StatefulJob,
    Types,
    ValueStateDescriptor,
)
from state_engine.replay.key_debug import DebuggedKey
from state_engine.testing import subtasks_in_process
from tests.replay.test_random_keys import keys_of
from tests.support.key_samples import COMPOSITES, KINDS, arrow_column, random_keys

pytestmark = [pytest.mark.spark, pytest.mark.more]

ROWS = 8
COLUMNS: dict[str, tuple[str, ...]] = {kind: (kind,) for kind in KINDS} | {
    "_".join(kinds): tuple(f"part_{kind}" for kind in kinds) for kinds in COMPOSITES
}


@dataclass(frozen=True)
class Shelf:
    """A key that is a record of a class."""

    letter: str
    number: int


def shelf(row: Any) -> Shelf:
    return Shelf("ab"[row.n % 2], row.n % 3)


def named(row: Any) -> Row:
    return Row(letter="ab"[row.n % 2], number=row.n % 3)


SELECTED: dict[str, tuple[Any, Any]] = {
    "time": (lambda row: time(row.n % 3, 30), Types.SQL_TIME()),
    "instant": (lambda row: Instant.of_epoch_milli(1000 * row.n), Types.INSTANT()),
    "tuple": (lambda row: (row.n % 2, "x"), Types.TUPLE([Types.LONG(), Types.STRING()])),
    "row": (named, Types.ROW_NAMED(["letter", "number"], [Types.STRING(), Types.LONG()])),
    "record": (shelf, Shelf),
}
"""Keys that a function makes, of types that columns do not have."""


class Counts(KeyedProcessFunction):
    """How many rows a key had, and its texts."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", int, default=0))
        self.text = runtime_context.get_state(ValueStateDescriptor("text", str))

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        self.seen.update(self.seen.value() + 1)
        self.text.update(repr(ctx.get_current_key()))
        ctx.timer_service().register_processing_time_timer(1500)
        yield value.n, self.seen.value()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        yield -1, self.seen.value()


def job_of(directory: Path) -> StatefulJob:
    job = StatefulJob("keys", parallelism=2, max_parallelism=8)
    rows = job.source("rows", FileSource(str(directory / "rows"), format="parquet"), order_by=["n"])
    keyed = {name: rows.key_by(*columns) for name, columns in COLUMNS.items()}
    keyed |= {name: rows.key_by(made, key_type=kind) for name, (made, kind) in SELECTED.items()}
    for name, stream in keyed.items():
        out = stream.process(Counts(), uid=name, output_type="n bigint, seen bigint")
        out.sink(name, DeltaSink(str(directory / "out" / name)))
    return job


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Path:
    """Two micro-batches; the second has the keys of the first, and others."""
    directory = tmp_path_factory.mktemp("keys")
    (directory / "rows").mkdir()
    columns = random_keys(seed=5, rows=ROWS)
    types = {name: KINDS[name.removeprefix("part_")][0] for name in columns}
    with subtasks_in_process(spark), StateEngine(directory / "root", spark) as engine:
        for number in (0, 1):
            arrays = {
                name: arrow_column(values[number : ROWS - 1 + number], types[name])
                for name, values in columns.items()
            }
            numbers = pa.array(range(10 * number, 10 * number + ROWS - 1), pa.int64())
            pq.write_table(pa.table(arrays | {"n": numbers}), directory / "rows" / f"{number}.parquet")
            engine.run(job_of(directory), clock=1000 * number)
    return directory


@pytest.mark.parametrize("name", [*COLUMNS, *SELECTED])
def test_a_key_of_any_type_does_what_was_recorded(
    site: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(site)
    keys = [key for uid, key in keys_of(site / "root", job) if uid == name]
    assert len(keys) > 1
    with StateEngine(site / "root") as engine:
        for number, key in enumerate(keys[:: max(1, len(keys) // 2)]):
            done = engine.debug(job, key, operator=name, from_checkpoint=1)
            (one,) = done.operators
            assert done.same
            assert not [problem for batch in one.batches for problem in batch.problems]
            texts = {state.value for batch in one.batches for state in batch.states if state.name == "text"}
            assert len(texts - {None}) == 1
            counted = [sum(step.element is not None for step in batch.steps) for batch in one.batches]
            assert sum(counted) >= 1
            file = tmp_path / f"test_{number}.py"
            done.write_test(file)
            monkeypatch.setattr("state_engine.registry.project_job", lambda _: job)
            names: dict[str, Any] = {}
            exec(compile(file.read_text(), str(file), "exec"), names)
            names[f"test_{name}_from_checkpoint_{first_of(one)}"]()


def first_of(one: DebuggedKey) -> int:
    """The first micro-batch in which something happened."""
    return next(batch.checkpoint_id for batch in one.batches if batch.steps)
