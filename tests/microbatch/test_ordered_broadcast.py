"""``connect(…, ordered=True)``: what is seen does not depend on where micro-batches are cut, nor on the parallelism."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine import (
    BroadcastProcessFunction,
    DataStream,
    EmbeddedRocksDBStateBackend,
    FileSource,
    KeyedProcessFunction,
    OutputTag,
    StatefulJob,
    TimestampAssigner,
    WatermarkStrategy,
)
from state_engine.core.errors import ConfigurationError, StatelakeError, UserFunctionError
from state_engine.testing import CollectSink, MemoryRun, run_in_memory
from tests.microbatch.broadcast_model import (
    EPOCH,
    FACTORS,
    OUT,
    ROW,
    Input,
    Judge,
    Model,
    Refuses,
    Seen,
    at,
    by_strategy,
    factor,
    job_of,
    judged,
    mapped,
    milliseconds,
    random_cuts,
    random_input,
    refusable,
)
from tests.support.limits import SetLimits
from tests.support.pipelines import Pipeline

LENGTH = 40
AT_ONCE = [LENGTH]
EACH_ROW = list(range(1, LENGTH + 1))


def run_cut(run: MemoryRun, rows: Input, cuts: Sequence[int], parallelism: int, **options: Any) -> list[Any]:
    """What is seen where micro-batches end at ``cuts``."""
    for end in cuts:
        run.restart(job_of(rows[:end], parallelism, **options))
        run.run()
    return [tuple(row) for row in run.sink("seen")]


def check(rows: Input, cuts: Sequence[int], parallelism: int, **options: Any) -> None:
    model = Model(parallelism).run(rows)
    with run_in_memory(job_of(rows, parallelism, **options)) as run:
        assert run_cut(run, rows, cuts, parallelism, **options) == model.seen
        assert run.state("judge", "count") == model.counts
        assert run.state("judge", "factors") == [{"factor": model.factor}] * parallelism
        assert sum(row.rows_in for row in run.checkpoints()) == len(rows)


@pytest.mark.parametrize("parallelism", [3, *(pytest.param(n, marks=pytest.mark.more) for n in (1, 2))])
@pytest.mark.parametrize(
    "cuts",
    [
        AT_ONCE,
        EACH_ROW,
        random_cuts(0, LENGTH),
        *(pytest.param(random_cuts(seed, LENGTH), marks=pytest.mark.more) for seed in (1, 2)),
    ],
)
def test_what_is_seen_is_what_a_plain_loop_sees(cuts: list[int], parallelism: int) -> None:
    check(random_input(len(cuts), LENGTH), cuts, parallelism)


def test_with_a_backend_that_spills_it_is_the_same() -> None:
    rows = random_input(12, LENGTH)
    check(rows, [9, 25, LENGTH], 2, state_backend=EmbeddedRocksDBStateBackend())


SHAPES: dict[str, dict[str, Any]] = {
    "both are ordered by event time": {"order_by": {"events": ["at"], "rules": ["at"]}},
    "one is ordered by more": {"order_by": {"events": ["at", "v"], "rules": ["at"]}},
    "one is ordered by event time": {"order_by": {"events": ["at"]}},
    "times by a strategy": {"shapes": [by_strategy]},
    "united": {"shapes": [lambda stream, name: stream.union(stream.filter(lambda row: False))]},
}
"""Ways in which streams come by their order, with the options of the job."""


@pytest.mark.parametrize("shape", SHAPES)
def test_every_stream_with_event_time_can_be_ordered(shape: str) -> None:
    rows = random_input(11, LENGTH)
    for cuts in (AT_ONCE, [7, 8, 31, LENGTH]):
        check(rows, cuts, 2, **SHAPES[shape])


@pytest.mark.parametrize("order", [(), ["at"]])
def test_behind_operators_each_element_sees_the_rules_of_its_time(order: Sequence[str]) -> None:
    """Timers are left out: between outputs of two operators the watermark is that of the last one, see decision 27."""
    rows = random_input(11, LENGTH)
    options: dict[str, Any] = {"shapes": [mapped], "order_by": {"events": order, "rules": order}}
    expected = [row[:-1] for row in Model(2).run(rows).seen if row[0] != "timer"]
    for cuts in (AT_ONCE, [7, 8, 31, LENGTH]):
        with run_in_memory(job_of(rows, 2, **options)) as run:
            seen = run_cut(run, rows, cuts, 2, **options)
        assert [row[:-1] for row in seen if row[0] != "timer"] == expected


def test_without_ordered_it_depends_on_the_cuts() -> None:
    rows = random_input(1, LENGTH)
    model = Model(2).run(rows)
    with run_in_memory(job_of(rows, 2, ordered=False)) as run:
        assert run_cut(run, rows, AT_ONCE, 2, ordered=False) != model.seen
    check(rows, AT_ONCE, 2)


def test_what_comes_in_a_later_micro_batch_comes_later_whatever_its_time() -> None:
    """A late rule holds for what is read with it or after it; it sees by the watermark that it is late."""
    first = [("events", at(10, 1)), ("rules", at(10, 4)), ("events", at(20, 2)), ("rules", at(20, 5))]
    later = [("rules", at(12, 6)), ("events", at(15, 3)), ("rules", at(30, 8)), ("events", at(30, 4))]
    for parallelism in (1, 3):
        with run_in_memory(job_of(first, parallelism)) as run:
            run.run()
            run.restart(job_of([*first, *later], parallelism))
            run.run()
            seen = [tuple(row) for row in run.sink("seen") if row.what != "timer"]
        elements = [row for row in seen if row[0] == "element"]
        assert [(v, rule) for _, _, v, rule, _, _ in elements] == [(1, 4), (2, 5), (3, 6), (4, 8)]
        rules = [row for row in seen if row[0] == "rule"]
        assert [(v, mark) for _, _, v, _, _, mark in rules[::parallelism]][2:] == [(6, 17), (8, 17)]


def test_a_timer_sees_the_rules_as_of_its_own_time() -> None:
    """Although no element of its key comes before the next rule, which would make it fire."""
    rows = [("rules", at(10, 1)), ("events", at(10, 1)), ("events", at(20, 2, "b")), ("rules", at(20, 3)),
            ("rules", at(21, 9)), ("rules", at(22, 4)), ("events", at(40, 5, "b"))]  # fmt: skip
    # the timer of key a is set at 11, and the watermark is above it behind the rule of 20
    for cuts in (AT_ONCE, range(1, len(rows) + 1)):
        with run_in_memory(job_of(rows, 2)) as run:
            run_cut(run, rows, cuts, 2)
            timers = [(row.k, row.v, row.factor) for row in run.sink("seen") if row.what == "timer"]
        assert timers[0] == ("a", 11, 3)


def test_draining_fires_timers_with_the_newest_rules() -> None:
    rows = [("rules", at(10, 1)), ("events", at(10, 1)), ("rules", at(11, 9))]
    with run_in_memory(job_of(rows, 2)) as run:
        run.run()
        run.run(drain=True)
        timers = [(row.k, row.v, row.factor) for row in run.sink("seen") if row.what == "timer"]
    assert timers == [("a", 11, 9)]


class Follows(KeyedProcessFunction):
    """Puts out every element, and a timer two milliseconds later as one."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        now = ctx.timestamp()
        assert now is not None
        ctx.timer_service().register_event_time_timer(now + 2)
        yield value

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        yield at(timestamp, timestamp, ctx.get_current_key())


def followed(stream: Any, name: str) -> Any:
    if name == "rules":
        return stream
    return stream.key_by("k").process(Follows(), uid="follows", output_type=ROW)


@pytest.mark.parametrize("order", [[], ["at"]])
@pytest.mark.parametrize("parallelism", [1, 2])
def test_what_a_timer_before_it_puts_out_stands_behind_all_that_may_be_as_old(
    parallelism: int, order: list[str]
) -> None:
    """So behind elements up to two milliseconds later, which is how late they may come."""
    events: Input = [("events", at(10, 0)), ("events", at(15, 4, "b"))]
    rules: Input = [("rules", at(9, 1)), ("rules", at(14, 2)), ("rules", at(16, 3))]
    options: dict[str, Any] = {"shapes": [followed], "order_by": {"events": ["at"], "rules": order}}
    for rows, factors in ((events, [0, 0, 0]), ([*events, *rules], [1, 2, 2])):
        with run_in_memory(job_of(rows, parallelism, **options)) as run:
            run.run()
            seen = [(row.v, row.factor) for row in run.sink("seen") if row.what == "element"]
        assert seen == list(zip([0, 12, 4], factors, strict=True))


def test_an_ordered_operator_stands_behind_another_one() -> None:
    rows = random_input(5, LENGTH)
    expected = [row[:4] for row in Model(2).run(rows).seen if row[0] == "element"]

    def job() -> StatefulJob:
        made = job_of(rows, 2, order_by={"events": ["at"]}, function=PlainJudge(), keyed=False)
        judged, rules = made.operators["judge"], made.sources["rules"]
        both = made.stream(judged).connect(made.stream(rules).broadcast(FACTORS), ordered=True)
        again = both.process(JudgesAgain(), uid="again", output_type=OUT)
        again.map(lambda row: row, output_type=OUT).set_parallelism(1).sink("twice", CollectSink())
        return made

    with run_in_memory(job()) as run:
        run.run()
        twice = [tuple(row)[:4] for row in run.sink("twice")]
    assert twice == expected


class PlainJudge(BroadcastProcessFunction):
    """The same on a stream without keys."""

    def process_element(self, value: Any, ctx: BroadcastProcessFunction.ReadOnlyContext) -> Iterable[Seen]:
        yield "element", value.k, value.v, factor(ctx), 0, ctx.current_watermark()

    process_broadcast_element = Judge.process_broadcast_element


class JudgesAgain(PlainJudge):
    """Puts out the elements on which it agrees with the operator before."""

    def process_element(self, value: Any, ctx: BroadcastProcessFunction.ReadOnlyContext) -> Iterable[Seen]:
        if value.what == "element" and value.factor == factor(ctx):
            yield tuple(value)

    def process_broadcast_element(self, value: Any, ctx: Any) -> list[Seen]:
        ctx.get_broadcast_state(FACTORS).put("factor", value.v)
        return []


def test_streams_without_keys_are_ordered_too() -> None:
    rows = random_input(6, LENGTH)
    whole = Model(2).run(rows).seen
    expected = [row if row[0] == "rule" else (*row[:4], 0, row[5]) for row in whole if row[0] != "timer"]
    for cuts in (AT_ONCE, [3, 17, 18, LENGTH]):
        with run_in_memory(job_of(rows, 2, function=PlainJudge(), keyed=False)) as run:
            assert run_cut(run, rows, cuts, 2, function=PlainJudge(), keyed=False) == expected


def test_event_times_of_other_types_are_compared_as_times() -> None:
    """A rule of a day holds from midnight on."""
    job = StatefulJob("days", parallelism=2)
    events = job.source("events", FileSource("/nowhere", schema="k string, v bigint, at timestamp_ntz"),
                        event_time="at", order_by=["at"])  # fmt: skip
    rules = job.source("rules", FileSource("/nowhere", schema="k string, v bigint, day date"), event_time="day",
                       order_by=["day"])  # fmt: skip
    both = events.key_by("k").connect(rules.broadcast(FACTORS), ordered=True)
    both.process(Judge(), uid="judge", output_type=OUT).sink("seen", CollectSink())
    hour, day = timedelta(hours=1), date(1970, 1, 2)
    given = [("a", n, EPOCH + n * hour) for n in (23, 24, 25)]
    with run_in_memory(job) as run:
        run.process({"events": given, "rules": [("", 7, day)]})
        seen = [(row.v, row.factor) for row in run.sink("seen") if row.what == "element"]
    assert sorted(seen) == [(23, 0), (24, 7), (25, 7)]


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_refused_rule_is_one_letter_and_leaves_no_trace(parallelism: int) -> None:
    rows = refusable()
    good = [one for one in rows if one[1][1] >= 0]
    options: dict[str, Any] = {"function": Refuses(), "on_error": "dead_letter"}
    for cuts in ([len(rows)], [4, 9, len(rows)]):
        with run_in_memory(job_of(rows, parallelism, **options)) as run:
            seen = run_cut(run, rows, cuts, parallelism, **options)
            letters = [(one["input"], one["source"], one["error"]) for one in run.dead_letters()]
            assert sorted(letters) == [
                (0, "events", "ValueError: a negative element"),
                (1, "rules", "ValueError: a negative rule"),
            ]
            assert run.state("judge", "factors") == [{"factor": 30}] * parallelism
        # what was refused still moves the watermark
        without_marks = [row[:-1] for row in Model(parallelism).run(good).seen if row[0] != "timer"]
        assert [row[:-1] for row in seen if row[0] != "timer"] == without_marks


def test_without_dead_letters_the_first_refused_rule_ends_the_micro_batch() -> None:
    rows = [one for one in refusable() if one[1][1] != -2]
    with run_in_memory(job_of(rows, 3, function=Refuses())) as run:
        with pytest.raises(UserFunctionError, match=r"source 'rules', order .*a negative rule \(row"):
            run.run()
        assert run.checkpoints() == []


def test_subtasks_that_disagree_on_a_rule_are_refused() -> None:
    rows = refusable()
    with run_in_memory(job_of(rows, 3, function=Refuses(moody=True), on_error="dead_letter")) as run:
        with pytest.raises(StatelakeError, match="refused by some subtasks and taken by others"):
            run.run()
        assert run.checkpoints() == []


def test_an_element_without_key_is_refused_and_a_rule_has_none() -> None:
    rows: Input = [("rules", at(10, 3)), ("events", (None, 1, at(11, 1)[2])), ("events", at(12, 2))]  # type: ignore[list-item]
    with run_in_memory(job_of(rows, 2, on_error="dead_letter")) as run:
        run.run()
        (letter,) = run.dead_letters()
        assert (letter["input"], letter["error"]) == (0, "InvalidKeyError: the key 'k' is null")
        seen = [(row.what, row.v, row.factor) for row in run.sink("seen") if row.what != "timer"]
    assert seen == [("rule", 3, 0), ("rule", 3, 0), ("element", 2, 3)]


class Sometimes(TimestampAssigner):
    """Gives no time to what has the number 13."""

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        if value.v == 13:
            raise ValueError("unlucky")
        return milliseconds(value.at)


def sometimes(stream: Any, name: str) -> Any:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Sometimes())
    return stream.assign_timestamps_and_watermarks(strategy)


def test_a_rule_without_time_is_one_letter_and_an_element_is_another() -> None:
    rows: Input = [("rules", at(9, 13)), ("rules", at(10, 3)), ("events", at(11, 13)), ("events", at(12, 2))]
    with run_in_memory(job_of(rows, 3, shapes=[sometimes], on_error="dead_letter")) as run:
        run.run()
        assert sorted(one["input"] for one in run.dead_letters()) == [0, 1]
        seen = [(row.what, row.v, row.factor) for row in run.sink("seen") if row.what != "timer"]
        assert run.checkpoints()[-1].rows_in == 4
    assert seen == [*[("rule", 3, 0)] * 3, ("element", 2, 3)]


# -- replays -----------------------------------------------------------------------------------------------------------


def test_a_replay_gives_the_same() -> None:
    rows = random_input(8, LENGTH)
    with run_in_memory(job_of(rows, 3)) as run:
        seen = run_cut(run, rows, [4, 11, 30, LENGTH], 3)
        state = run.state("judge", "count"), run.state("judge", "factors")
        assert run.replay().branch == "replay_1"
        assert [tuple(row) for row in run.sink("seen")] == seen
        assert run.replay(rebatch=True).branch == "replay_2"  # in one micro-batch
        assert [tuple(row) for row in run.sink("seen")] == seen == Model(3).run(rows).seen
        assert (run.state("judge", "count"), run.state("judge", "factors")) == state


def test_it_may_be_switched_on_and_off_between_runs() -> None:
    """State is the same; what was read before is not read again."""
    rows: Input = [("rules", at(10, 3)), ("events", at(11, 1)), ("rules", at(12, 4))]
    with run_in_memory(job_of(rows[:2], 2, ordered=False)) as run:
        run.run()
        run.restart(job_of(rows, 2))
        run.run()
        assert run.state("judge", "factors") == [{"factor": 4}] * 2


# -- what cannot be ordered --------------------------------------------------------------------------------------------


def test_an_order_that_does_not_begin_with_event_time_is_refused() -> None:
    rows = random_input(1, 6)
    for shapes, named in (
        ((), "of source 'events' .*order_by=.'v'"),
        ((mapped,), "that operator 'judge' reads"),
    ):
        with run_in_memory(job_of(rows, 1, order_by={"events": ["v"]}, shapes=shapes)) as run:
            with pytest.raises(
                ConfigurationError, match=f"(?s)operator 'judge': .*{named}.*begin order_by with"
            ):
                run.run()
            assert run.checkpoints() == []


LATE = OutputTag("late", ROW)


@pytest.mark.parametrize("cuts", [[3, 5], [1, 2, 3, 4, 5], [5]])
@pytest.mark.parametrize("parallelism", [1, 2])
def test_late_elements_pass_by_the_function_and_their_keys_are_not_touched(
    cuts: list[int], parallelism: int
) -> None:
    """The watermark is that of the slower stream; rules are never late to it."""
    rows: Input = [
        ("events", at(10, 1)), ("rules", at(10, 2)), ("events", at(40, 2, "b")), ("rules", at(60, 3)),
        ("events", at(5, 7, "late")),
    ]  # fmt: skip

    def job(end: int) -> StatefulJob:
        job = StatefulJob("judged", parallelism=parallelism)
        streams = {}
        for name in ("events", "rules"):
            given = [row for source, row in rows[:end] if source == name]
            late_to: Any = {"late_to": LATE} if name == "events" else {}
            streams[name] = job.from_collection(
                given, ROW, name=name, event_time="at", order_by=["at"], **late_to
            )
        both = streams["events"].key_by("k").connect(streams["rules"].broadcast(FACTORS), ordered=True)
        made = both.process(Judge(), uid="judge", output_type=OUT)
        made.sink("seen", CollectSink())
        made.get_side_output(LATE).sink("late", CollectSink())
        return job

    with run_in_memory(job(0)) as run:
        for end in cuts:
            run.restart(job(end))
            run.run()
        late = [row.k for row in run.sink("late")]
        counts = run.state("judge", "count")
    if cuts == [5]:  # in the order of time, nothing in one micro-batch is late
        assert (late, "late" in counts) == ([], True)
    else:
        assert (late, "late" in counts) == (["late"], False)


def test_rules_that_are_seldom_do_not_hold_back_timers_once_they_are_idle() -> None:
    job = StatefulJob("seldom")
    streams = {}
    for name, idle in (("events", None), ("rules", "1 min")):
        given = [at(10, 1)] if name == "rules" else [at(10, 1), at(20, 1), at(900, 1, "b")]
        cut = 1 if name == "events" else None
        streams[name] = job.from_collection(
            given, ROW, name=name, event_time="at", order_by=["at"], idle_after=idle, max_rows_per_batch=cut
        )
    both = streams["events"].key_by("k").connect(streams["rules"].broadcast(FACTORS), ordered=True)
    both.process(Judge(), uid="judge", output_type=OUT).sink("seen", CollectSink())
    with run_in_memory(job) as run:
        run.run(max_batches=2, clock=0)
        before = len(run.sink("seen"))
        run.run(max_batches=1, clock=60_000)
        assert run.checkpoints()[-1].operator_watermarks_ms["judge"] == 899
        assert len(run.sink("seen")) > before + 1  # the element, and timers that waited for rules


LENGTH_ON_SPARK = 30


class Growing:
    """A pipeline over the first of some rows."""

    def __init__(self, at: Path, spark: SparkSession, rows: Input, parallelism: int, **options: Any) -> None:
        self.rows, self.there, self.options = rows, len(rows), dict[str, Any]()
        self.pipeline = Pipeline(at, spark, self.build, parallelism=parallelism, **options)

    def build(self, job: StatefulJob) -> Mapping[str, DataStream]:
        return {"seen": judged(job, self.rows[: self.there], **self.options)}

    def run(self, *cuts: int) -> list[Any]:
        """What is seen where micro-batches end at ``cuts``."""
        for self.there in cuts:
            self.pipeline.run()
        return self.seen()

    def seen(self) -> list[Any]:
        return [tuple(row) for row in self.pipeline.outputs()["seen"]]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_what_is_seen_on_spark_is_what_a_plain_loop_sees(
    tmp_path: Path, spark: SparkSession, parallelism: int
) -> None:
    rows = random_input(2, LENGTH_ON_SPARK)
    model = Model(parallelism).run(rows)
    for number, cuts in enumerate(([LENGTH_ON_SPARK], random_cuts(1, LENGTH_ON_SPARK)[-4:])):
        growing = Growing(tmp_path / str(number), spark, rows, parallelism)
        assert growing.run(*cuts) == model.seen
        assert growing.pipeline.state("judge", "count") == sorted(model.counts.items())


def test_rows_that_tasks_route_are_ordered_alike(
    tmp_path: Path, spark: SparkSession, limits: SetLimits
) -> None:
    """There each subtask finds the watermark before its rows by the steps of all."""
    limits(rows=-1)
    rows = random_input(7, LENGTH_ON_SPARK)
    growing = Growing(tmp_path, spark, rows, 2)
    assert growing.run(13, LENGTH_ON_SPARK) == Model(2).run(rows).seen


def test_a_refused_rule_is_one_letter_and_every_subtask_gets_it_again(
    tmp_path: Path, spark: SparkSession
) -> None:
    rows: Input = [*refusable(), *[("events", at(n, n, f"k{n}")) for n in range(50, 64)]]
    growing = Growing(tmp_path, spark, rows, 3, on_error="dead_letter")
    growing.options["function"] = Refuses()
    growing.run(len(refusable()))
    growing.options["function"] = Refuses(lenient=True)
    job = growing.pipeline.job()
    with growing.pipeline.engine() as engine:
        letters = {one.input: one for one in engine.list_dead_letters(job)}
        assert set(letters) == {0, 1}
        assert [one.problem for one in letters.values()] == ["", ""]
        report = engine.replay_dead_letters(job, ids=[letters[1].id])
        assert (report.sent, report.refused) == ([letters[1].id], 0)
    growing.run(len(rows))
    factors = {row[3] for row in growing.seen() if row[0] == "element" and row[2] >= 50}
    assert factors == {-1}  # sent again, it comes after what was read before
