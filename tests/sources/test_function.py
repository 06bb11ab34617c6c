"""Source functions in jobs: a finished one, draining; and recorded slices of lists and functions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pyspark.sql import SparkSession

from state_engine import (
    DataStream,
    KeyedProcessFunction,
    SourceFunction,
    StatefulJob,
    Types,
)
from state_engine.core.errors import SourceError
from state_engine.core.functions.checkpointed import ListCheckpointed
from state_engine.sources.base import Element
from state_engine.sources.collection import CollectionSource
from state_engine.sources.function import FunctionSource
from state_engine.sources.output_type import OutputType
from tests.support.pipelines import Pipeline

NO_SPARK: Any = None


class Six(SourceFunction):
    calls: ClassVar[list[int]] = []

    def run(self, ctx: Any) -> None:
        self.calls.append(1)
        for number in range(6):
            ctx.collect(number)

    def cancel(self) -> None:
        return None


class Feed(SourceFunction, ListCheckpointed):
    """What a list holds so far, then idle; returns at None."""

    items: ClassVar[list[int | None]] = []

    def __init__(self) -> None:
        self.at = 0

    def run(self, ctx: Any) -> None:
        while True:
            with ctx.get_checkpoint_lock():
                if self.at == len(self.items):
                    ctx.mark_as_temporarily_idle()
                    continue
                item = self.items[self.at]
                if item is None:
                    return
                ctx.collect(item)
                self.at += 1

    def cancel(self) -> None:
        return None

    def snapshot_state(self, checkpoint_id: int, timestamp: int) -> list[int]:
        return [self.at]

    def restore_state(self, state: list[int]) -> None:
        self.at = state[0]


def taken(source: FunctionSource, position: list[Any]) -> list[int] | None:
    """What the next micro-batch reads; the position moves on."""
    part = source.plan(NO_SPARK, position)
    if part is None:
        return None
    position += part.elements
    return list(part.detail[1])


def test_an_idle_source_is_run_again_and_a_finished_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    source = FunctionSource("feed", Feed(), OutputType.of(Types.LONG()), max_rows_per_batch=3)
    position: list[Any] = []
    monkeypatch.setattr(Feed, "items", [1, 2])
    assert [taken(source, position), taken(source, position)] == [[1, 2], None]
    monkeypatch.setattr(Feed, "items", [1, 2, 3, 4, 5, 6, None])
    assert [taken(source, position), taken(source, position)] == [[3, 4, 5], [6]]
    assert position[-1]["position"]["finished"]
    monkeypatch.setattr(Feed, "items", [*range(9)])
    assert taken(source, position) is None
    assert taken(source, position[:1]) == [2, 3, 4]


def test_a_source_that_ends_with_a_full_batch_says_so_in_an_empty_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = FunctionSource("feed", Feed(), OutputType.of(Types.LONG()), max_rows_per_batch=2)
    position: list[Any] = []
    monkeypatch.setattr(Feed, "items", [1, 2, None])
    assert [taken(source, position) for _ in range(3)] == [[1, 2], [], None]


class Reminds(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        ctx.timer_service().register_processing_time_timer(10_000 + value)
        ctx.timer_service().register_event_time_timer(value)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        yield ctx.time_domain().name, timestamp


@pytest.mark.spark
def test_a_finished_source_and_a_drained_job_go_on_where_they_were(
    tmp_path: Path, spark: SparkSession
) -> None:
    Six.calls.clear()

    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        numbers = job.source("six", Six(), output_type=Types.LONG(), max_rows_per_batch=6)
        reminded = numbers.key_by(lambda n: n % 2, key_type=int).process(
            Reminds(), uid="reminds", output_type="domain string, at bigint"
        )
        return {"numbers": numbers.map(lambda n: n, output_type=Types.LONG()), "reminded": reminded}

    pipeline = Pipeline(tmp_path, spark, build)
    for _ in range(4):
        pipeline.run(clock=500, max_batches=1)
    assert pipeline.outputs() == {"numbers": [*range(6)]}
    assert len(Six.calls) == 1

    assert len(pipeline.run(clock=600, drain=True).batches) == 1
    assert len(pipeline.run(clock=600, drain=True).batches) == 0
    assert pipeline.outputs()["reminded"] == [("EVENT_TIME", n) for n in range(6)]
    assert len(pipeline.run(clock=10_005).batches) == 1
    assert pipeline.outputs()["reminded"][6:] == [("PROCESSING_TIME", 10_000 + n) for n in range(6)]

    with pipeline.engine() as engine:
        rows = engine.checkpoints("pipeline")
        assert [r.drained for r in rows] == [False, True, False]
        assert '"finished": true' in rows[0].sources[0].position_to
        assert {r.sources[0].position_to for r in rows} == {rows[0].sources[0].position_to}


def collection(size: int, bound: int | None = None) -> CollectionSource:
    return CollectionSource("numbers", range(size), OutputType.of(Types.LONG()), max_rows_per_batch=bound)


def test_a_list_gives_the_same_elements_again() -> None:
    appended: list[list[Element]] = []
    while (part := collection(5, 2).plan(NO_SPARK, [e for a in appended for e in a])) is not None:
        appended.append(part.elements)
        before = [e for a in appended[:-1] for e in a]
        again = collection(9, 7).replan(NO_SPARK, before, part.elements)
        assert (again.elements, again.detail) == (part.elements, part.detail)
        assert (again.position_from, again.position_to) == (part.position_from, part.position_to)
    recorded = [e for a in appended for e in a]
    first = collection(9, 3).rebatch(NO_SPARK, [], recorded)
    assert first is not None
    second = collection(9, 3).rebatch(NO_SPARK, first.elements, recorded)
    assert second is not None
    assert (first.detail, second.detail) == ((0, 3), (3, 5))
    assert collection(9, 3).rebatch(NO_SPARK, second.elements, recorded) is None
    with pytest.raises(SourceError, match="5 elements were consumed and the list holds 4 now"):
        collection(4).replan(NO_SPARK, [], recorded)


class Ticks(SourceFunction):
    def run(self, ctx: Any) -> None:
        ctx.collect(1)

    def cancel(self) -> None:
        pass


def test_a_source_function_cannot_be_replayed_and_says_what_to_do() -> None:
    source = FunctionSource("ticks", Ticks(), OutputType.of(Types.LONG()), max_rows_per_batch=1)
    for call in (source.replan, source.rebatch):
        with pytest.raises(SourceError, match=r"'ticks': a SourceFunction cannot be replayed: .* of Ticks"):
            call(NO_SPARK, [], [{"split": "0", "position": {"rows": 1}}])
