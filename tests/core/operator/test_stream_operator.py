"""The operator loop: what a function may return, and what happens where it raises."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from state_engine.core.errors import MissingFilesError, StateAccessError, StateMigrationError, StorageError
from state_engine.core.functions.every_function import (
    MIN_TIMESTAMP,
    Function,
    KeyedProcessFunction,
    TimerService,
)
from state_engine.core.functions.runtime_context import RuntimeContext, TaskInfo
from state_engine.core.operator.outputs import ElementOutputs, ElementRefused
from state_engine.core.operator.stream_operator import StreamOperator
from state_engine.core.state.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from state_engine.core.state.state_table import NO_KEY
from state_engine.core.types.row import Row
from state_engine.core.types.type_parsing import to_type
from tests.core.state.handles import Bench

Context = KeyedProcessFunction.Context


class Returns(KeyedProcessFunction):
    """Returns whatever a callable makes of the element."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self.make = make
        self.closed = 0

    def process_element(self, value: Any, ctx: Context) -> Any:
        return self.make(value)

    def close(self) -> None:
        self.closed += 1


def run(
    function: KeyedProcessFunction,
    values: Iterable[Any],
    *,
    bench: Bench | None = None,
    key: Any = "k",
    **options: Any,
) -> ElementOutputs:
    values, out = list(values), ElementOutputs()
    (bench or Bench()).operator(function, **options).process(
        [key] * len(values), values, [None] * len(values), out
    )
    return out


@pytest.mark.parametrize(
    "make",
    [
        lambda v: [v, v],
        lambda v: (x for x in (v, v)),
        lambda v: iter([v, v]),
        lambda v: map(int, [v, v]),
        lambda v: {v: 1}.keys() | {-v},
        lambda v: range(2),
    ],
)
def test_outputs_are_yielded_or_returned_in_any_iterable(make: Callable[[Any], Any]) -> None:
    out = run(Returns(make), [1])
    assert len(out.values) == 2
    assert out.origins == [0, 0]


@pytest.mark.parametrize("result", [None, [], iter(())])
def test_nothing_is_no_output(result: Any) -> None:
    assert run(Returns(lambda v: result), [1, 2]).values == []


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("letters", "process_element returned 'letters': yield the outputs"),
        (b"bytes", "yield the outputs"),
        ({"a": 1}, "yield the outputs"),
        (5, "yield the outputs"),
        (True, "yield the outputs"),
        ((1, 2), r"returned the tuple \(1, 2\): to emit it, yield it or return \[it\]"),
        (Row(a=1), "returned the tuple"),
    ],
)
def test_one_output_that_is_returned_bare_is_refused(result: Any, message: str) -> None:
    with pytest.raises(ElementRefused, match=message) as caught:
        run(Returns(lambda v: result), [1])
    assert caught.value.refusal.error.startswith("ValueTypeError: ")


def test_outputs_are_normalised_and_know_their_element() -> None:
    out = run(Returns(lambda v: [v] * v), [2, 0, 1], output=float)
    assert out.values == [2.0, 2.0, 1.0]
    assert {type(v) for v in out.values} == {float}
    assert out.origins == [0, 0, 2]


def test_an_output_of_the_wrong_type_refuses_its_element() -> None:
    out = run(Returns(lambda v: [0, v]), [1, "x", 2**63, 3], dead_letters=True)
    assert out.values == [0, 1, 0, 3]
    assert out.origins == [0, 0, 3, 3]
    assert [(r.index, r.error.split(":")[0]) for r in out.refused] == [
        (1, "ValueTypeError"),
        (2, "ValueTypeError"),
    ]


def test_outputs_by_name_are_put_in_order() -> None:
    makes: list[Callable[[Any], Any]] = [
        lambda v: [Row(b="x", a=v)],
        lambda v: [{"b": "x", "a": v}],
        lambda v: [(v, "x")],
    ]
    for make in makes:
        assert run(Returns(make), [1], output="a bigint, b string").values == [(1, "x")]


class Remembers(KeyedProcessFunction):
    """Writes to all three states, yields once, and raises on "bad" elements."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.value = runtime_context.get_state(ValueStateDescriptor("value", str))
        self.list = runtime_context.get_list_state(ListStateDescriptor("list", str))
        self.map = runtime_context.get_map_state(MapStateDescriptor("map", str, str))

    def process_element(self, value: str, ctx: Context) -> Iterable[str]:
        self.map.remove("b")
        self.map.put("b", value)
        self.map.put("new", value)
        self.list.add(value)
        self.list.update([*self.list.get(), value])
        self.list.add(value)
        yield value
        self.map.clear()
        self.map.put("z", value)
        self.value.update(value)
        self.value.clear()
        if value.startswith("bad"):
            raise RuntimeError("on purpose")
        yield self.value.value() or "cleared"


def loaded() -> dict[str, dict[str, Any]]:
    return {"value": {"k": "v"}, "list": {"k": ["l"]}, "map": {"k": {"a": "1", "b": "2", "c": "3"}}}


def test_a_failing_element_leaves_no_trace_under_dead_letter() -> None:
    bench = Bench(**loaded())
    out = run(Remembers(), ["bad"], bench=bench, output=str, dead_letters=True)

    assert (out.values, out.origins) == ([], [])
    assert {name: dict(t.entries) for name, t in bench.store.tables.items()} == loaded()
    assert list(bench.entries("map")["k"].items()) == list(loaded()["map"]["k"].items())  # in the same order
    assert bench.changes() == []


def test_a_failing_element_of_a_new_key_leaves_no_trace() -> None:
    bench = Bench()
    run(Remembers(), ["bad"], bench=bench, output=str, dead_letters=True)
    assert [dict(t.entries) for t in bench.store.tables.values()] == [{}, {}, {}]
    assert bench.changes() == []


def test_the_elements_around_a_failing_one_are_kept() -> None:
    bench, alone = Bench(**loaded()), Bench(**loaded())
    out = run(Remembers(), ["x", "bad", "y", "bad again"], bench=bench, output=str, dead_letters=True)
    without = run(Remembers(), ["x", "y"], bench=alone, output=str, dead_letters=True)

    assert out.values == without.values
    assert out.origins == [0, 0, 2, 2]
    assert bench.changes() == alone.changes()
    assert [(r.index, r.key, r.error) for r in out.refused] == [
        (1, "k", "RuntimeError: on purpose"),
        (3, "k", "RuntimeError: on purpose"),
    ]
    assert "process_element" in out.refused[0].traceback_text


def test_a_failing_element_ends_the_batch_under_fail() -> None:
    out = ElementOutputs()
    operator = Bench(**loaded()).operator(Remembers(), output=str)
    with pytest.raises(ElementRefused) as caught:
        operator.process("kk", ["x", "bad"], [None, None], out)
    refusal = caught.value.refusal
    assert (refusal.index, refusal.key, refusal.error) == (1, "k", "RuntimeError: on purpose")
    assert out.refused == []
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize(
    "error", [StateMigrationError("no"), MissingFilesError("gone"), StorageError("denied")]
)
@pytest.mark.parametrize("dead_letters", [False, True])
def test_what_no_other_row_would_cure_ends_the_batch_whatever_the_policy(
    error: Exception, dead_letters: bool
) -> None:
    def fail(value: Any) -> Any:
        raise error

    with pytest.raises(type(error), match=str(error)):
        run(Returns(fail), [1], dead_letters=dead_letters)


def test_an_interrupt_is_nobodys_dead_letter() -> None:
    def interrupt(value: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(Returns(interrupt), [1], dead_letters=True)


@pytest.mark.parametrize("dead_letters", [False, True])
def test_open_and_close_fail_the_batch_whatever_the_policy(dead_letters: bool) -> None:
    class Broken(KeyedProcessFunction):
        def open(self, runtime_context: RuntimeContext) -> None:
            raise ValueError("in open")

        def close(self) -> None:
            raise ValueError("in close")

    with pytest.raises(ElementRefused, match="ValueError: in open") as caught:
        Bench().operator(Broken(), dead_letters=dead_letters)
    assert (caught.value.refusal.index, caught.value.refusal.key) == (None, None)
    unopened = StreamOperator(
        Broken(),
        info=TaskInfo("counter"),
        store=Bench().store,
        context=Bench().context,
        timers=TimerService(0, 0),
        output_type=to_type(int, parameter="p"),
    )
    with pytest.raises(ElementRefused, match="ValueError: in close"):
        unopened.close()


def test_there_is_no_key_before_and_after_the_elements() -> None:
    bench = Bench()
    contexts: list[Context] = []

    class Keeps(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Context) -> None:
            contexts.append(ctx)
            assert ctx.get_current_key() == "k"

    run(Keeps(), [1, 2], bench=bench)
    assert bench.context.key is NO_KEY
    with pytest.raises(StateAccessError, match="without a current key"):
        contexts[0].get_current_key()

    with pytest.raises(ElementRefused):
        run(Returns(lambda v: 1 / v), [0], bench=bench)
    assert bench.context.key is NO_KEY


def test_elements_know_their_key_time_and_clocks() -> None:
    class Clocks(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Context) -> Iterable[Any]:
            timers = ctx.timer_service()
            yield (
                ctx.get_current_key(),
                ctx.timestamp(),
                timers.current_processing_time(),
                timers.current_watermark(),
            )

    out = ElementOutputs()
    operator = Bench().operator(Clocks(), output="key string, at bigint, clock bigint, watermark bigint")
    operator.process(["a", "b"], [0, 0], [5, None], out)
    assert out.values == [("a", 5, 1000, MIN_TIMESTAMP), ("b", None, 1000, MIN_TIMESTAMP)]


def test_a_function_must_say_what_it_does() -> None:
    with pytest.raises(ElementRefused, match="NotImplementedError: KeyedProcessFunction must define"):
        run(KeyedProcessFunction(), [1])
    Function().open(RuntimeContext(TaskInfo("counter"), None))
    Function().close()


def test_keys_and_values_are_paired_in_order() -> None:
    class Counts(KeyedProcessFunction):
        def open(self, runtime_context: RuntimeContext) -> None:
            self.seen = runtime_context.get_state(ValueStateDescriptor("s", int, default=0))

        def process_element(self, value: Any, ctx: Context) -> Iterable[Any]:
            self.seen.update(self.seen.value() + value)
            yield self.seen.value()

    bench, out = Bench(s={"b": 100}), ElementOutputs()
    bench.operator(Counts()).process("abab", [1, 2, 3, 4], [None] * 4, out)
    assert out.values == [1, 102, 4, 106]
    assert bench.changes() == [("b", "put", 106), ("a", "put", 4)]
