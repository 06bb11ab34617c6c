"""Values by the place of their rows: ``first``, ``last``, ``min_by``, ``max_by`` and ``collect_list``.

The place of a row is its event time, and for rows of one time the order of the stream. A row without event time stands
before all that have one. Accumulators that are merged are of times that do not overlap, so no tie crosses a merge.
None of them can take a row back.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from state_engine.core.keys.ordering import key_order
from state_engine.core.types.every_type import StructType, TypeInformation
from state_engine.core.types.timestamps import MIN_TIMESTAMP
from state_engine.operators.aggregates.accumulators import BIGINT, Accumulator, CountValues, End, is_nan
from state_engine.operators.aggregates.group_states import Group, GroupState, Shown, Span
from state_engine.operators.places import PLACE, number_behind

Placed = tuple[int | None, Any]
"""A value and the event time of its row."""


class EndOfTime(Accumulator):
    """The value of the row with the least or greatest event time.

    Args:
        end: ``min`` for the first, ``max`` for the last one.

    Example:
        >>> last = EndOfTime("max", BIGINT, what="last('n')")
        >>> last.get_result(last.add((5, 70), last.add((8, 20), last.create_accumulator())))
        20
    """

    def __init__(self, end: End, value_type: TypeInformation, *, what: str) -> None:
        super().__init__(what=what)
        self._last = end == "max"
        self.accumulator_type = StructType(["at", "value"], [BIGINT, value_type])
        self.result_type = value_type

    def create_accumulator(self) -> Placed:
        return None, None

    def add(self, value: Placed, accumulator: Placed) -> Placed:
        if accumulator[1] is None:
            return value
        new, kept = _time(value[0]), _time(accumulator[0])
        return value if (new >= kept if self._last else new < kept) else accumulator

    def merge(self, acc_a: Placed, acc_b: Placed) -> Placed:
        return acc_a if acc_b[1] is None else self.add(acc_b, acc_a)

    def get_result(self, accumulator: Placed) -> Any:
        return accumulator[1]


class ValueByOther(Accumulator):
    """The value of the row that has the least or greatest value of another field; NaN is greater than all numbers.

    Values are pairs of the event time and of both fields: ``(at, (value, by))``.

    Example:
        >>> best = ValueByOther("max", BIGINT, BIGINT, what="max_by('n', 'x')")
        >>> best.get_result(best.add((5, (7, 2)), best.add((8, (3, 2)), best.create_accumulator())))
        7
    """

    def __init__(self, end: End, value_type: TypeInformation, by_type: TypeInformation, *, what: str) -> None:
        super().__init__(what=what)
        self._greatest, order = end == "max", key_order(by_type).sort_key
        self._order: Callable[[Any], Any] = order if order is not None else _itself
        self.accumulator_type = StructType(["by", "at", "value"], [by_type, BIGINT, value_type])
        self.result_type = value_type

    def create_accumulator(self) -> tuple[Any, ...]:
        return None, None, None

    def add(self, value: tuple[int | None, tuple[Any, Any]], accumulator: tuple[Any, ...]) -> tuple[Any, ...]:
        at, (shown, by) = value
        return self.merge(accumulator, (by, at, shown))

    def merge(self, acc_a: tuple[Any, ...], acc_b: tuple[Any, ...]) -> tuple[Any, ...]:
        if acc_a[2] is None or acc_b[2] is None:
            return acc_b if acc_a[2] is None else acc_a
        one, other = self._place(acc_a[0]), self._place(acc_b[0])
        if one == other:
            return acc_b if _time(acc_b[1]) < _time(acc_a[1]) else acc_a
        return acc_b if (other > one) is self._greatest else acc_a

    def get_result(self, accumulator: tuple[Any, ...]) -> Any:
        return accumulator[2]

    def _place(self, by: Any) -> tuple[Any, ...]:
        return (True,) if is_nan(by) else (False, self._order(by))


class CountElements(CountValues):
    """How many values were collected; the values themselves are in a state beside it."""


class Elements(GroupState):
    """Values of groups by the place of their rows: a sorted map by ``(at, n)``, where ``n`` counts equal times.

    Args:
        most: how many of the first values of a group are kept; None for all.
    """

    def __init__(
        self, name: str, value_type: TypeInformation, most: int | None, *, in_windows: bool, apart: str
    ) -> None:
        super().__init__(name, PLACE, value_type, in_windows=in_windows, apart=apart)
        self._most = most

    def add(self, group: Group, value: Any, at: int | None) -> None:
        self._put(group, at, value)
        if self._most is not None and len(kept := self.of(group)) > self._most:
            self.entries.remove(kept[-1][0])

    def move(self, group: int, to: int) -> None:
        for key, value in self.of(group):
            self.entries.remove(key)
            self._put(to, key[-2], value)

    def shown(self, what: Shown, kept: int, span: Span) -> list[Any]:
        """See the base: the values by their places."""
        return [value for _, value in islice(self.within(span), self._most)]

    def _put(self, group: Group, at: int | None, value: Any) -> None:
        time = (*self.prefix(group), at)
        self.entries.put((*time, number_behind(self.entries, time)), value)


def _time(at: int | None) -> int:
    return MIN_TIMESTAMP - 1 if at is None else at


def _itself(value: Any) -> Any:
    return value
