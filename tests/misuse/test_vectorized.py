"""What a function over columns cannot be, have or return is refused, with the way out."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, cast

import pyarrow as pa
import pytest

from state_engine import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    StatefulJob,
    StateTtlConfig,
    Time,
    Types,
    ValueStateDescriptor,
    VectorizedKeyedFunction,
    VectorizedResult,
)
from state_engine.core.errors import ConfigurationError, ValueTypeError
from state_engine.testing import CollectSink, KeyedHarness, run_in_memory

TYPE = "k string, v bigint"


class Prepared(VectorizedKeyedFunction):
    """Opens and returns what a test prepares."""

    def __init__(self, opened: Callable[[Any], Any] | None = None, result: Any = None) -> None:
        self.opened, self.result = opened, result

    def open(self, runtime_context: Any) -> None:
        if self.opened is not None:
            self.opened(runtime_context)
        else:
            runtime_context.get_state(ValueStateDescriptor("total", int))

    def process_batch(self, rows: pa.Table, state: pa.Table, ctx: Any) -> Any:
        return self.result


class WithTimers(Prepared):
    uses_timers = True

    def __init__(self, result: Any = None) -> None:
        super().__init__(lambda c: c.get_map_state(MapStateDescriptor("seen", str, int)), result)


def run(function: VectorizedKeyedFunction, key: str = "k", columns: str = TYPE) -> None:
    job = StatefulJob("refused")
    rows = job.from_collection([("a", 1), ("b", 2)], columns, name="rows")
    rows.key_by(key).process(function, TYPE, uid="u").sink("out", CollectSink())
    with run_in_memory(job) as memory:
        memory.run()


def with_event_time() -> ValueStateDescriptor:
    state = ValueStateDescriptor("total", int)
    state.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).use_event_time().build())
    return state


def expiring_map() -> MapStateDescriptor:
    state = MapStateDescriptor("seen", str, int)
    state.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
    return state


STATES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a list state": (
        lambda c: c.get_list_state(ListStateDescriptor("seen", int)),
        "state 'seen' is a list state, and a VectorizedKeyedFunction has one value for each key"),
    "a map that expires": (
        lambda c: c.get_map_state(expiring_map()),
        "state 'seen' is a map whose entries expire.*remove entries by timers, or use a KeyedProcessFunction"),
    "pickled objects": (
        lambda c: c.get_state(ValueStateDescriptor("any", Types.PICKLED_BYTE_ARRAY(allow_pickle=True))),
        "state 'any' holds pickled objects, which have no columns"),
    "event time to live": (
        lambda c: c.get_state(with_event_time()), "state 'total' expires by event time.*by processing time"),
    "the name of the key": (
        lambda c: c.get_state(ValueStateDescriptor("k", int)), "state 'k' has the name of a column of the key"),
}  # fmt: skip


@pytest.mark.parametrize(("opened", "message"), STATES.values(), ids=STATES)
def test_states_that_columns_cannot_hold_are_refused(opened: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"(?s)operator 'u'.*{message}"):
        run(Prepared(opened))


RESULTS: dict[str, tuple[Any, str]] = {
    "no table": ([("a", 1)], "gave list as outputs: return a pyarrow.Table"),
    "other columns": (
        pa.table({"k": ["a"]}), r"gave outputs with the columns \['k'\]; output_type declares \['k', 'v'\]"),
    "a value of another type": (
        pa.table({"k": ["a"], "v": ["x"]}), "output column 'v': a column of string is not one of type int64"),
    "a row that there is not": (
        pa.table({"k": ["a"], "v": [1], "_row": [7]}), "column '_row' of outputs must hold numbers from 0 to 1"),
    "a state that there is not": (
        VectorizedResult(state=pa.table({"_key": [0], "sum": [1]})),
        r"gave state with the columns \['_key', 'sum'\]: give '_key', .* and any of \['total'\]"),
    "state without keys": (VectorizedResult(state=pa.table({"total": [1]})), "give '_key', the numbers of the keys"),
    "a key twice": (
        VectorizedResult(state=pa.table({"_key": [0, 0], "total": [1, 2]})), "two rows of one key as state"),
    "a refused row without a reason": (
        VectorizedResult(refused=pa.table({"_row": [0]})), "give '_row', their numbers, and 'error', why"),
}  # fmt: skip


@pytest.mark.parametrize(("result", "message"), RESULTS.values(), ids=RESULTS)
def test_results_that_do_not_fit_are_refused(result: Any, message: str) -> None:
    with pytest.raises(
        (ConfigurationError, ValueTypeError), match=f"(?s)operator 'u': process_batch of Prepared.*{message}"
    ):
        run(Prepared(result=result))


def outputs_of(**columns: Any) -> pa.Table:
    return pa.table({"k": ["a"], "v": [1], **columns})


def entry(key: int = 0, map_key: Any = "x", value: Any = 1, **more: Any) -> VectorizedResult:
    return VectorizedResult(
        maps={"seen": pa.table({"_key": [key], "map_key": [map_key], "value": [value], **more})}
    )


def timer(time: Any, key: int = 0, **more: Any) -> VectorizedResult:
    return VectorizedResult(timers=pa.table({"_key": [key], "time": [time], **more}))


NOWHERE = OutputTag("nowhere", TYPE)
TWICE = {name: pa.array([value] * 2) for name, value in {"_key": 0, "map_key": "x", "value": 1}.items()}
TIMED: dict[str, tuple[Any, str]] = {
    "a map that there is not": (
        VectorizedResult(maps={"sean": pa.table({"_key": [0]})}),
        r"map 'sean', and open asked for the maps \['seen'\]"),
    "entries without a column": (
        VectorizedResult(maps={"seen": pa.table({"_key": [0], "map_key": ["x"]})}),
        r"map 'seen' with the columns \['_key', 'map_key'\]: give \['_key', 'map_key', 'value'\]; a null value"),
    "a map key of another type": (
        entry(map_key=1), "map 'seen', 'map_key': a column of int64 is not one of type string"),
    "an entry of a key that there is not": (
        entry(key=2), "column '_key' of map 'seen' must hold numbers from 0 to 1"),
    "an entry twice": (
        VectorizedResult(maps={"seen": pa.table(TWICE)}), "two rows of one entry of map 'seen': give each 'map_key'"),
    "a timer of a key that there is not": (timer(99, key=2), "column '_key' of timers must hold numbers from 0 to 1"),
    "a timer without a time": (
        timer(None), "column 'time' of timers must hold times in whole milliseconds, as bigint without null"),
    "a timer with another column": (
        timer(99, domain=["event"]), r"timers with the columns \['_key', 'time', 'domain'\]: give \['_key', 'time'\]"),
    "a timer that is due": (
        timer(5), "sets a timer at 5 ms, which the watermark reaches with this batch, at 6 ms: do at once what"),
    "a timer that is set and deleted": (
        VectorizedResult(timers=pa.table({"_key": [0, 0], "time": [9, 9], "deleted": [True, False]})),
        "sets and deletes one timer: give it once"),
    "an output of a timer that is not due": (
        outputs_of(_timer=[7], _key=[0]), "outputs of a timer at 7 ms, and the watermark reaches 6 ms with this batch"),
    "an output of a timer without its key": (
        outputs_of(_timer=[5]), "outputs with '_timer' and without '_key': give the number of the key"),
    "an output of a timer of a key that there is not": (
        outputs_of(_timer=[5], _key=[7]), "column '_key' of outputs must hold numbers from 0 to 1"),
    "an output of a row and a timer": (
        outputs_of(_timer=[5], _key=[0], _row=[0]), "'_row' and '_timer' in one row: an output came from one of them"),
    "an event time that is none": (
        outputs_of(_event_time=["noon"]), "column '_event_time' of outputs must hold times in whole milliseconds"),
    "a kind without saying so": (
        outputs_of(_kind=["-D"]), "outputs with '_kind': say emits_changes = True on the class"),
    "a side output that nobody reads": (
        VectorizedResult(side={NOWHERE: outputs_of(_row=[0])}),
        "gave a side output 'nowhere' of .*ask the stream for it, get_side_output"),
    "a side output of a name": (
        VectorizedResult(side={cast(Any, "late"): None}), "a side output of 'late': give it an OutputTag"),
}  # fmt: skip


def timed(function: Any, **options: Any) -> KeyedHarness:
    return KeyedHarness(
        function, key_by=lambda row: row[0], key_type=str, input_type=TYPE, output_type=TYPE,
        timestamp_of=lambda row: row[1], max_out_of_orderness_ms=0, side_outputs=[], **options,
    )  # fmt: skip


@pytest.mark.parametrize(("result", "message"), TIMED.values(), ids=TIMED)
def test_maps_timers_and_places_that_do_not_fit_are_refused(result: Any, message: str) -> None:
    with pytest.raises(
        (ConfigurationError, ValueTypeError), match=f"(?s)process_batch of WithTimers.*{message}"
    ):
        timed(WithTimers(result)).process([("a", 3), ("b", 7)])


def test_timers_and_event_times_need_what_they_stand_on() -> None:
    with pytest.raises(ConfigurationError, match="gave timers: say uses_timers = True on the class"):
        timed(Prepared(result=timer(99))).process([("a", 1)])
    untimed: dict[str, Any] = {"key_by": lambda row: row[0], "key_type": str}
    with pytest.raises(ConfigurationError, match="'_event_time', and its stream has no event time"):
        KeyedHarness(
            Prepared(result=outputs_of(_event_time=[1])), input_type=TYPE, output_type=TYPE, **untimed
        ).process([("a", 1)])
    harness = timed(WithTimers(timer(9)))
    harness.process([("a", 1)])
    cast(Any, harness.function).result = outputs_of()
    with pytest.raises(
        ConfigurationError, match="outputs where there is no row but a due timer: give '_timer'"
    ):
        harness.drain()


class ByClock(KeyedProcessFunction):
    """Sets a timer of processing time."""

    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_processing_time_timer(5)

    def on_timer(self, timestamp: int, ctx: Any) -> None:
        pass


def test_a_timer_of_processing_time_that_is_due_is_refused() -> None:
    before = timed(ByClock())
    before.process([("a", 1)])
    harness = timed(WithTimers())
    harness._stored = before.snapshot()
    assert harness.process([("a", 2)]) == []
    harness.set_clock(5)
    with pytest.raises(
        ConfigurationError, match=r"a timer of processing time is due, at 5 ms.*KeyedProcessFunction"
    ):
        harness.process([("a", 3)])


class SetsAside(Prepared):
    """Gives a row to the side output that late rows go to."""

    def process_batch(self, rows: pa.Table, state: pa.Table, ctx: Any) -> Any:
        return VectorizedResult(side={LATE: pa.table({"k": ["b"], "at": [rows["at"][0]], "_row": [0]})})


LATE = OutputTag("late", "k string, at timestamp")


def test_a_side_output_of_late_rows_and_of_a_function_over_columns_is_refused() -> None:
    job = StatefulJob("refused")
    given = [("a", datetime(2024, 1, 1, hour, tzinfo=UTC)) for hour in (5, 3)]
    times = job.from_collection(
        given, "k string, at timestamp", name="times", event_time="at", late_to=LATE, max_rows_per_batch=1
    )
    kept = times.union(job.from_collection(given[:1] * 2, "k string, at timestamp", name="others", event_time="at",
                                           max_rows_per_batch=1))  # fmt: skip
    aside = kept.key_by("k").process(SetsAside(), "k string, at timestamp", uid="aside")
    aside.get_side_output(LATE).sink("late", CollectSink())
    with (
        run_in_memory(job) as memory,
        pytest.raises(
            ConfigurationError,
            match="operator 'aside': the side output 'late' has the late rows of a source, and a function over columns "
            "gave rows for it, too: use a tag for each",
        ),
    ):
        memory.run()


class OfKinds(Prepared):
    emits_changes = True


def test_a_kind_that_there_is_not_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"outputs of the kind 'U': kinds are \['\+I', '-U', '\+U', '-D'\]"
    ):
        timed(OfKinds(result=outputs_of(_kind=["U"]))).process([("a", 1)])


def test_columns_of_the_stream_with_the_names_of_numbers_are_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"the stream has a column '_row'.*rename it in a transform or map before"
    ):
        run(Prepared(), columns="k string, _row bigint")


def test_an_output_of_a_refused_row_is_refused() -> None:
    refused = pa.table({"_row": [0], "error": ["bad"]})
    result = VectorizedResult(pa.table({"k": ["a"], "v": [1], "_row": [0]}), refused=refused)
    options: dict[str, Any] = {
        "key_by": lambda row: row[0],
        "key_type": str,
        "input_type": TYPE,
        "output_type": TYPE,
    }
    harness = KeyedHarness(Prepared(result=result), on_error="dead_letter", **options)
    with pytest.raises(ConfigurationError, match="refused a row and gave an output of it"):
        harness.process([("a", 1)])


def test_streams_that_it_cannot_be_on_are_refused_while_they_are_wired() -> None:
    job = StatefulJob("wired")
    rows = job.from_collection([], TYPE, name="rows")
    with pytest.raises(
        ConfigurationError, match="Prepared is a VectorizedKeyedFunction, which works on keyed streams"
    ):
        rows.process(Prepared(), TYPE, uid="u")
    changing = job.from_collection([], TYPE, name="changing", changing=True)
    with pytest.raises(
        ConfigurationError, match=r"Handle ctx\.kinds in it and say accepts_changes = True on the class"
    ):
        changing.key_by("k").process(Prepared(), TYPE, uid="v")


def test_a_harness_must_know_the_types() -> None:
    with pytest.raises(ConfigurationError, match="give it key_by, and input_type, key_type and output_type"):
        KeyedHarness(Prepared(), key_by=lambda row: row[0])
