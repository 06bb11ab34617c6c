"""Functions that use the event time of a row that has none: the error says which row, which column, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from state_engine import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    RuntimeContext,
    StatefulJob,
)
from state_engine.errors import UserFunctionError
from state_engine.testing import CollectSink, run_in_memory

ROWS = [("a", datetime(2026, 1, 1, tzinfo=UTC)), ("a", None)]
REMEDY = (
    "this row has no event time (its column 'at' is null), so ctx.timestamp() is None: put the time into the input, "
    "leave such rows out before key_by, or let the function say what None means"
)
Use = Callable[["ByTime", Any], object]
USES: dict[str, Use] = {
    "key of a map": lambda f, ctx: f.by_time.put(ctx.timestamp(), 1),
    "element of a list": lambda f, ctx: f.times.add(ctx.timestamp()),
    "timer": lambda f, ctx: ctx.timer_service().register_event_time_timer(ctx.timestamp()),
    "arithmetic": lambda f, ctx: ctx.timestamp() - 1,
    "comparison": lambda f, ctx: ctx.timestamp() > 0,
}


class ByTime(KeyedProcessFunction):
    by_time: Any
    times: Any

    def __init__(self, use: Use) -> None:
        self.use = use

    def open(self, runtime_context: RuntimeContext) -> None:
        self.by_time = runtime_context.get_map_state(MapStateDescriptor("by_time", int, int))
        self.times = runtime_context.get_list_state(ListStateDescriptor("times", int))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        self.use(self, ctx)
        yield value.k


def job(use: Use, **options: Any) -> StatefulJob:
    job = StatefulJob("visits", **options)
    rows = job.from_collection(ROWS, "k string, at timestamp", name="rows", event_time="at")
    rows.key_by("k").process(ByTime(use), uid="by_time", output_type="string").sink("out", CollectSink())
    return job


@pytest.mark.parametrize("use", USES)
def test_the_error_names_the_column_and_what_to_do(use: str) -> None:
    with run_in_memory(job(USES[use])) as run, pytest.raises(UserFunctionError) as raised:
        run.run()
    text = str(raised.value)
    assert """job 'visits', operator 'by_time', key {"k": "a"}, at source 'rows'""" in text
    assert REMEDY in text
    assert '(row {"k": "a", "at": null})' in text


@pytest.mark.parametrize("use", USES)
def test_a_letter_says_the_same(use: str) -> None:
    with run_in_memory(job(USES[use], on_error="dead_letter")) as run:
        run.run()
        assert run.sink("out") == ["a"]
        (letter,) = run.dead_letters()
        assert letter["error"].endswith(REMEDY)


def test_an_error_of_a_row_with_event_time_says_nothing_of_it() -> None:
    def fails(function: ByTime, ctx: Any) -> None:
        raise ValueError("None of it")

    with run_in_memory(job(fails)) as run, pytest.raises(UserFunctionError) as raised:
        run.run()
    assert "has no event time" not in str(raised.value)
