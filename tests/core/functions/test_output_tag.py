"""Side outputs: tags, what may be yielded to them, and that refused elements leave nothing there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from state_engine.core.errors import ConfigurationError, InvalidNameError, ValueTypeError
from state_engine.core.functions.every_function import KeyedProcessFunction, ProcessFunction
from state_engine.core.functions.output_tag import OutputTag
from state_engine.testing import KeyedHarness, OperatorHarness

LATE = OutputTag("late", float)


class Splits(KeyedProcessFunction):
    """Numbers below zero go to the side, with a timer each."""

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        if value < 0:
            ctx.timer_service().register_event_time_timer(value)
            yield LATE, value
        yield value
        if value == 13:
            yield LATE, 13
            raise RuntimeError("on purpose")

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        yield LATE, timestamp - 0.5


def test_values_go_to_the_side_in_total_order() -> None:
    for parallelism in (1, 4):
        harness = KeyedHarness(Splits(), key_by=lambda v: v % 5, parallelism=parallelism, side_outputs=[LATE])
        assert harness.process([1, -2, 3, -4, -2]) == [1, -2, 3, -4, -2]
        harness.set_watermark(0)
        assert harness.process([5]) == [5]
        late = harness.side_output(LATE)
        assert late[:3] == [-2.0, -4.0, -2.0]
        assert late[3:] == [-4.5, -2.5]
        assert {type(v) for v in late} == {float}
        assert harness.side_output(OutputTag("other", int)) == []


def test_a_refused_element_leaves_nothing_on_the_side() -> None:
    harness = KeyedHarness(Splits(), key_by=lambda v: 1, on_error="dead_letter")
    assert harness.process([-1, 13, 2]) == [-1, 2]
    assert harness.side_output(LATE) == [-1.0]
    assert [r.index for r in harness.refused] == [1]


class Yields(ProcessFunction):
    def __init__(self, what: Any) -> None:
        self.what = what

    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterable[Any]:
        yield self.what


@pytest.mark.parametrize("output_type", [None, int, "a bigint, b bigint", list[int]])
def test_a_tag_is_known_whatever_the_type_of_outputs(output_type: Any) -> None:
    harness = OperatorHarness(Yields((LATE, 1)), output_type=output_type)
    assert harness.process([0]) == []
    assert harness.side_output(LATE) == [1.0]


def test_a_value_of_another_type_is_reported_with_its_side_output() -> None:
    with pytest.raises(ValueTypeError, match=r"side output 'late': 'x' .* is not a value of type double"):
        OperatorHarness(Yields((LATE, "x"))).process([0])


def test_an_undeclared_side_output_is_reported() -> None:
    harness = OperatorHarness(Yields((OutputTag("early", int), 1)), side_outputs=[LATE])
    with pytest.raises(ConfigurationError, match=r"no side output 'early' \(it has \['late'\]\)"):
        harness.process([0])


def test_one_name_for_two_types_is_reported() -> None:
    harness = OperatorHarness(Yields((OutputTag("late", int), 1)), side_outputs=[LATE])
    with pytest.raises(ConfigurationError, match=r"declared as OutputTag.'late', double. and is yielded as"):
        harness.process([0])


def test_a_pair_without_a_tag_is_an_output() -> None:
    assert OperatorHarness(Yields(("late", 1))).process([0]) == [("late", 1)]


def test_tags_of_one_name_and_type_are_equal() -> None:
    assert OutputTag("late", float) == LATE
    assert hash(OutputTag("late", float)) == hash(LATE)
    assert OutputTag("late", int) != LATE
    assert OutputTag("other", float) != LATE
    assert LATE != "late"


def test_names_and_types_are_checked() -> None:
    with pytest.raises(InvalidNameError, match="'' cannot name a side output"):
        OutputTag("", int)
    assert OutputTag("Late", int) != OutputTag("late", int)
    with pytest.raises(ConfigurationError, match="type_info of OutputTag 'late'"):
        OutputTag("late")
