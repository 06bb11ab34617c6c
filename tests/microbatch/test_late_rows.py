"""Late rows in whole jobs, against a plain loop: where they go, in which order, and how many are counted.

In memory at random cuts and parallelisms, and on Spark, where tasks route the rows and where the driver does.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from state_engine import (
    DataStream,
    FileSource,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessFunction,
    RuntimeContext,
    SinkFunction,
    StatefulJob,
    ValueStateDescriptor,
)
from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.errors import UserFunctionError
from state_engine.testing import CollectSink, run_in_memory
from tests.support.limits import NOTHING_BY_DRIVER, SetLimits
from tests.support.pipelines import MemoryPipeline, Pipeline

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DELAYS_MS = {"left": 3, "right": 0}
EVENT = "n bigint, k string, at timestamp"
SEEN = "n bigint, k string, count bigint, late boolean"
LATE = OutputTag("late", EVENT)
Build = Callable[[StatefulJob], Mapping[str, DataStream]]


class Event(NamedTuple):
    """The ``n``-th event of all sources; even numbers are of the source ``left``."""

    n: int
    k: str
    at: datetime | None

    @property
    def source(self) -> str:
        return ("left", "right")[self.n % 2]

    @property
    def at_ms(self) -> int | None:
        return None if self.at is None else (self.at - EPOCH) // timedelta(milliseconds=1)


def events(seed: int, count: int = 60) -> list[Event]:
    """Some of them old, some as old as the watermark is, some without a time; only old ones have the key ``old``."""
    rng, newest, made = random.Random(seed), 100, []
    for n in range(count):
        newest += rng.choice([0, 1, 3])
        behind = rng.choice([0, 0, 1, 3, 4, 5, 6, 30])
        at = None if rng.random() < 0.05 else EPOCH + timedelta(milliseconds=newest - behind)
        made.append(Event(n, "old" if behind == 30 and n > 5 and at else rng.choice("abc"), at))
    return made


@dataclass
class Model:
    """What a plain loop makes of events, in their order."""

    seen: list[Any] = field(default_factory=list)
    late: list[Event] = field(default_factory=list)
    behind: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Iterable[Event], diverted: set[str], *, sources: set[str]) -> Model:
        model, counts, newest = cls(), Counter[str](), dict[str, int]()
        for event in given:
            at = event.at_ms
            marks = [newest[s] - DELAYS_MS[s] - 1 for s in sources if s in newest]
            late = at is not None and len(marks) == len(sources) and at <= min(marks)
            if late:
                model.behind[event.n] = event.source
            if late and event.source in diverted:
                model.late.append(event)
            else:
                counts[event.k] += 1
                model.seen.append((event.n, event.k, counts[event.k], late))
            if at is not None:
                newest[event.source] = max(at, newest.get(event.source, at))
        return model

    def counts(self, of: range) -> dict[str, int]:
        """Late events by source among those with these numbers."""
        counts = Counter(source for n, source in self.behind.items() if n in of)
        return {source: counts[source] for source in counts}


class Counts(KeyedProcessFunction):
    """Numbers the elements of each key; a timer goes with each, which changes nothing and is never late."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", int, default=0))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        self.count.update(self.count.value() + 1)
        at = ctx.timestamp()
        if at is not None:
            ctx.timer_service().register_event_time_timer(at + 2)
        yield value.n, value.k, self.count.value(), ctx.is_late()

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        if ctx.is_late():
            raise AssertionError("a timer is late")
        return []


class CountsBoth(KeyedCoProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", int, default=0))

    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterable[Any]:
        self.count.update(self.count.value() + 1)
        yield value.n, value.k, self.count.value(), ctx.is_late()

    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterable[Any]:
        yield from self.process_element1(value, ctx)


class Lists(ProcessFunction):
    """Gives the elements of the late side output as it gets them; all of them are late here, too."""

    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterable[Any]:
        if not ctx.is_late() or ctx.timestamp() != Event(*value).at_ms:
            raise AssertionError(f"{value} is not late")
        yield value.n, value.k, value.at


def read(job: StatefulJob, name: str, given: list[Event], cut: int | None, **options: Any) -> DataStream:
    own = [one for one in given if one.source == name]
    return job.from_collection(
        own, EVENT, name=name, order_by=["n"], event_time="at", max_out_of_orderness=DELAYS_MS[name],
        max_rows_per_batch=cut, **options,
    )  # fmt: skip


def looked_at(seen: DataStream) -> Mapping[str, DataStream]:
    """The outputs of an operator, its late elements, and these again behind an operator of one subtask."""
    late = seen.get_side_output(LATE)
    listed = late.process(Lists(), uid="lists", output_type=EVENT).set_parallelism(1)
    return {"seen": seen, "late": late, "listed": listed}


def of_one(given: list[Event], cut: int | None) -> Build:
    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        keyed = read(job, "left", given, cut, late_to=LATE).key_by("k")
        return looked_at(keyed.process(Counts(), uid="counts", output_type=SEEN))

    return build


def of_a_union(given: list[Event], cut: int | None) -> Build:
    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        both = read(job, "left", given, cut, late_to=LATE).union(read(job, "right", given, cut))
        return looked_at(both.key_by("k").process(Counts(), uid="counts", output_type=SEEN))

    return build


def of_connected(given: list[Event], cut: int | None) -> Build:
    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        left, right = (
            read(job, "left", given, cut, late_to=LATE),
            read(job, "right", given, cut, late_to=LATE),
        )
        both = left.connect(right).key_by("k", "k")
        return looked_at(both.process(CountsBoth(), uid="counts", output_type=SEEN))

    return build


class Case(NamedTuple):
    build: Callable[[list[Event], int | None], Build]
    sources: set[str]
    diverted: set[str]

    def of(self, given: list[Event]) -> tuple[list[Event], Model]:
        """The events that its sources give, and what becomes of them."""
        own = [one for one in given if one.source in self.sources]
        return own, Model.of(own, self.diverted, sources=self.sources)


CASES = {
    "one source": Case(of_one, {"left"}, {"left"}),
    "a union with a source whose late rows stay": Case(of_a_union, {"left", "right"}, {"left"}),
    "two connected streams": Case(of_connected, {"left", "right"}, {"left", "right"}),
}


def counted(rows: Iterable[CheckpointRow]) -> list[dict[str, int]]:
    """Late rows by source, a dict a checkpoint."""
    return [{s.name: s.behind_watermark for s in row.sources if s.behind_watermark} for row in rows]


def check(pipeline: Pipeline | MemoryPipeline, given: list[Event], model: Model, cut: int | None) -> None:
    outputs, rows = pipeline.outputs(), pipeline.checkpoints()
    assert sorted(outputs["seen"]) == model.seen
    assert [one[0] for one in outputs["listed"]] == [one.n for one in model.late]
    assert sorted(outputs["late"]) == model.late
    kept = Counter(k for _, k, _, _ in model.seen)
    assert pipeline.state("counts", "count") == sorted(kept.items())
    whole = 2 * len(given) if cut is None else 2 * cut  # numbers of a micro-batch
    slices = [range(at, at + whole) for at in range(0, given[-1].n + 1, whole)]
    assert counted(rows) == [model.counts(one) for one in slices]
    assert [row.behind_watermark for row in rows] == [sum(model.counts(one).values()) for one in slices]
    assert sum(row.rows_in for row in rows) == len(given)
    assert sum(s.rows for row in rows for s in row.sources) == len(given)


@pytest.mark.more
@pytest.mark.parametrize("what", CASES)
@pytest.mark.parametrize("seed", [0, 8, *[pytest.param(n, marks=pytest.mark.long) for n in (3, 6)]])
def test_neither_cuts_nor_parallelism_show(what: str, seed: int) -> None:
    rng = random.Random(seed)
    given, model = CASES[what].of(events(seed))
    assert len(model.late) > 3
    assert "old" not in {k for _, k, _, _ in model.seen} or what.startswith("a union")
    for cut, parallelism in ((None, 1), (1, 2), (rng.randrange(2, 9), rng.randrange(1, 5))):
        with MemoryPipeline.of(CASES[what].build(given, cut), parallelism=parallelism) as pipeline:
            report = pipeline.run()
            check(pipeline, given, model, cut)
            assert report.behind_watermark == model.counts(range(len(given) * 2))


@pytest.mark.spark
@pytest.mark.parametrize("routed", ["by tasks", "by the driver"])
def test_spark_does_the_same(tmp_path: Path, spark: SparkSession, limits: SetLimits, routed: str) -> None:
    case = CASES["a union with a source whose late rows stay"]
    given, model = case.of(events(11))
    if routed == "by tasks":
        limits(**NOTHING_BY_DRIVER)
    pipeline = Pipeline(tmp_path, spark, case.build(given, 20), parallelism=2)
    report = pipeline.run()
    check(pipeline, given, model, 20)
    assert report.behind_watermark == model.counts(range(len(given)))
    before = counted(pipeline.checkpoints())
    with pipeline.engine() as engine:
        replayed = engine.replay(pipeline.job(), from_checkpoint=0)
        branch = [row for row in engine.checkpoints("pipeline") if row.branch == replayed.branch]
        assert engine.compare("pipeline", replayed.branch).is_equal
    assert counted(branch) == before
    assert len(before) == 2
    assert all(before)


def numbered(cut: int | None, given: list[Event]) -> Build:
    """A map between the source and the operator that counts."""

    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        source = read(job, "left", given, cut, late_to=LATE)
        mapped = source.map(lambda value: value, EVENT, uid="mapped")
        seen = mapped.key_by("k").process(Counts(), uid="counts", output_type=SEEN)
        return {**looked_at(mapped), "seen": seen}

    return build


KINDS: dict[str, Callable[[DataStream], DataStream]] = {
    "filter": lambda left: left.filter(lambda value: value.at is not None),
    "flat_map": lambda left: left.flat_map(lambda value: [value, value], EVENT),
    "sum": lambda left: left.key_by("k").sum("n", uid="sum"),
    "map_with_state": lambda left: left.key_by("k").map_with_state(
        lambda value, seen: (value.n, (seen or 0) + 1), int, int, uid="numbered"
    ),
    "a sink function": lambda left: left.add_sink(Forgets()),
}


class Forgets(SinkFunction):
    def invoke(self, value: Any, context: SinkFunction.Context) -> None:
        if context.is_late():
            raise AssertionError(f"{value} is late")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cut", [None, 6])
def test_operators_of_each_kind_divert(kind: str, cut: int | None) -> None:
    given, model = CASES["one source"].of(events(6))

    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        made = KINDS[kind](read(job, "left", given, cut, late_to=LATE))
        return {"late": made.get_side_output(LATE)}

    with MemoryPipeline.of(build, parallelism=2) as pipeline:
        report = pipeline.run()
        assert sorted(pipeline.outputs()["late"]) == model.late
        assert report.behind_watermark == {"left": len(model.late)}


@pytest.mark.parametrize("cut", [None, 7])
def test_the_first_operator_diverts_whatever_its_function(cut: int | None) -> None:
    given, model = CASES["one source"].of(events(3))
    with MemoryPipeline.of(numbered(cut, given), parallelism=2) as pipeline:
        pipeline.run()
        check(pipeline, given, model, cut)


@pytest.mark.spark
def test_the_first_operator_diverts_where_tasks_route_its_rows(
    tmp_path: Path, spark: SparkSession, limits: SetLimits
) -> None:
    """It has the watermark before each row, though its function does not see it; a transform stands in front."""
    given, model = CASES["one source"].of(events(3))

    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        source = read(job, "left", given, None, late_to=LATE).transform(lambda rows: rows.where("n >= 0"))
        mapped = source.map(lambda value: value, EVENT, uid="mapped")
        return {"mapped": mapped, "late": mapped.get_side_output(LATE)}

    limits(**NOTHING_BY_DRIVER)
    pipeline = Pipeline(tmp_path, spark, build, parallelism=2)
    pipeline.run()
    outputs = pipeline.outputs()
    assert sorted(outputs["late"]) == model.late
    assert sorted(n for n, _, _ in outputs["mapped"]) == [n for n, _, _, _ in model.seen]
    assert counted(pipeline.checkpoints()) == [{"left": len(model.late)}]


def test_what_nobody_reads_is_dropped_and_counted() -> None:
    """Its keys are not even touched."""
    given, model = CASES["one source"].of(events(9))

    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        keyed = read(job, "left", given, None, late_to=LATE).key_by("k")
        return {"seen": keyed.process(Counts(), uid="counts", output_type=SEEN)}

    with MemoryPipeline.of(build, parallelism=2) as pipeline:
        report = pipeline.run()
        assert sorted(pipeline.outputs()["seen"]) == model.seen
        assert report.behind_watermark == {"left": len(model.late)}
        assert report.rows_in == len(given)
        (batch,) = report.batches
        assert batch.operators["counts"].keys == len({k for _, k, _, _ in model.seen})
        assert {k for _, k, _, _ in model.seen} < {one.k for one in given}


class SetsAside(KeyedProcessFunction):
    """Sends each third element to the side output that late elements go to."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        if value.n % 3 == 0:
            yield LATE, value
        else:
            yield value.n


@pytest.mark.parametrize("cut", [None, 4])
def test_the_function_may_yield_to_the_same_side_output(cut: int | None) -> None:
    """Elements of both stand there in one order."""
    given, model = CASES["one source"].of(events(6))

    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        keyed = read(job, "left", given, cut, late_to=LATE).key_by("k")
        kept = keyed.process(SetsAside(), uid="kept", output_type=int)
        return {"kept": kept, "late": kept.get_side_output(LATE)}

    late = {one.n for one in model.late}
    with MemoryPipeline.of(build) as pipeline:
        pipeline.run()
        outputs = pipeline.outputs()
    assert [n for n, _, _ in outputs["late"]] == [e.n for e in given if e.n in late or e.n % 3 == 0]
    assert outputs["kept"] == [e.n for e in given if e.n not in late and e.n % 3]


class Whole(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        yield value.n


def test_a_row_is_late_that_the_clock_has_passed() -> None:
    """The clock ends a micro-batch; a row of the next one is judged by the watermark that it left."""
    job = StatefulJob("clocked")
    schema = "n bigint, k string, at timestamp"
    left = job.source(
        "left", FileSource("/nowhere", schema=schema), event_time="at", watermark="clock", clock_delay=5,
        late_to=LATE,
    )  # fmt: skip
    kept = left.key_by("k").process(Whole(), int, uid="kept")
    kept.sink("kept", CollectSink())
    kept.get_side_output(LATE).sink("late", CollectSink())
    with run_in_memory(job) as run:
        for clock, times in ((100, (10, 9)), (200, (95, 94, 90))):
            rows = [Event(at, "a", EPOCH + timedelta(milliseconds=at)) for at in times]
            run.process({"left": rows}, clock=clock)
        assert [row.watermark_ms for row in run.checkpoints()] == [94, 194]
        assert [n for n, _, _ in run.sink("late")] == [9, 94, 90]
        assert run.sink("kept") == [10, 95]
        assert counted(run.checkpoints()) == [{"left": 1}, {"left": 2}]


@pytest.mark.parametrize("judging_last", [True, False])
def test_the_first_operator_that_has_a_watermark_before_each_row_counts(judging_last: bool) -> None:
    """A map that nobody behind needs watermarks of has none; of two that have, the first in the job counts."""
    given, model = CASES["one source"].of(events(2))

    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        left = read(job, "left", given, None)
        streams = {"mapped": left.map(lambda value: value.n, int, uid="mapped")}
        if judging_last:
            streams["whole"] = left.key_by("k").process(Whole(), uid="whole", output_type=int)
        return streams

    with MemoryPipeline.of(build) as pipeline:
        assert pipeline.run().behind_watermark == ({"left": len(model.late)} if judging_last else {})


@pytest.mark.parametrize("everywhere", [True, False])
def test_a_late_row_that_every_subtask_has_counts_once(everywhere: bool) -> None:
    given, model = CASES["one source"].of(events(2))

    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        left = read(job, "left", given, None)
        return {"seen": (left.broadcast() if everywhere else left).process(Numbers(), int, uid="numbers")}

    with MemoryPipeline.of(build, parallelism=3) as pipeline:
        report = pipeline.run()
        assert report.behind_watermark == {"left": len(model.late)}
        assert len(pipeline.outputs()["seen"]) == len(given) * (3 if everywhere else 1)


class Numbers(ProcessFunction):
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterable[Any]:
        yield value.n


@pytest.mark.parametrize("policy", ["fail", "dead_letter"])
def test_late_elements_that_do_not_fit_the_tag_are_refused(policy: str) -> None:
    given, model = CASES["one source"].of(events(2))
    tag = OutputTag("numbers", int)

    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        left = read(job, "left", given, None, late_to=tag)
        kept = left.process(Numbers(), int, uid="numbers")
        return {"kept": kept, "numbers": kept.get_side_output(tag)}

    with MemoryPipeline.of(build, on_error=policy) as pipeline:
        if policy == "fail":
            with pytest.raises(UserFunctionError, match=r"'numbers', at source 'left', .*side output"):
                pipeline.run()
        else:
            assert pipeline.run().batches[0].rows_refused == len(model.late)
            assert "numbers" not in pipeline.outputs()


RULES = MapStateDescriptor("rules", str, int)


class Beside(KeyedBroadcastProcessFunction):
    def process_element(
        self, value: Any, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext
    ) -> Iterable[Any]:
        yield value.n, ctx.get_broadcast_state(RULES).get("times") or 0, ctx.is_late()

    def process_broadcast_element(
        self, value: Any, ctx: KeyedBroadcastProcessFunction.Context
    ) -> Iterable[Any]:
        ctx.get_broadcast_state(RULES).put("times", value)
        return []


def test_late_rows_pass_by_a_function_beside_a_broadcast_stream() -> None:
    given, model = CASES["one source"].of(events(6))

    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        rules = job.from_collection([7], int, name="rules").broadcast(RULES)
        keyed = read(job, "left", given, None, late_to=LATE).key_by("k")
        beside = keyed.connect(rules).process(Beside(), "n bigint, times bigint, late boolean", uid="beside")
        return {"seen": beside, "late": beside.get_side_output(LATE)}

    with MemoryPipeline.of(build, parallelism=3) as pipeline:
        report = pipeline.run()
        outputs = pipeline.outputs()
    assert sorted(outputs["seen"]) == [(n, 7, False) for n, _, _, _ in model.seen]
    assert sorted(outputs["late"]) == model.late
    assert report.behind_watermark == {"left": len(model.late)}


class Refuses(KeyedProcessFunction):
    """Refuses keys of this code's choice, and says of the others whether they are late."""

    def __init__(self, refused: str) -> None:
        self._refused = refused

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        if value.k in self._refused:
            raise ValueError("not yet")
        yield value.n, ctx.is_late()


@pytest.mark.spark
def test_letters_that_are_sent_again_reach_the_function(tmp_path: Path, spark: SparkSession) -> None:
    """However late they are: somebody wants the function to have them, and it can ask."""
    given = [
        Event(n, k, EPOCH + timedelta(milliseconds=at))
        for n, k, at in ((0, "a", 10), (2, "b", 50), (4, "c", 20))
    ]

    def job_that_refuses(refused: str) -> Build:
        def build(job: StatefulJob) -> Mapping[str, DataStream]:
            keyed = read(job, "left", given, None, late_to=LATE).key_by("k")
            kept = keyed.process(Refuses(refused), "n bigint, late boolean", uid="kept")
            return {"kept": kept, "late": kept.get_side_output(LATE)}

        return build

    pipeline = Pipeline(tmp_path, spark, job_that_refuses("a"), on_error="dead_letter")
    first = pipeline.run()
    assert (first.behind_watermark, first.batches[0].rows_refused) == ({"left": 1}, 1)
    repaired = Pipeline(tmp_path, spark, job_that_refuses(""), on_error="dead_letter")
    with repaired.engine() as engine:
        sent = engine.replay_dead_letters(repaired.job())
    assert (len(sent.sent), sent.refused) == (1, 0)
    outputs = repaired.outputs()
    assert outputs["kept"] == [(2, False), (0, True)]
    assert [n for n, _, _ in outputs["late"]] == [4]
    assert counted(repaired.checkpoints()) == [{"left": 1}, {}]


@pytest.mark.spark
def test_records_that_are_parsed_later_reach_the_function(tmp_path: Path, spark: SparkSession) -> None:
    """They are rows of their source, so they are counted as late there."""
    (tmp_path / "feed").mkdir()
    rows = [(0, 1, "01:00"), (2, 3_000_000_000, "00:10"), (4, 1, "00:20")]
    records = [{"n": n, "v": v, "k": "a", "at": f"2013-01-01 {at}:00"} for n, v, at in rows]
    (tmp_path / "feed" / "0.json").write_text("".join(f"{json.dumps(one)}\n" for one in records))

    def job_with(kind: str) -> Build:
        schema = f"n bigint, k string, at timestamp, v {kind}"
        tag = OutputTag("late", schema)

        def build(job: StatefulJob) -> Mapping[str, DataStream]:
            source = FileSource(str(tmp_path / "feed"), schema=schema, format="json")
            left = job.source("left", source, order_by=["n"], event_time="at", late_to=tag)
            kept = left.key_by("k").process(Refuses(""), "n bigint, late boolean", uid="kept")
            return {
                "kept": kept,
                "late": kept.get_side_output(tag).map(lambda value: value.n, int, uid="late"),
            }

        return build

    pipeline = Pipeline(tmp_path, spark, job_with("int"), on_error="dead_letter")
    assert pipeline.run().behind_watermark == {"left": 1}
    repaired = Pipeline(tmp_path, spark, job_with("bigint"), on_error="dead_letter")
    with repaired.engine() as engine:
        (batch,) = engine.replay_dead_letters(repaired.job()).batches
    assert repaired.outputs() == {"kept": [(0, False), (2, True)], "late": [4]}
    assert batch.behind_watermark == {"left": 1}
