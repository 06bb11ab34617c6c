"""Timers of whole jobs: cuts and parallelism change nothing, empty runs fire, draining fires the rest.

In memory; and on Spark where it matters who routes the rows, and that a new engine finds timers again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine import (
    DataStream,
    KeyedProcessFunction,
    ListStateDescriptor,
    RuntimeContext,
    StatefulJob,
)
from state_engine.core.errors import ConfigurationError
from tests.support.limits import SetLimits
from tests.support.pipelines import MemoryPipeline, Pipeline

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EVENTS = [
    ("a", 0),
    ("b", 2),
    ("h", 7),
    ("a", 8),
    ("c", 8),
    ("h", 9),
    ("b", 11),
    ("a", 12),
    ("c", 19),
    ("a", 30),
]


def rows(events: list[tuple[str, int]]) -> list[tuple[Any, ...]]:
    return [(k, EPOCH + timedelta(seconds=at)) for k, at in events]


class Silence(KeyedProcessFunction):
    """Reports a key that was silent for six seconds, and everything it saw of it."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", int))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        at = ctx.timestamp()
        assert at is not None
        for before in self.seen.get():
            ctx.timer_service().delete_event_time_timer(before * 1000 + 6_000)
        self.seen.add(at // 1000)
        ctx.timer_service().register_event_time_timer(at + 6_000)
        yield str(ctx.get_current_key()), "seen", at // 1000

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        yield str(ctx.get_current_key()), ",".join(map(str, self.seen.get())), timestamp // 1000
        self.seen.clear()


class Log(KeyedProcessFunction):
    """Keeps all elements of one key, in order."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.log = runtime_context.get_list_state(ListStateDescriptor("log", str))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        self.log.add("|".join(map(str, (value.k, value.what, value.at))))


OUT = "k string, what string, at bigint"


def build_for(cut: int | None, **source: Any) -> Any:
    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        events = job.from_collection(
            rows(EVENTS), "k string, at timestamp", name="events", max_rows_per_batch=cut,
            **({"order_by": ["at"], "event_time": "at"} | source),
        )  # fmt: skip
        silent = events.key_by("k").process(Silence(), uid="silence", output_type=OUT)
        everything = silent.key_by(lambda row: 1, key_type=int)
        return {
            "silent": silent,
            "log": everything.process(Log(), uid="log", output_type="x bigint"),
        }

    return build


# a's element at 8 finds its timer of 6 fired, because h's at 7 moved the watermark; c's at 19 comes before its of 14
EXPECTED = [
    ("a", "0", 6), ("a", "8,12", 18), ("b", "11", 17), ("b", "2", 8), ("c", "8,19", 25), ("h", "7,9", 15),
]  # fmt: skip


def timers_of(pipeline: Pipeline | MemoryPipeline) -> list[Any]:
    return sorted(o for o in pipeline.outputs()["silent"] if o[1] != "seen")


@pytest.mark.parametrize(("cut", "parallelism"), [(None, 1), (None, 3), (3, 2), (1, 2)])
def test_cuts_and_parallelism_change_nothing(cut: int | None, parallelism: int) -> None:
    with MemoryPipeline.of(build_for(cut), parallelism=parallelism) as pipeline:
        check_timers(pipeline)


@pytest.mark.spark
def test_nor_does_it_matter_who_routes_the_rows(
    tmp_path: Path, spark: SparkSession, limits: SetLimits
) -> None:
    limits(rows=-1)
    check_timers(Pipeline(tmp_path, spark, build_for(None), parallelism=3))


@cache
def whole_log() -> list[Any]:
    """What the chained operator sees where all elements come at once, to one subtask."""
    with MemoryPipeline.of(build_for(None)) as pipeline:
        pipeline.run()
        return pipeline.state("log", "log")


def check_timers(pipeline: Pipeline | MemoryPipeline) -> None:
    """The outputs of timers, their order in a chained operator, and the state."""
    pipeline.run()
    assert timers_of(pipeline) == EXPECTED
    assert pipeline.state("silence", "seen") == [("a", [30])]
    assert pipeline.state("log", "log") == whole_log()
    in_order = [line for _, lines in whole_log() for line in lines]
    assert (
        in_order.index("h|seen|7")
        < in_order.index("a|0|6")
        < in_order.index("a|seen|8")
        < in_order.index("h|seen|9")
        < in_order.index("b|2|8")
        < in_order.index("b|seen|11")
    )
    assert in_order.index("c|seen|19") < in_order.index("h|7,9|15") < in_order.index("b|11|17")
    assert len(in_order) == len(EVENTS) + len(EXPECTED)


@pytest.mark.spark
def test_the_rest_fires_when_the_input_has_ended(tmp_path: Path, spark: SparkSession) -> None:
    pipeline = Pipeline(tmp_path, spark, build_for(None), parallelism=2)
    pipeline.run()
    assert len(pipeline.run().batches) == 0
    drained = pipeline.run(drain=True, parallelism=3)
    assert len(drained.batches) == 1
    assert timers_of(pipeline) == sorted([*EXPECTED, ("a", "30", 36)])
    assert pipeline.state("silence", "seen") == []
    assert len(pipeline.run(drain=True).batches) == 0


def test_merged_outputs_of_timers_need_the_event_time_first_in_the_order() -> None:
    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        streams = dict(build_for(None, order_by=[])(job))
        other = job.from_collection([("z", "seen", 1)], OUT, name="other")
        merged = (
            streams["silent"].union(other).key_by("k").process(Log(), uid="merged", output_type="x bigint")
        )
        return streams | {"merged": merged}

    printed = r"operator 'silence'.*begin order_by of each source.*with its event_time column.*\['events'\]"
    with pytest.raises(ConfigurationError, match=printed), MemoryPipeline.of(build):
        pass


class Remind(KeyedProcessFunction):
    """Emits an element again after a second of processing time, twice."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + 1_000)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        assert ctx.time_domain().name == "PROCESSING_TIME"
        if timestamp <= 2_500:
            ctx.timer_service().register_processing_time_timer(timestamp + 1_000)
        yield ctx.get_current_key(), timestamp


def test_processing_time_timers_fire_on_runs_without_data() -> None:
    """Also for keys whose declared type is not the stored one, and into chained operators."""

    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        days = job.from_collection([(EPOCH.date(),)], "day date", name="days")
        reminded = days.key_by("day").process(Remind(), uid="remind", output_type="day date, at bigint")
        return {"reminded": reminded, "again": reminded.map(lambda r: r.at + 1, output_type="bigint")}

    with MemoryPipeline.of(build, parallelism=2) as pipeline:
        assert len(pipeline.run(clock=500).batches) == 1
        assert len(pipeline.run(clock=1_499).batches) == 0
        assert len(pipeline.run(clock=1_500, parallelism=3).batches) == 1
        assert pipeline.outputs() == {"reminded": [(EPOCH.date(), 1_500)], "again": [1_501]}
        assert len(pipeline.run(clock=9_000).batches) == 1
        assert len(pipeline.run(clock=99_000).batches) == 0
        assert pipeline.outputs()["reminded"][1:] == [(EPOCH.date(), 2_500), (EPOCH.date(), 3_500)]


def test_a_running_job_may_get_event_time_and_lose_it() -> None:
    """Timers stay stored meanwhile; where it comes back, the watermark begins with the rows that come."""
    shown: list[tuple[int, str | None]] = [(1, None), (3, "at"), (4, None), (6, "at")]

    def build_up_to(rows_so_far: int, event_time: str | None) -> Any:
        def build(job: StatefulJob) -> Mapping[str, DataStream]:
            given = rows([("a", 0), ("a", 10), ("b", 20), ("a", 90), ("b", 26), ("b", 27)])[:rows_so_far]
            stream = job.from_collection(
                given, "k string, at timestamp", name="events", order_by=["at"], event_time=event_time
            )
            return {
                "out": stream.key_by("k").process(Sixth(), uid="sixth", output_type="k string, at bigint")
            }

        return build

    watermarks = []
    with MemoryPipeline.of(build_up_to(*shown[0])) as pipeline:
        for rows_so_far, event_time in shown:
            pipeline.run(build=build_up_to(rows_so_far, event_time))
            watermarks.append(pipeline.checkpoints()[-1].watermark_ms)
        assert watermarks == [None, 19_999, None, 26_999]
        # b's of 26 s waited while there was no event time
        assert pipeline.outputs()["out"] == [("a", 16_000), ("b", 26_000)]


class Sixth(KeyedProcessFunction):
    """Emits an element again after six seconds, where it has an event time."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        at = ctx.timestamp()
        if at is not None:
            ctx.timer_service().register_event_time_timer(at + 6_000)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        yield str(ctx.get_current_key()), timestamp
