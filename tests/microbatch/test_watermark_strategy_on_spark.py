"""``WatermarkStrategy`` in whole jobs: timers fire where a column of timestamps would have them fire.

In memory, and on Spark where the tasks that read rows evaluate it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine import (
    DataStream,
    KeyedProcessFunction,
    StatefulJob,
    TimestampAssigner,
    WatermarkStrategy,
)
from state_engine.core.errors import ConfigurationError, UserFunctionError
from tests.support.limits import SetLimits
from tests.support.pipelines import MemoryPipeline, Pipeline

EVENTS = [("a", 10), ("b", 12), ("a", 11), ("b", 30), ("a", 36), ("b", 20), ("a", 50)]
OUT = "k string, what string, at bigint"
# one second of out-of-orderness: b's of 12 s wakes at 17 s, which 30 s lets fire; a's of 10 and 11 s likewise
TIMERS = [("a", "woke", 15_000), ("a", "woke", 16_000), ("a", "woke", 41_000), ("b", "woke", 17_000),
          ("b", "woke", 25_000), ("b", "woke", 35_000)]  # fmt: skip
SEEN = [("a", 10, None), ("b", 12, 8_999), ("a", 11, 10_999), ("b", 30, 10_999), ("a", 36, 28_999), ("b", 20, 34_999),
        ("a", 50, 34_999)]  # fmt: skip


class Wakes(KeyedProcessFunction):
    """Sets a timer five seconds after each element, and emits the element with the watermark."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        at = ctx.timestamp()
        assert at is not None
        assert at == value.at * 1_000
        assert list(value.as_dict()) == ["k", "at"]
        ctx.timer_service().register_event_time_timer(at + 5_000)
        yield str(value.k), f"at {value.at}", ctx.timer_service().current_watermark()

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        yield str(ctx.get_current_key()), "woke", timestamp


class AtSeconds(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        assert record_timestamp == -(2**63)
        return int(value.at * 1_000)


class Stamps(KeyedProcessFunction):
    """Gives the time of each element."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        yield str(value.k), "seen", ctx.timestamp()

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> None:
        """Gives up the timers of the function that was here before."""


BOUNDED = WatermarkStrategy.for_bounded_out_of_orderness(1_000)
FITTING = BOUNDED.with_timestamp_assigner(lambda value: 7_000 if value.at > 100 else value.at * 1_000)
STRATEGIES = {
    "assigner": BOUNDED.with_timestamp_assigner(AtSeconds()),
    "callable": BOUNDED.with_timestamp_assigner(lambda value: value.at * 1_000),
    "column": BOUNDED.with_timestamp_column("at", "s"),
}


def build_for(cut: int | None, strategy: WatermarkStrategy, events: list[Any] = EVENTS) -> Any:
    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        stream = job.from_collection(
            events, "k string, at bigint", name="events", max_rows_per_batch=cut
        ).assign_timestamps_and_watermarks(strategy)
        return {
            "woke": stream.key_by("k").process(Wakes(), uid="wakes", output_type=OUT),
            "raw": stream,
        }

    return build


@pytest.mark.parametrize(
    ("kind", "cut", "parallelism"), [("assigner", 1, 1), ("callable", None, 2), ("column", 3, 2)]
)
def test_timers_fire_at_the_right_times(kind: str, cut: int | None, parallelism: int) -> None:
    with MemoryPipeline.of(build_for(cut, STRATEGIES[kind]), parallelism=parallelism) as pipeline:
        check_timers(pipeline)


@pytest.mark.spark
@pytest.mark.parametrize(("kind", "parallelism"), [("assigner", 2), ("column", 1)])
def test_timers_fire_at_the_right_times_where_tasks_read_the_rows(
    tmp_path: Path, spark: SparkSession, limits: SetLimits, kind: str, parallelism: int
) -> None:
    limits(rows=-1)
    check_timers(Pipeline(tmp_path, spark, build_for(None, STRATEGIES[kind]), parallelism=parallelism))


def check_timers(pipeline: Pipeline | MemoryPipeline) -> None:
    pipeline.run()
    outputs = pipeline.outputs()
    assert sorted(o for o in outputs["woke"] if o[1] == "woke") == TIMERS
    seen = {(k, what): mark for k, what, mark in outputs["woke"] if what != "woke"}
    assert seen == {(k, f"at {at}"): -(2**63) if mark is None else mark for k, at, mark in SEEN}
    assert sorted(outputs["raw"]) == sorted(EVENTS)  # no column came along
    assert pipeline.checkpoints()[-1].watermark_ms == 48_999


def test_a_strategy_behind_a_map_and_a_filter() -> None:
    with MemoryPipeline.of(filtered(1), parallelism=2) as pipeline:
        check_filtered(pipeline)


@pytest.mark.spark
def test_a_strategy_behind_a_map_and_a_filter_where_tasks_read_the_rows(
    tmp_path: Path, spark: SparkSession, limits: SetLimits
) -> None:
    limits(rows=-1)
    check_filtered(Pipeline(tmp_path, spark, filtered(None), parallelism=2))


def filtered(cut: int | None) -> Callable[[StatefulJob], Mapping[str, DataStream]]:
    """The same timers and watermarks: what the filter leaves out is far ahead of everything, and moves neither."""
    texts = [text for k, at in EVENTS for text in (f"{k},{at}", "left out,9000")]

    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        stream = (
            job.from_collection(texts, str, name="events", max_rows_per_batch=cut)
            .map(lambda text: (text.split(",")[0], int(text.split(",")[1])), "k string, at bigint")
            .filter(lambda row: row.k != "left out")
            .assign_timestamps_and_watermarks(STRATEGIES["callable"])
        )
        return {"woke": stream.key_by("k").process(Wakes(), uid="wakes", output_type=OUT)}

    return build


def check_filtered(pipeline: Pipeline | MemoryPipeline) -> None:
    pipeline.run()
    outputs = pipeline.outputs()["woke"]
    assert sorted(o for o in outputs if o[1] == "woke") == TIMERS
    seen = {(k, what): mark for k, what, mark in outputs if what != "woke"}
    assert seen == {(k, f"at {at}"): -(2**63) if mark is None else mark for k, at, mark in SEEN}
    assert pipeline.checkpoints()[-1].watermark_ms == 48_999


@pytest.mark.spark
def test_elements_without_a_time_are_refused(tmp_path: Path, spark: SparkSession, limits: SetLimits) -> None:
    strategy = BOUNDED.with_timestamp_assigner(lambda value: 1_000 * (10 // value.at) * value.at)
    events = [("a", 10), ("b", 0), ("a", 5)]
    failing = Pipeline(
        tmp_path / "fail", spark, lambda job: {"woke": build_for(None, strategy, events)(job)["woke"]}
    )
    with pytest.raises(UserFunctionError, match="timestamp assigner: ZeroDivisionError") as refused:
        failing.run()
    assert "source 'events'" in str(refused.value)
    for few in (True, False):
        limits(rows=20_000 if few else -1)
        kept = Pipeline(
            tmp_path / f"kept_{few}", spark, build_for(None, BOUNDED.with_timestamp_column("at", "s"),
                                                       [("a", 10), ("b", 2**62), ("a", 5)]),
            on_error="dead_letter",
        )  # fmt: skip
        kept.run()
        with kept.engine() as engine:
            letters = engine.dead_letters("pipeline").collect()
        assert [json.loads(letter["row"])["k"] for letter in letters] == ["b"]
        assert "the column 'at' is not a time in s since 1970" in letters[0]["error"]
        with kept.engine() as engine:
            assert [one.problem for one in engine.list_dead_letters(kept.job())] == [""]
            # once more without a time, then with one
            for strategy, left in ((BOUNDED.with_timestamp_column("at", "s"), 1), (FITTING, 0)):
                again = build_for(None, strategy, [("a", 10), ("b", 2**62), ("a", 5)])
                job = Pipeline(tmp_path / f"kept_{few}", spark, again, on_error="dead_letter").job()
                job.operators["wakes"].function = Stamps()
                sent = engine.replay_dead_letters(job)
                assert (len(sent.sent), sent.refused) == (1, left)
        assert [o for o in kept.outputs()["woke"] if o[0] == "b"] == [("b", "seen", 7_000)]
        assert [o for o in kept.outputs()["woke"] if o[1] == "woke"] == []


@pytest.mark.spark
def test_a_transform_that_makes_rows_without_time_is_named(tmp_path: Path, spark: SparkSession) -> None:
    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        stream = job.from_collection(EVENTS, "k string, at bigint", name="events", order_by=["at"])
        stream = stream.assign_timestamps_and_watermarks(STRATEGIES["column"])
        bare = stream.transform(lambda f: f.mapInArrow(lambda batches: batches, f.schema))
        return {"woke": bare.key_by("k").process(Wakes(), uid="wakes", output_type=OUT)}

    with pytest.raises(
        ConfigurationError, match="event time of an operator's outputs, or of a WatermarkStrategy"
    ):
        Pipeline(tmp_path, spark, build).run()
