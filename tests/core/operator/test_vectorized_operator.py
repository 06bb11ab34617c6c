"""Functions over columns on the harness: what they get, what changes, and what lives how long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from state_engine import (
    KeyedProcessFunction,
    ReducingStateDescriptor,
    ValueStateDescriptor,
    VectorizedKeyedFunction,
    VectorizedResult,
)
from state_engine.core.errors import UserFunctionError, ValueTypeError
from state_engine.testing import KeyedHarness

OPTIONS: dict[str, Any] = {
    "key_by": lambda row: row[0],
    "key_type": str,
    "input_type": "k string, v bigint",
    "output_type": "k string, total bigint",
}


class Given(VectorizedKeyedFunction):
    """Declares states, and gives what a test makes of its tables."""

    def __init__(self, result: Callable[[pa.Table, pa.Table], Any], *states: ValueStateDescriptor) -> None:
        self.result, self.states = result, states or (ValueStateDescriptor("total", int),)

    def open(self, runtime_context: Any) -> None:
        for state in self.states:
            runtime_context.get_state(state)

    def process_batch(self, rows: pa.Table, state: pa.Table, ctx: Any) -> Any:
        return self.result(rows, state)


def totals(rows: pa.Table, state: pa.Table) -> VectorizedResult:
    """The total of each key; rows without a value are refused."""
    bad = pc.is_null(rows["v"])
    refused = rows.filter(bad).select(["_row"])
    refused = refused.append_column("error", pa.array(["no value"] * len(refused), pa.string()))
    added = rows.filter(pc.invert(bad)).group_by("_key").aggregate([("v", "sum"), ("_row", "max")])
    joined = state.join(added, "_key", join_type="inner")
    total = pc.add(pc.fill_null(joined["total"], 0), joined["v_sum"])
    outputs = pa.table({"k": joined["key"], "total": total, "_row": joined["_row_max"]})
    return VectorizedResult(outputs, pa.table({"_key": joined["_key"], "total": total}), refused)


def harness(result: Callable[[pa.Table, pa.Table], Any], *states: Any, **options: Any) -> KeyedHarness:
    return KeyedHarness(Given(result, *states), **(OPTIONS | options))


@pytest.mark.parametrize("parallelism", [1, 4])
def test_totals_of_keys(parallelism: int) -> None:
    run = harness(totals, parallelism=parallelism)
    assert run.process([("a", 1), ("b", 5), ("a", 2)]) == [("b", 5), ("a", 3)]
    assert run.process([("c", 1), ("a", 1)]) == [("c", 1), ("a", 4)]
    assert run.process([]) == []
    assert run.state("total") == {"a": 4, "b": 5, "c": 1}


def test_rows_and_keys_are_numbered() -> None:
    seen: list[tuple[Any, Any]] = []

    def note(rows: pa.Table, state: pa.Table) -> None:
        seen.append((rows.to_pydict(), state.to_pydict()))

    run = harness(note)
    assert run.process([("b", 1), ("a", None), ("b", 3)]) == []
    (tables,) = seen
    assert tables == (
        {"k": ["b", "a", "b"], "v": [1, None, 3], "_row": [0, 1, 2], "_key": [0, 1, 0]},
        {"_key": [0, 1], "key": ["b", "a"], "total": [None, None]},
    )


def test_refused_rows_are_set_aside_or_fail_the_batch() -> None:
    run = harness(totals, on_error="dead_letter")
    assert run.process([("a", 1), ("a", None), ("b", None)]) == [("a", 1)]
    assert [(r.index, r.key, r.error) for r in run.refused] == [(1, "a", "no value"), (2, "b", "no value")]
    assert run.state("total") == {"a": 1}
    failing = harness(totals)
    with pytest.raises(UserFunctionError, match="key a, at row 1: no value"):
        failing.process([("a", 1), ("a", None)])


def test_a_null_clears_and_what_is_not_returned_stays() -> None:
    states = (ValueStateDescriptor("x", int), ValueStateDescriptor("y", int))
    prepared: list[dict[str, Any]] = []

    def next_state(rows: pa.Table, state: pa.Table) -> VectorizedResult:
        return VectorizedResult(state=pa.table(prepared.pop(0)))

    run = harness(next_state, *states)
    rows = [("a", 1), ("b", 1)]
    prepared += [
        {"_key": [0, 1], "x": [1, 2], "y": [3, 4]},
        {"_key": [1], "x": pa.array([None], pa.int64())},
        {"_key": [0], "y": pa.array([9], pa.int8())},
    ]
    for _ in range(3):
        run.process(rows)
    assert run.state("x") == {"a": 1}
    assert run.state("y") == {"a": 9, "b": 4}


class Total(KeyedProcessFunction):
    """The same per element."""

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", int, default=0))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.total.update(self.total.value() + value[1])
        yield value[0], self.total.value()


def test_state_goes_from_elements_to_columns_and_back() -> None:
    one_by_one = KeyedHarness(Total(), **OPTIONS)
    one_by_one.process([("a", 1), ("b", 2), ("a", 3)])
    by_columns = KeyedHarness.restored(Given(totals), one_by_one.snapshot(), parallelism=3, **OPTIONS)
    assert by_columns.process([("a", 1)]) == [("a", 5)]
    back = KeyedHarness.restored(Total(), by_columns.snapshot(), **OPTIONS)
    assert back.process([("a", 1), ("b", 1)]) == [("a", 6), ("b", 3)]


def test_a_default_stands_where_nothing_is_stored() -> None:
    def copied(rows: pa.Table, state: pa.Table) -> Any:
        return pa.table({"k": state["key"], "total": state["total"]})

    run = harness(copied, ValueStateDescriptor("total", int, default=7))
    assert run.process([("a", 1), ("b", 1)]) == [("a", 7), ("b", 7)]


def test_what_a_reducing_state_stores_is_a_column() -> None:
    class Sums(VectorizedKeyedFunction):
        def open(self, runtime_context: Any) -> None:
            runtime_context.get_reducing_state(ReducingStateDescriptor("total", lambda a, b: a + b, int))

        def process_batch(self, rows: pa.Table, state: pa.Table, ctx: Any) -> Any:
            return totals(rows, state)

    run = KeyedHarness(Sums(), **OPTIONS)
    run.process([("a", 1)])
    assert run.process([("a", 2)]) == [("a", 3)]


def test_a_value_that_does_not_fit_fails_the_batch_and_says_where() -> None:
    def too_large(rows: pa.Table, state: pa.Table) -> VectorizedResult:
        return VectorizedResult(state=pa.table({"_key": [0], "total": pa.array([2.0**70])}))

    with pytest.raises(ValueTypeError, match=r"process_batch of Given: state 'total': a column of double"):
        harness(too_large).process([("a", 1)])


def test_outputs_stand_at_their_rows() -> None:
    def backwards(rows: pa.Table, state: pa.Table) -> Any:
        outputs = pa.table({"k": rows["k"], "total": rows["v"], "_row": rows["_row"]})
        return outputs.take(np.arange(len(rows))[::-1])

    run = harness(backwards, parallelism=3)
    rows = [(k, n) for n, k in enumerate("abcab")]
    assert run.process(rows) == rows
