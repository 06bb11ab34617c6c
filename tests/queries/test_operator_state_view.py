"""The view ``operator_state``: each element of each list as of a checkpoint, under the types that the code had then."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from state_engine import (
    CheckpointedFunction,
    DataStream,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessFunction,
    StatefulJob,
    Types,
)
from tests.support.pipelines import Pipeline


@dataclass(frozen=True)
class Before:
    delay: int
    at: time
    day: date | None = None
    price: Decimal = Decimal("1.50")


@dataclass(frozen=True)
class After:
    """As ``Before``, with a renamed field and two new ones, of which one has a default."""

    minutes: int = field(metadata={"alias": "delay"})
    at: time
    day: date | None = None
    price: Decimal = Decimal("1.50")
    runway: str = "unknown"
    origin: str | None = None


class Holds(ProcessFunction, CheckpointedFunction):
    """A record in each kind of list, a number that grows, and bytes."""

    def __init__(self, record: type, number: Any, *, raw: bool) -> None:
        self.record, self.number, self.has_raw = record, number, raw

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.split = store.get_list_state(ListStateDescriptor("split", self.record))
        self.union = store.get_union_list_state(ListStateDescriptor("union", self.record))
        self.shared = store.get_broadcast_state(MapStateDescriptor("shared", str, self.record))
        self.numbers = store.get_list_state(ListStateDescriptor("numbers", self.number))
        self.raw = context.raw_operator_state.read()

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        record = self.record(value, time(9, 30), date(2026, 1, 5))
        self.split.add(record)
        self.union.update([record])
        self.shared.put("last", record)
        self.numbers.add(value)
        self.raw = bytes([value])
        yield value

    def snapshot_state(self, context: Any) -> None:
        if self.has_raw:
            context.raw_operator_state.write(self.raw)


OLD = {"delay": 1, "at": 34_200_000_000, "day": "2026-01-05", "price": "1.500000000000000000"}
NEW = (
    {"minutes": 1}
    | {name: OLD[name] for name in ("at", "day", "price")}
    | {"runway": "unknown", "origin": None}
)
"""A time of day is shown as it is stored."""


def ran(tmp_path: Path, spark: SparkSession, *, raw: bool) -> Pipeline:
    """Two micro-batches, the second with code of other types."""
    types: list[Any] = [Before, Types.INT()]

    def build(job: StatefulJob) -> dict[str, DataStream]:
        numbers = job.from_collection([1, 2], int, name="numbers", max_rows_per_batch=1)
        return {"out": numbers.process(Holds(*types, raw=raw), uid="holds", output_type=int)}

    made = Pipeline(tmp_path, spark, build, parallelism=1)
    made.run(max_batches=1)
    types[:] = [After, Types.LONG()]
    made.run()
    return made


def shown(pipeline: Pipeline, checkpoint_id: int | None = None) -> dict[str, list[Any]]:
    """By state, its elements in their order: JSON, or bytes."""
    text = "SELECT state, value, bytes FROM operator_state WHERE operator = 'holds' ORDER BY state, subtask, position"
    with pipeline.engine() as engine:
        rows = engine.sql("pipeline", text, checkpoint_id=checkpoint_id).collect()
    elements: dict[str, list[Any]] = {}
    for row in rows:
        of_state = elements.setdefault(row.state, [])
        of_state.append(json.loads(row.value) if row.bytes is None else bytes(row.bytes))
    return elements


def test_elements_are_shown_as_the_code_of_their_checkpoint_wrote_them(
    tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = ran(tmp_path, spark, raw=True)
    first, second = shown(pipeline, 1), shown(pipeline)
    assert [first["split"], first["union"], first["numbers"]] == [[OLD], [OLD], [1]]
    assert first["shared"] == [{"key": "last", "value": OLD}]
    assert second["split"] == [NEW, NEW | {"minutes": 2}]
    assert second["union"] == [NEW | {"minutes": 2}]
    assert second["shared"] == [{"key": "last", "value": NEW | {"minutes": 2}}]
    assert second["numbers"] == [1, 2]
    raw = [
        [one for elements in of.values() for one in elements if isinstance(one, bytes)]
        for of in (first, second)
    ]
    assert raw == [[b"\1"], [b"\2"]]


def test_a_restore_and_another_parallelism_show_what_each_subtask_has(
    tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = ran(tmp_path, spark, raw=False)
    with pipeline.engine() as engine:
        engine.rescale(pipeline.job(), parallelism=2)
        places = engine.sql(
            "pipeline",
            "SELECT state, scheme, subtask, position FROM operator_state WHERE state = 'split' ORDER BY ALL",
        )
        assert {row.scheme for row in places.collect()} == {"even_split"}
    assert shown(pipeline)["split"] == [NEW, NEW | {"minutes": 2}]
    with pipeline.engine() as engine:
        engine.restore(pipeline.job(), checkpoint_id=1)
    assert shown(pipeline)["split"] == [OLD]
