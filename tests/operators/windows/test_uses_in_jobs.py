"""What windows are used for, in whole jobs: functions, reductions, lists, counts, the clock, and PyFlink's names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from state_engine import (
    AggregateFunction,
    CountSlidingWindowAssigner,
    CountTrigger,
    CountTumblingWindowAssigner,
    Cumulating,
    DataStream,
    DeltaSink,
    DynamicEventTimeSessionWindows,
    DynamicProcessingTimeSessionWindows,
    EventTimeSessionWindows,
    EventTimeTrigger,
    FileSource,
    GlobalWindow,
    GlobalWindows,
    KeyedProcessFunction,
    OutputTag,
    ProcessAllWindowFunction,
    ProcessingTimeSessionWindows,
    ProcessingTimeTrigger,
    ProcessWindowFunction,
    PurgingTrigger,
    Session,
    SessionWindowTimeGapExtractor,
    Sliding,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    StatefulJob,
    StateTtlConfig,
    Time,
    TimeWindow,
    Tumbling,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    Types,
    WindowFunction,
    count,
    sum_,
)
from state_engine.core.errors import ConfigurationError
from state_engine.testing import CollectSink, run_in_memory
from tests.operators.windows.models import Event
from tests.operators.windows.test_windows_in_jobs import (
    EPOCH,
    LATE,
    ROW,
    changing,
    keyed_of,
    ms,
    rows_of,
    source_of,
)

GIVEN = [Event(k, v, 0.0, at) for k, v, at in (
    ("a", 1, 1), ("b", 5, 2), ("a", 7, 3), ("a", 3, 9), ("b", 2, 11), ("a", 4, 12), ("b", 6, 13), ("a", 9, 30),
)]  # fmt: skip
RESULTS_OF_WINDOWS = ("k", "window_start", "window_end", "n")
RESULT = "k string, start bigint, vs array<bigint>"


class Listed(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Iterable[Any]:
        yield key, context.window().start, [row.v for row in elements]


class Applied(WindowFunction):
    def apply(self, key: Any, window: Any, inputs: Iterable[Any]) -> Iterable[Any]:
        return [(key, window.start, [row if isinstance(row, int) else row.v for row in inputs])]


class Total(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return int(accumulator + value.v)

    def get_result(self, accumulator: int) -> int:
        return accumulator


class AllTotal(ProcessAllWindowFunction):
    def process(self, context: Any, elements: Iterable[Any]) -> Iterable[Any]:
        yield context.window().start, sum(row.v for row in elements)


def most(one: Any, other: Any) -> Any:
    return one if one.v >= other.v else other


USES: dict[str, tuple[Callable[[DataStream], DataStream], list[Any]]] = {
    "process": (
        lambda rows: rows.key_by("k").window(Tumbling(10)).process(Listed(), RESULT, uid="it"),
        [("a", 0, [1, 7, 3]), ("a", 10, [4]), ("a", 30, [9]), ("b", 0, [5]), ("b", 10, [2, 6])],
    ),
    "apply": (
        lambda rows: rows.key_by("k").window(Session(5)).apply(Applied(), RESULT, uid="it"),
        [("a", 1, [1, 7]), ("a", 9, [3, 4]), ("a", 30, [9]), ("b", 2, [5]), ("b", 11, [2, 6])],
    ),
    "reduce": (
        lambda rows: rows.key_by("k").window(Tumbling(10)).reduce(most, uid="it"),
        [("a", 7, 3), ("a", 4, 12), ("a", 9, 30), ("b", 5, 2), ("b", 6, 13)],
    ),
    "reduce for a function": (
        lambda rows: rows.key_by("k").window(Tumbling(10)).reduce(most, Listed(), RESULT, uid="it"),
        [("a", 0, [7]), ("a", 10, [4]), ("a", 30, [9]), ("b", 0, [5]), ("b", 10, [6])],
    ),
    "aggregate": (
        lambda rows: rows.key_by("k").window(Session(5)).aggregate(Total(), None, Types.LONG(), Types.LONG(), uid="it"),
        [5, 7, 8, 8, 9],
    ),
    "aggregate for a function": (
        lambda rows: rows.key_by("k").window(Sliding(20, every=10)).aggregate(
            Total(), Applied(), accumulator_type=int, output_type=RESULT, uid="it"
        ),
        [("a", -10, [11]), ("a", 0, [15]), ("a", 10, [4]), ("a", 20, [9]), ("a", 30, [9]), ("b", -10, [5]),
         ("b", 0, [13]), ("b", 10, [8])],
    ),
    "top_n": (
        lambda rows: rows.key_by("k").window(Tumbling(20)).top_n(2, by="v", uid="it"),
        [("a", 0, 20, 1, 7, 3), ("a", 0, 20, 2, 4, 12), ("a", 20, 40, 1, 9, 30), ("b", 0, 20, 1, 6, 13),
         ("b", 0, 20, 2, 5, 2)],
    ),
    "top_n without rank": (
        lambda rows: rows.key_by("k").window(Tumbling(20)).top_n(1, by="v", ascending=True, rank=False, uid="it"),
        [("a", 0, 20, 1, 1), ("a", 20, 40, 9, 30), ("b", 0, 20, 2, 11)],
    ),
    "count_window": (
        lambda rows: rows.key_by("k").count_window(2).aggregate(s=sum_("v"), uid="it"),
        [("a", 0, 8), ("a", 1, 7), ("b", 0, 7)],
    ),
    "window_all": (
        lambda rows: rows.window_all(Tumbling(10)).aggregate(n=count(), s=sum_("v"), uid="it"),
        [(0, 10, 4, 16), (10, 20, 3, 12), (30, 40, 1, 9)],
    ),
    "window_all for a function": (
        lambda rows: rows.window_all(Tumbling(10)).process(AllTotal(), "start bigint, s bigint", uid="it"),
        [(0, 16), (10, 12), (30, 9)],
    ),
    "window_all, a list": (
        lambda rows: rows.window_all(Tumbling(20)).top_n(2, by="v", ties=True, uid="it"),
        [(0, 20, 1, "a", 7, 3), (0, 20, 2, "b", 6, 13), (20, 40, 1, "a", 9, 30)],
    ),
    "a list of windows behind windows": (
        lambda rows: rows.key_by("k").window(Tumbling(10)).reduce(most, uid="first")
        .window_all(Tumbling(10)).top_n(1, by="v", uid="it"),
        [(0, 10, 1, "a", 7, 3), (10, 20, 1, "b", 6, 13), (30, 40, 1, "a", 9, 30)],
    ),
}  # fmt: skip


def plain(value: Any) -> Any:
    if hasattr(value, "tzinfo"):
        return ms(value)
    return tuple(plain(one) for one in value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(
    "cut", [3, pytest.param(1, marks=pytest.mark.more), pytest.param(len(GIVEN), marks=pytest.mark.more)]
)
def test_uses_in_memory(use: str, cut: int) -> None:
    build, expected = USES[use]
    job = StatefulJob("uses", parallelism=2)
    build(source_of(job, FileSource("/nowhere", schema=ROW))).sink("out", CollectSink())
    with run_in_memory(job) as run:
        for at in range(0, len(GIVEN), cut):
            run.process({"rows": rows_of(GIVEN[at : at + cut])})
        run.process(drain=True)
        shown = [plain(tuple(row)) if isinstance(row, tuple) else row for row in run.sink("out")]
    assert sorted(shown) == sorted(expected)


def test_windows_of_the_clock_need_no_event_time_and_are_repeated_by_it() -> None:
    job = StatefulJob("clock")
    keyed = job.source("rows", FileSource("/nowhere", schema=ROW)).key_by("k")
    keyed.window(Tumbling(1000), time="clock").aggregate(n=count(), uid="n").sink("n", CollectSink())
    keyed.window(ProcessingTimeSessionWindows.with_gap(Time.seconds(2))).process(
        Listed(), RESULT, uid="vs"
    ).sink("vs", CollectSink())
    with run_in_memory(job) as run:
        run.process({"rows": rows_of(GIVEN[:3])}, clock=500)
        run.process({"rows": rows_of(GIVEN[3:4])}, clock=999)
        shown = run.process(clock=1000)
        assert [plain(tuple(row)) for row in shown["n"]] == [("a", 0, 1000, 3), ("b", 0, 1000, 1)]
        shown = run.process(clock=5000)
        assert sorted(tuple(row) for row in shown["vs"]) == [("a", 500, [1, 7, 3]), ("b", 500, [5])]


def test_late_rows_in_firings_come_as_more_inserts_and_to_their_output() -> None:
    job = StatefulJob("firings")
    windowed = source_of(job).key_by("k").window(TumblingEventTimeWindows.of(Time.milliseconds(10)))
    late = OutputTag("late", ROW)
    results = windowed.allowed_lateness(10).side_output_late_data(late).aggregate(n=count(), uid="n")
    results.sink("n", CollectSink())
    results.get_side_output(late).sink("late", CollectSink())
    with run_in_memory(job) as run:
        times = [(1, 1), (1, 20), (1, 3), (1, 30), (1, 4)]
        run.process({"rows": rows_of([Event("a", v, 0.0, at) for v, at in times])})
        run.process(drain=True)
        assert [(plain(row[1]), row[3]) for row in run.sink("n")] == [(0, 1), (0, 2), (20, 1), (30, 1)]
        assert [plain(row[2]) for row in run.sink("late")] == [4]


@dataclass(frozen=True)
class Sale:
    shop: str
    cents: int


def test_elements_are_what_the_stream_has() -> None:
    """Bare values and dataclasses are reduced, and are handed to a function, as they are."""
    job = StatefulJob("elements")
    numbers = job.from_collection([1, 2, 3, 4, 5, 6], Types.LONG(), name="numbers")
    by_rest = numbers.key_by(lambda number: number % 2, Types.LONG())
    by_rest.count_window(2).reduce(lambda a, b: a + b, uid="sums").sink("sums", CollectSink())
    sales = job.from_collection([Sale("a", 3), Sale("b", 9), Sale("a", 5)], Sale, name="sales")
    best = sales.key_by("shop").count_window(2).reduce(lambda a, b: a if a.cents > b.cents else b, uid="best")
    best.map(lambda sale: sale.cents, Types.LONG(), uid="cents").sink("best", CollectSink())
    with run_in_memory(job) as run:
        run.process(drain=True)
        assert sorted(run.sink("sums")) == [4, 6]
        assert run.sink("best") == [5]


ASIDE = OutputTag("aside", "k string, v bigint")


class Aside(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Iterable[Any]:
        yield ASIDE, (key, len(list(elements)))


def test_side_outputs_of_a_function_have_the_time_of_the_window() -> None:
    job = StatefulJob("aside")
    aside = source_of(job).key_by("k").window(Tumbling(10), lateness=10).process(Aside(), RESULT, uid="first")
    hours = aside.get_side_output(ASIDE).key_by("k").window(Tumbling(10)).aggregate(s=sum_("v"), uid="second")
    hours.sink("out", CollectSink())
    with run_in_memory(job) as run:
        run.process({"rows": rows_of(GIVEN)})
        run.process(drain=True)
        shown = sorted(plain(tuple(row)) for row in run.sink("out"))
    assert shown == [("a", 0, 10, 3), ("a", 10, 20, 1), ("a", 30, 40, 1), ("b", 0, 10, 1), ("b", 10, 20, 2)]


# -- PyFlink's names ---------------------------------------------------------------------------------------------------


class Gap(SessionWindowTimeGapExtractor):
    def extract(self, element: Any) -> int:
        return int(element.v)


def test_assigners_of_pyflink_make_the_windows_that_there_are() -> None:
    five, one = Time.milliseconds(5), Time.milliseconds(1)
    assert TumblingEventTimeWindows.of(five, one) == Tumbling(five, one)
    assert TumblingEventTimeWindows.of(five) == Tumbling(five)
    assert SlidingEventTimeWindows.of(five, one) == Sliding(five, every=one)
    assert EventTimeSessionWindows.with_gap(five) == Session(five)
    row = Event("a", 7, 0.0, 3)
    for computed in (EventTimeSessionWindows, DynamicEventTimeSessionWindows):
        assert computed.with_dynamic_gap(Gap()).window_of(row, 3) == (3, 10)
        assert computed.with_dynamic_gap(lambda element: 2).window_of(row, 3) == (3, 5)
    for clock, event in (
        (TumblingProcessingTimeWindows.of(five), Tumbling(five)),
        (SlidingProcessingTimeWindows.of(five, one), Sliding(five, every=one)),
        (ProcessingTimeSessionWindows.with_gap(five), Session(five)),
    ):
        assert clock.windows == event
    for gaps in (ProcessingTimeSessionWindows, DynamicProcessingTimeSessionWindows):
        assert gaps.with_dynamic_gap(Gap()).windows.window_of(row, 3) == (3, 10)  # type: ignore[union-attr]


def test_windows_of_pyflink() -> None:
    window = TimeWindow(0, 5)
    assert (window.max_timestamp(), window.intersects(TimeWindow(5, 6)), window.cover(TimeWindow(7, 9))) == (
        4,
        True,
        TimeWindow(0, 9),
    )
    starts = [TimeWindow.get_window_start_with_offset(at, 1, 5) for at in (-1, 0, 1, 5, 6)]
    assert starts == [-4, -4, 1, 1, 6]
    assert GlobalWindow.get() == GlobalWindow()
    assert GlobalWindow.get().max_timestamp() == 2**63 - 1


@pytest.mark.parametrize(
    ("windowed", "expected"),
    [
        (lambda keyed: keyed.window(CountTumblingWindowAssigner.of(2)), [8, 7, 7]),
        (lambda keyed: keyed.window(CountSlidingWindowAssigner.of(2, 1)), [8, 10, 7, 7, 8, 13]),
        (lambda keyed: keyed.window(GlobalWindows.create()).trigger(CountTrigger.of(2)), [8, 7, 15]),
        (
            lambda keyed: keyed.window(GlobalWindows.create()).trigger(PurgingTrigger.of(CountTrigger.of(2))),
            [8, 7, 7],
        ),
        (lambda keyed: keyed.window(Tumbling(20)).trigger(EventTimeTrigger.create()), [15, 13, 9]),
    ],
    ids=["count", "sliding", "growing", "purging", "default"],
)
def test_count_windows_and_triggers_of_pyflink(windowed: Callable[[Any], Any], expected: list[int]) -> None:
    job = StatefulJob("named")
    windowed(source_of(job).key_by("k")).aggregate(s=sum_("v"), uid="s").sink("s", CollectSink())
    with run_in_memory(job) as run:
        run.process({"rows": rows_of(GIVEN)})
        run.process(drain=True)
        assert sorted(row.s for row in run.sink("s")) == sorted(expected)


def test_the_default_trigger_of_the_clock_is_taken() -> None:
    windowed = keyed_of().window(TumblingProcessingTimeWindows.of(Time.seconds(1)))
    assert windowed.trigger(ProcessingTimeTrigger.create()) is not None


# -- what is refused ---------------------------------------------------------------------------------------------------


class OnCount(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None:
        """None of a window."""


def ranked_source(columns: str) -> Any:
    return source_of(StatefulJob("refused"), FileSource("/nowhere", schema=columns))


def sunk(
    windows: Any, key: list[str], step: Callable[[Any], Any] = lambda results: results, **sink: Any
) -> Any:
    """Running results of windows, in a sink with a key."""
    results = keyed_of().window(windows, emit="running").aggregate(uid="u", n=count())
    return step(results).sink("out", DeltaSink("/nowhere", key=key, **sink))


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "changes of a function": (
        lambda: keyed_of().window(Tumbling(5), lateness=5, emit="changes").process(Listed(), RESULT),
        "outputs of a function cannot be taken back; use emit='final'",
    ),
    "running results of a function": (
        lambda: keyed_of().window(Tumbling(5), emit="running").reduce(most, Listed(), RESULT),
        "outputs of a function cannot be taken back; use emit='final'",
    ),
    "a function of rows that change": (
        lambda: changing().window(Tumbling(5)).process(Listed(), RESULT),
        "takes inserts only, and its stream holds updates and deletes",
    ),
    "a reduction of rows that change": (
        lambda: changing().window(Tumbling(5)).reduce(most),
        "takes inserts only, and its stream holds updates and deletes",
    ),
    "a count window of rows that change": (
        lambda: changing().count_window(5).aggregate(n=count()),
        "takes inserts only, and its stream holds updates and deletes",
    ),
    "another function": (
        lambda: keyed_of().window(Tumbling(5)).process(OnCount(), RESULT),
        "process of a window takes a ProcessWindowFunction or a WindowFunction",
    ),
    "a function of keys for all": (
        lambda: source_of(StatefulJob("all")).window_all(Tumbling(5)).process(Listed(), RESULT),
        "takes a ProcessAllWindowFunction or a AllWindowFunction",
    ),
    "no type": (
        lambda: keyed_of().window(Tumbling(5)).process(Listed()),
        "output_type of process of a window is missing",
    ),
    "a type of reduce": (
        lambda: keyed_of().window(Tumbling(5)).reduce(most, output_type=RESULT),
        "output_type is that of a window_function; leave it out",
    ),
    "an aggregate and a function": (
        lambda: keyed_of().window(Tumbling(5)).aggregate(Total(), n=count()),
        "and not both. No such column can be called",
    ),
    "changes of a list": (
        lambda: keyed_of().window(Tumbling(5), emit="running").top_n(2, by="v"),
        "use emit='final'",
    ),
    "a list by the key": (
        lambda: keyed_of().window(Tumbling(5)).top_n(2, by="k"),
        "TopN needs columns to compare",
    ),
    "a list of no rows": (lambda: keyed_of().window(Tumbling(5)).top_n(0, by="v"), "keeps at least one row"),
    "a list with a clash": (
        lambda: (
            ranked_source("k string, rank int, at timestamp")
            .key_by("k")
            .window(Tumbling(5))
            .top_n(1, by="rank")
        ),
        "column 'rank', and one of this name comes out beside its rows: rename it",
    ),
    "a list with a column that the state has": (
        lambda: (
            ranked_source("k string, row_time int, at timestamp")
            .key_by("k")
            .window(Tumbling(5))
            .top_n(1, by="at")
        ),
        "column 'row_time', and the state keeps the event time of a row under this name: rename it",
    ),
    "a list of keyed rows with a clash": (
        lambda: ranked_source("k string, rank int, at timestamp").key_by("k").top_n(1, by="rank"),
        "column 'rank'.*leave the rank out, rank=False",
    ),
    "late rows of the clock": (
        lambda: keyed_of().window(Tumbling(5), time="clock", lateness=1),
        "windows of the clock have no late rows.*Leave lateness and late_to out",
    ),
    "a late output of the clock": (
        lambda: keyed_of().window(Tumbling(5), time="clock", late_to=LATE),
        "windows of the clock have no late rows",
    ),
    "another time": (lambda: keyed_of().window(Tumbling(5), time="wall"), "time must be 'event' or 'clock'"),
    "no rows in a window": (
        lambda: keyed_of().count_window(0),
        "size of a count window must be a whole number above 0",
    ),
    "a key that is forgotten by a time that there is not": (
        lambda: (
            StatefulJob("refused")
            .from_collection([], "k string, v bigint", name="rows")
            .key_by("k")
            .count_window(2, ttl=StateTtlConfig.new_builder("1 h").use_event_time().build())
        ),
        "ttl of count_window is by event time, and none of the sources of the stream has it",
    ),
    "rows between windows": (
        lambda: keyed_of().count_window(2, 3),
        "use a longer size, or filter rows before",
    ),
    "a late count window": (
        lambda: keyed_of().window(CountTumblingWindowAssigner.of(2), lateness=1),
        "leave lateness, late_to, emit and time out",
    ),
    "lateness of a count window": (
        lambda: keyed_of().count_window(2).allowed_lateness(5),
        "leave lateness, late_to, emit and time out",
    ),
    "a global window without trigger": (
        lambda: keyed_of().window(GlobalWindows.create()).aggregate(n=count()),
        r"never fire by themselves: add trigger\(CountTrigger.of\(n\)\)",
    ),
    "another trigger of a global window": (
        lambda: keyed_of().window(GlobalWindows.create()).trigger(EventTimeTrigger.create()),
        "only a CountTrigger fires them",
    ),
    "a trigger that counts": (
        lambda: keyed_of().window(Tumbling(5)).trigger(CountTrigger.of(3)),
        "For results on the way use emit='running'",
    ),
    "the trigger of the other time": (
        lambda: keyed_of().window(Tumbling(5)).trigger(ProcessingTimeTrigger.create()),
        "a window fires when it ends",
    ),
    "a gap of nothing": (
        lambda: EventTimeSessionWindows.with_dynamic_gap(5),  # type: ignore[arg-type]
        "takes a SessionWindowTimeGapExtractor or a callable",
    ),
    "key: no end": (
        lambda: sunk(Cumulating(4, every=2), ["k", "window_start"]),
        "sink 'out': several windows of operator 'u' can have the same key .*Add 'window_end' to the key",
    ),
    "such a key behind a filter": (
        lambda: sunk(Cumulating(4, every=2), ["k"], lambda results: results.filter(lambda row: row.n > 1)),
        "Add 'window_end' to the key",
    ),
    "such a key behind a union": (
        lambda: sunk(Cumulating(4, every=2), ["k", "window_start"], lambda results: results.union(results)),
        "Add 'window_end' to the key",
    ),
    "key: no start": (
        lambda: sunk(Sliding("1 h", every="15 min", time_zone="Europe/Rome"), ["k", "window_end"]),
        "Add 'window_start' to the key",
    ),
    "key: no bounds": (
        lambda: sunk(Tumbling(5), ["k"]),
        "Add 'window_start' to the key; or use emit='final'",
    ),
    "a key of sessions without bounds": (
        lambda: sunk(Session(5), ["k", "n"]),
        "Add 'window_start' to the key",
    ),
    "an evictor": (
        lambda: keyed_of().window(Tumbling(5)).evictor("CountEvictor.of(3)"),
        r"no row is taken out of a window.*Leave rows out in process\(…\).*top_n.*count_window",
    ),
    "two latenesses": (
        lambda: keyed_of().window(Tumbling(5), lateness=50).allowed_lateness(5),
        r"window\(…, lateness=50\) and allowed_lateness\(5\).*leave one of them out",
    ),
    "two late_to": (
        lambda: keyed_of().window(Tumbling(5), late_to=LATE).side_output_late_data(OutputTag("other", ROW)),
        "late rows go to one side output, so leave",
    ),
    "firings and changes": (
        lambda: keyed_of().window(Cumulating(4, every=2), emit="running").allowed_lateness(5),
        "each firing is one more insert.*leave emit out",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_windows_cannot_be_used_for_is_refused_with_the_way_out(name: str) -> None:
    build, message = REFUSED[name]
    with pytest.raises(ConfigurationError, match=message):
        build()


@pytest.mark.parametrize(
    ("windows", "keys"),
    [
        (Tumbling(5), (["k", "window_start"], ["k", "window_end"])),
        (Sliding(4, every=2), (["k", "window_start"], ["k", "window_end"])),
        (Sliding("1 h", every="15 min", time_zone="Europe/Rome"), (["k", "window_start"],)),
        (Cumulating(4, every=2), (["k", "window_end"], ["k", "window_start", "window_end"])),
        (Session(5), (["k", "window_start"], ["k", "window_end"])),
    ],
)
@pytest.mark.parametrize("emit", ["running", "changes"])
def test_a_sink_has_each_window_with_any_key_that_is_its_own(
    windows: Any, keys: tuple[list[str], ...], emit: Any
) -> None:
    """Beside windows that come out once, over rows in an order in which a late one joins sessions."""
    rows = [(k, 1, EPOCH + timedelta(milliseconds=at)) for at in (1, 3, 11, 14, 19, 7, 2) for k in "ab"]

    def table(emit: Any, key: list[str]) -> list[Any]:
        job = StatefulJob("sink")
        windowed = source_of(job, max_out_of_orderness=2).key_by("k").window(windows, lateness=20, emit=emit)
        windowed.aggregate(uid="u", n=count()).sink("out", DeltaSink("/nowhere", key=key))
        with run_in_memory(job) as run:
            for row in rows:
                run.process({"rows": [row]})
            run.process(drain=True)
            return sorted(tuple(row[name] for name in RESULTS_OF_WINDOWS) for row in run.table("out"))

    once = table("final", ["k", "window_start", "window_end"])
    assert len(once) > 1
    for key in keys:
        assert table(emit, key) == once


def test_a_sequence_says_which_window_of_a_key_stays() -> None:
    longest = sunk(Cumulating(6, every=2), ["k", "window_start"], sequence=["window_end"])
    with run_in_memory(longest._job) as run:
        run.process({"rows": [("a", 1, EPOCH + timedelta(milliseconds=at)) for at in (1, 3, 5, 0)]})
        assert [row["n"] for row in run.table("out")] == [4]
