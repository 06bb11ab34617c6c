"""What a function over columns cannot be, have or return is refused, with the way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from state_engine import (
    ListStateDescriptor,
    MapStateDescriptor,
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


class Changing(Prepared):
    accepts_changes = True


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


STATES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a list state": (
        lambda c: c.get_list_state(ListStateDescriptor("seen", int)),
        "state 'seen' is a list state, and a VectorizedKeyedFunction has one value for each key"),
    "a map state": (
        lambda c: c.get_map_state(MapStateDescriptor("seen", str, int)),
        "state 'seen' is a map state.*use a ValueStateDescriptor, or a KeyedProcessFunction"),
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
    with pytest.raises(ConfigurationError, match="Changing says accepts_changes or emits_changes"):
        rows.key_by("k").process(Changing(), TYPE, uid="u")
    changing = job.from_collection([], TYPE, name="changing", changing=True)
    with pytest.raises(
        ConfigurationError, match="Functions over columns see no kinds: use a KeyedProcessFunction"
    ):
        changing.key_by("k").process(Prepared(), TYPE, uid="v")


def test_a_harness_must_know_the_types() -> None:
    with pytest.raises(ConfigurationError, match="give it key_by, and input_type, key_type and output_type"):
        KeyedHarness(Prepared(), key_by=lambda row: row[0])
