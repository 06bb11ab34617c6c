"""A key that is a record, with a value state: over micro-batches, read by SQL and without Spark, rescaled, restored."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import Row, SparkSession

from state_engine import (
    DataStream,
    DeltaSink,
    KeyedProcessFunction,
    RuntimeContext,
    StateEngine,
    StatefulJob,
    ValueStateDescriptor,
    open_state,
)
from state_engine.core.types.types_namespace import Types

pytestmark = pytest.mark.spark


@dataclass(frozen=True)
class Seat:
    row: int
    letter: str


@dataclass(frozen=True)
class Ticket:
    flight: str
    seat: Seat


ROWS = [
    ("f1", 1, "A", 1),
    ("f1", 1, "B", 2),
    ("f2", 1, "A", 3),
    ("f1", 1, "A", 4),
    ("f1", 1, "B", 5),
    ("f1", 1, "A", 6),
]
"""Three micro-batches."""
SUMS = {("f1", (1, "A")): 11, ("f1", (1, "B")): 7, ("f2", (1, "A")): 3}
AFTER_TWO = {("f1", (1, "A")): 5, ("f1", (1, "B")): 2, ("f2", (1, "A")): 3}
SEAT = Types.ROW_NAMED(["row", "letter"], [Types.LONG(), Types.STRING()])


OPERATORS = {"dataclasses": "Ticket", "rows": "Row", "columns": "Row"}
"""And what each is given as its key."""


class Sum(KeyedProcessFunction):
    """The sum of a key, as a value state; emits the type of its key, too."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", int, default=0))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        self.total.update(self.total.value() + value.n)
        yield type(ctx.get_current_key()).__name__, self.total.value()


def build(directory: Path, *, parallelism: int = 2, max_parallelism: int = 8) -> StatefulJob:
    job = StatefulJob("records", parallelism=parallelism, max_parallelism=max_parallelism)
    rows = job.from_collection(
        ROWS, "flight string, row bigint, letter string, n bigint", name="tickets", max_rows_per_batch=2
    )
    nested = rows.transform(
        lambda frame: frame.selectExpr("struct(flight, struct(row, letter) AS seat) AS ticket", "n"),
        order_by="n",
    )
    keyed: dict[str, DataStream] = {
        "dataclasses": rows.key_by(lambda r: Ticket(r.flight, Seat(r.row, r.letter)), key_type=Ticket),
        "rows": rows.key_by(
            lambda r: Row(flight=r.flight, seat=Row(row=r.row, letter=r.letter)),
            key_type=Types.ROW_NAMED(["flight", "seat"], [Types.STRING(), SEAT]),
        ),
        "columns": nested.key_by("ticket"),
    }
    for uid, stream in keyed.items():
        summed = stream.process(Sum(), uid=uid, output_type="kind string, total bigint")
        summed.sink(uid, DeltaSink(str(directory / uid)))
    return job


def by_sql(engine: StateEngine, uid: str, **options: Any) -> dict[Any, int]:
    key = "ticket.flight, ticket.seat" if uid == "columns" else "flight, seat"
    rows = engine.sql("records", f"SELECT {key}, value FROM {uid}__total", **options).collect()
    return {(row[0], tuple(row[1])): row[2] for row in rows}


def without_spark(directory: Path, uid: str) -> dict[Any, int]:
    rows = open_state.read_state(directory / "root", "records", uid, "total").to_pylist()
    keys = [row["ticket"] if uid == "columns" else row for row in rows]
    return {(k["flight"], tuple(k["seat"].values())): row["value"] for k, row in zip(keys, rows, strict=True)}


def test_records_are_keys_of_value_states(tmp_path: Path, spark: SparkSession) -> None:
    with StateEngine(tmp_path / "root", spark) as engine:
        assert len(engine.run(build(tmp_path)).batches) == 3
        for uid in OPERATORS:
            assert by_sql(engine, uid) == without_spark(tmp_path, uid) == SUMS, uid
        engine.rescale(build(tmp_path), parallelism=3)
        engine.restore(build(tmp_path, parallelism=3), checkpoint_id=2)
        assert by_sql(engine, "columns") == AFTER_TWO
        assert len(engine.run(build(tmp_path, parallelism=3)).batches) == 1
        for uid in OPERATORS:
            assert without_spark(tmp_path, uid) == SUMS, uid
    for uid in OPERATORS:
        rows = DeltaTable(str(tmp_path / uid)).to_pyarrow_table().to_pylist()
        assert sorted(row["total"] for row in rows) == [1, 2, 3, 5, 7, 11], uid
        assert {row["kind"] for row in rows} == {OPERATORS[uid]}
