"""Functions of whole windows, reductions and aggregate functions against models: random streams, cuts and restores."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from state_engine import (
    AggregateFunction,
    AggregatingStateDescriptor,
    EmbeddedRocksDBStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
    ReduceFunction,
    ReducingStateDescriptor,
    Row,
    RowKind,
    Session,
    Sliding,
    Tumbling,
    ValueStateDescriptor,
)
from state_engine.core.errors import StateAccessError, ValueTypeError
from state_engine.core.functions.window_functions import ProcessWindowFunction, WindowFunction
from state_engine.core.types.type_parsing import to_type
from state_engine.operators.windows.aligned_windows import AlignedWindows
from state_engine.operators.windows.contents import Accumulated, Contents, ReducedRows, WholeRows
from state_engine.operators.windows.session_windows import SessionWindows
from state_engine.operators.windows.window_process import CalledFunction
from state_engine.operators.windows.window_results import Emitter, WindowSettings
from state_engine.testing import KeyedHarness
from tests.operators.any_cut import at_any_cut
from tests.operators.windows.models import Event, Windowed
from tests.operators.windows.test_windows import ASSIGNERS, BOUND, LATE, SEEDS, options, stream

ROW = to_type("k string, v bigint, x double, at bigint", parameter="rows")
Expected = dict[tuple[str, int, int], Any]


class Listed(ProcessWindowFunction):
    """The rows of a window, in the order in which they are given; how often it fired, in state of the window."""

    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Iterable[Any]:
        window = context.window()
        yield key, window.start, window.end, [tuple(row) for row in elements]


class Applied(WindowFunction):
    def apply(self, key: Any, window: Any, inputs: Iterable[Any]) -> Iterable[Any]:
        return [(key, window.start, window.end, list(inputs))]


class Total(AggregateFunction):
    """A list that is changed in place: sum and number of ``v``."""

    def create_accumulator(self) -> list[int]:
        return [0, 0]

    def add(self, value: Any, accumulator: list[int]) -> list[int]:
        accumulator[0] += value.v
        accumulator[1] += 1
        return accumulator

    def get_result(self, accumulator: list[int]) -> tuple[int, ...]:
        return tuple(accumulator)


class MergedTotal(Total):
    def merge(self, acc_a: list[int], acc_b: list[int]) -> list[int]:
        acc_a[0] += acc_b[0]
        acc_a[1] += acc_b[1]
        return acc_a


class Accumulator(MergedTotal):
    """Gives the list itself, which the next row changes."""

    def get_result(self, accumulator: list[int]) -> Any:
        return accumulator


class Greatest(ReduceFunction):
    """The row with the greatest ``v``, of several the earliest."""

    def reduce(self, value1: Any, value2: Any) -> Any:
        return max([value1, value2], key=place)


def place(row: Any) -> tuple[Any, ...]:
    return row.v, -row.at, row.x


def by_time(rows: list[Event]) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in sorted(rows, key=lambda row: row.at)]


def totals(rows: list[Event]) -> list[tuple[int, int]]:
    return [(sum(row.v for row in rows), len(rows))]


def greatest(rows: list[Event]) -> list[tuple[Any, ...]]:
    return [tuple(max(rows, key=place))]


ACCUMULATOR = to_type(list[int], parameter="accumulator")
USES: dict[str, tuple[Callable[[Any], Contents], Callable[[], Any], Callable[[list[Event]], Any]]] = {
    "process": (lambda windows: WholeRows(ROW), Listed, by_time),
    "apply": (lambda windows: WholeRows(ROW), Applied, by_time),
    "reduce": (lambda windows: ReducedRows(Greatest(), ROW), Applied, greatest),
    "aggregate": (lambda windows: Accumulated(MergedTotal(), ACCUMULATOR), Applied, totals),
    "accumulator": (lambda windows: Accumulated(Accumulator(), ACCUMULATOR), Applied, totals),
    "aggregate without merge": (
        lambda windows: (
            Accumulated(Total(), ACCUMULATOR)
            if isinstance(windows, Tumbling)
            else WholeRows(ROW, Accumulated(Total(), ACCUMULATOR))
        ),
        Applied,
        totals,
    ),
}


def operator(windows: Any, contents: Contents, emitter: Emitter, settings: WindowSettings) -> Any:
    kind = SessionWindows if isinstance(windows, Session) else AlignedWindows
    return kind(windows, contents, emitter, settings)


@SEEDS
@pytest.mark.parametrize("lateness", [7, pytest.param(0, marks=pytest.mark.more)])
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", ASSIGNERS)
def test_a_function_gets_what_the_model_has(name: str, use: str, lateness: int, seeds: range) -> None:
    (windows, model), (contents, function, expects) = ASSIGNERS[name], USES[use]

    def made() -> Any:
        emitter = CalledFunction(function(), merging=isinstance(windows, Session))
        return operator(windows, contents(windows), emitter, WindowSettings(lateness, LATE))

    for seed in seeds:
        rng, rows = random.Random(seed), stream(seed)
        windowed: Windowed = model(rows, bound=BOUND, lateness=lateness)
        ran, shown = at_any_cut(made, rows, rng, options, late=LATE, sizes=(1, 4, 30)), Expected()
        put(shown, ran.outputs)
        assert shown == {window: expects(of) for window, of in windowed.rows.items()}, f"seed {seed}"
        assert [tuple(row) for row in ran.late] == windowed.late, f"seed {seed}"
        assert ran.left <= ({"closed"} if name == "computed" else set()), f"seed {seed}"


def put(shown: Expected, outputs: list[Any]) -> None:
    for k, start, end, rows in outputs:
        assert (k, start, end) not in shown, "a window fired twice"
        shown[k, start, end] = [tuple(row) for row in rows]


@pytest.mark.parametrize("name", ["tumbling", "sliding", "session"])
@pytest.mark.parametrize("use", ["reduce", "aggregate", "accumulator"])
@pytest.mark.parametrize("emit", ["changes", "running"])
def test_reductions_and_accumulators_are_taken_back_exactly(name: str, use: str, emit: Any) -> None:
    """Also where the function changes what it is given; the newest results are those of the model."""
    (windows, model), (contents, _, expects) = ASSIGNERS[name], USES[use]
    for seed in range(8):
        rows, shown = stream(seed), list[Any]()
        function = operator(windows, contents(windows), Emitter(), WindowSettings(7, LATE, emit))
        run = KeyedHarness(function, **options())
        for output in [*run.process(rows[:20]), *run.process(rows[20:]), *run.drain()]:
            kind, result = (output.get_row_kind(), output) if isinstance(output, Row) else output
            if kind in (RowKind.DELETE, RowKind.UPDATE_BEFORE):
                shown.remove(tuple(result))
            else:
                shown.append(tuple(result))
        windowed = model(rows, bound=BOUND, lateness=7)
        assert sorted(shown) == sorted(one for of in windowed.rows.values() for one in expects(of)), (
            f"seed {seed}"
        )


# -- state of windows --------------------------------------------------------------------------------------------------


class Remembers(ProcessWindowFunction):
    """Every kind of state of a window, and one of the key: how often each window fired, and how often all did."""

    def __init__(self, *, clears: bool = False) -> None:
        self.cleared = clears

    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Iterable[Any]:
        value, listed, mapped, reduced, aggregated = self.states(context.window_state())
        value.update((value.value() or 0) + 1)
        listed.add(len(list(elements)))
        mapped.put(key, value.value())
        reduced.add(10)
        aggregated.add(Row(v=1))
        total = context.global_state().get_state(ValueStateDescriptor("total", int))
        total.update((total.value() or 0) + 1)
        assert key in mapped
        assert list(mapped.items()) == [(key, value.value())]
        yield (
            context.window().start,
            value.value(),
            listed.get(),
            reduced.get(),
            aggregated.get(),
            total.value(),
        )

    def clear(self, context: Any) -> None:
        self.states(context.window_state())

    def states(self, of: Any) -> tuple[Any, ...]:
        return (
            of.get_state(ValueStateDescriptor("fired", int)),
            of.get_list_state(ListStateDescriptor("sizes", int)),
            of.get_map_state(MapStateDescriptor("by key", str, int)),
            of.get_reducing_state(ReducingStateDescriptor("reduced", lambda a, b: a + b, int)),
            of.get_aggregating_state(AggregatingStateDescriptor("aggregated", Total(), list[int])),
        )


def remembering(windows: Any, lateness: int) -> Any:
    emitter = CalledFunction(Remembers(), merging=isinstance(windows, Session))
    return operator(windows, WholeRows(ROW), emitter, WindowSettings(lateness, LATE, firings=True))


@pytest.mark.parametrize("backend", [None, EmbeddedRocksDBStateBackend()], ids=["heap", "rocksdb"])
def test_a_window_has_state_of_its_own_which_goes_with_it(backend: Any) -> None:
    def again(run: KeyedHarness) -> KeyedHarness:
        return KeyedHarness.restored(
            remembering(Tumbling(10), 5), run.snapshot(), **options(2, backend, None)
        )

    def fired(run: KeyedHarness, *times: int) -> Any:
        return run.process([Event("a", 1, 0.0, at) for at in times])

    run = KeyedHarness(remembering(Tumbling(10), 5), **options(2, backend, None))
    fired(run, 1, 12)
    run.set_watermark(9)
    assert run.process([]) == [(0, 1, [1], 10, (1, 1), 1)]
    run = again(run)
    assert fired(run, 3, 4) == [(0, 2, [1, 2], 20, (2, 2), 2), (0, 3, [1, 2, 3], 30, (3, 3), 3)]
    assert run.state("window_fired") == {"a": {(0, 10): 3}}
    run = again(run)
    run.set_watermark(14)
    assert run.process([]) == []
    assert [
        run.state(f"window_{name}") for name in ("fired", "sizes", "by key", "reduced", "aggregated")
    ] == [{}] * 5
    assert fired(run, 5) == []  # the window is closed
    assert run.side_output(LATE) == [("a", 1, 0.0, 5)]
    run = again(run)
    run.set_watermark(19)
    assert run.process([]) == [(10, 1, [1], 10, (1, 1), 4)]
    run.drain()
    assert run.state("total") == {"a": 4}
    assert run.state("window_fired") == run.state("elements") == {}


def test_sliding_windows_that_close_one_by_one_each_clear_their_state() -> None:
    run = KeyedHarness(remembering(Sliding(20, every=10), 5), **options(bound=None))
    run.process([Event("a", 1, 0.0, 12)])
    run.set_watermark(19)
    assert [start for start, *_ in run.process([])] == [0]
    assert run.state("window_fired") == {"a": {(0, 20): 1}}
    run.set_watermark(24)
    run.process([])
    assert run.state("window_fired") == {}
    run.set_watermark(29)
    assert [start for start, *_ in run.process([])] == [10]
    assert run.state("window_fired") == {"a": {(10, 30): 1}}


def test_a_session_has_no_state_of_its_own() -> None:
    run = KeyedHarness(remembering(Session(5), 0), **options())
    run.process([Event("a", 1, 0.0, 1)])
    with pytest.raises(StateAccessError, match=r"window_state\(\) of a session.*global_state\(\)"):
        run.drain()


class Returns(ProcessWindowFunction):
    def __init__(self, returned: Any) -> None:
        self.returned = returned

    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Any:
        return self.returned


@pytest.mark.parametrize("returned", ["text", ("a", 1), 7])
def test_what_a_window_function_returns_must_be_outputs(returned: Any) -> None:
    emitter = CalledFunction(Returns(returned), merging=False)
    run = KeyedHarness(operator(Tumbling(5), WholeRows(ROW), emitter, WindowSettings()), **options())
    run.process([Event("a", 1, 0.0, 1)])
    with pytest.raises(ValueTypeError, match="process returned"):
        run.drain()


def test_outputs_of_functions_have_the_time_of_the_window_side_outputs_too() -> None:
    emitter = CalledFunction(Returns([1, (LATE, ("a", 1, 0.5, 7))]), merging=False)
    run = KeyedHarness(operator(Tumbling(5), WholeRows(ROW), emitter, WindowSettings()), **options())
    run.process([Event("a", 1, 0.0, 1)])
    assert run.drain() == [1]
    assert run.output_timestamps == [4]
    assert run.side_output(LATE) == [("a", 1, 0.5, 7)]
