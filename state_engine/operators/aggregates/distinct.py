"""All different values of groups, each with its number.

``count_distinct`` and ``collect_set`` need them, and ``min_`` and ``max_`` where rows change. They are in a sorted map
beside the accumulators, by value; NaN, which has no place in an order, is counted in the accumulator.
"""

from __future__ import annotations

import math
from typing import Any

from state_engine.core.keys.ordering import key_order
from state_engine.core.types.every_type import StructType, TypeInformation
from state_engine.operators.aggregates.accumulators import (
    BIGINT,
    Accumulator,
    CountOrderedValues,
    as_in_order,
    is_nan,
)
from state_engine.operators.aggregates.group_states import Group, GroupState, Shown, Span


class CountDistinct(CountOrderedValues):
    """How many different values there are, and how many are NaN.

    It is given a value only where it was not there before, or where none of it is left; of NaN, each one. Only
    ``DifferentValues`` knows the common values of two accumulators, so it merges them.
    """

    def add(self, value: Any, accumulator: tuple[int, int]) -> tuple[int, int]:
        nan = is_nan(value)
        return accumulator[0] + (not nan), accumulator[1] + nan

    def retract(self, value: Any, accumulator: tuple[int, int]) -> tuple[int, int]:
        nan = is_nan(value)
        left = accumulator[0] - (not nan), accumulator[1] - nan
        if min(left) < 0:
            raise self.never_added(value)
        return left

    def get_result(self, accumulator: tuple[int, int]) -> int:
        return accumulator[0] + bool(accumulator[1])


class DifferentValues(GroupState):
    """The different values of groups, each with its number: a sorted map by value."""

    def __init__(self, name: str, value_type: TypeInformation, *, in_windows: bool, apart: str) -> None:
        super().__init__(
            name, StructType(["value"], [value_type]), BIGINT, in_windows=in_windows, apart=apart
        )
        self._order = key_order(value_type).sort_key

    def number(self, group: Group, value: Any) -> int:
        return 0 if is_nan(value) else self.entries.get(self._key(group, value)) or 0

    def add(self, group: Group, value: Any, at: int | None) -> None:
        self._change(group, value, 1)

    def take_back(self, group: Group, value: Any) -> None:
        self._change(group, value, -1)

    def move(self, group: int, to: int) -> None:
        for key, number in self.of(group):
            self.entries.remove(key)
            self._change(to, key[1], number)

    def different(self, span: Span) -> list[Any]:
        """The different values of some groups together, in their order."""
        if span is None:
            return list(self.entries.keys())
        values = dict.fromkeys(key[1] for key, _ in self.within(span))
        return sorted(values, key=self._order)

    def changes(self, accumulator: Accumulator, group: Group, value: Any, *, added: bool) -> bool:
        """See the base. Raises RetractionError for a value to be taken back that is not there."""
        if is_nan(value):
            return True
        number = self.number(group, value)
        if not added and not number:
            raise accumulator.never_added(value)
        return not isinstance(accumulator, CountDistinct) or number == (0 if added else 1)

    def merged(self, accumulator: Accumulator, whole: Any, span: Span) -> Any:
        """See the base: a value that several groups have counts once."""
        return (len(self.different(span)), whole[1]) if isinstance(accumulator, CountDistinct) else whole

    def shown(self, what: Shown, kept: tuple[int, int], span: Span) -> Any:
        """See the base; NaN is greater than all numbers."""
        values, nans = kept
        if what == "set":
            return [*self.different(span), *[math.nan][:nans]]
        if nans and (what == "max" or nans == values):
            return math.nan
        if span is not None:
            different = self.different(span)
            return different[0 if what == "min" else -1] if different else None
        entry = self.entries.first_entry() if what == "min" else self.entries.last_entry()
        return None if entry is None else entry[0]

    def _change(self, group: Group, value: Any, by: int) -> None:
        if is_nan(value):
            return
        key, number = self._key(group, value), self.number(group, value) + by
        if number:
            self.entries.put(key, number)
        else:
            self.entries.remove(key)

    def _key(self, group: Group, value: Any) -> Any:
        return (*self.prefix(group), as_in_order(value)) if self.in_windows else value
