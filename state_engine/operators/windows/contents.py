"""What windows keep of their rows: their number, and accumulators, a reduction, or the rows themselves.

A window is made of parts, and each has an entry: the number of its rows and what else is kept of them. Contents may
have a state of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

from state_engine.core.errors import ValueTypeError
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.state.aggregate_functions import AggregateFunction, ReduceFunction
from state_engine.core.state.descriptors import SortedMapStateDescriptor
from state_engine.core.types.every_type import StructType, TypeInformation
from state_engine.operators.aggregates.accumulators import BIGINT
from state_engine.operators.aggregates.plan import ROWS
from state_engine.operators.places import PLACE

ELEMENTS = "elements"
"""Name of the state with the rows of windows that a function sees whole."""
F = TypeVar("F", ReduceFunction, AggregateFunction)
Kept = tuple[Any, ...]
"""The entry of a part: the number of its rows, and what else is kept of them."""


class Contents:
    """What windows keep of their rows.

    Attributes:
        kept_type: of the entry of a part.
        form: what is kept, as text behind the shape of the windows; empty of aggregates, which may come and go.
    """

    takes_back = False
    form = ""

    def __init__(self, **fields: TypeInformation) -> None:
        self.kept_type = StructType([ROWS, *fields], [BIGINT, *fields.values()])

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the states of its own, and open functions."""

    def close(self) -> None:
        """Close functions."""

    def added(self, kept: Kept | None, row: Any, part: int, at: int) -> Kept:
        """The entry of a part with one more row of a time; None stands for a part without rows."""
        return (1 if kept is None else kept[0] + 1,)

    def taken_back(self, kept: Kept | None, row: Any, part: int) -> Kept | None:
        """The entry of a part without a row; None where none is left."""
        raise NotImplementedError

    def merged(self, parts: Iterable[Kept], start: int, end: int) -> Kept | None:
        """The entries of the parts of a window together, those of the earliest first; None of none."""
        whole: Kept | None = None
        for part in parts:
            whole = part if whole is None else self._together(whole, part)
        return whole

    def _together(self, one: Kept, other: Kept) -> Kept:
        return (one[0] + other[0],)

    def joined(self, parts: Sequence[int], whole: int) -> None:
        """Several parts, by their starts, become one."""

    def dropped(self, part: int, end: int) -> None:
        """A part goes, and with it what is kept from its start until its end."""

    def elements(self, start: int, end: int, kept: Kept) -> list[Any]:
        raise NotImplementedError


class _Computed(Contents, Generic[F]):
    """What a function of the user makes of the rows, as one value."""

    def __init__(self, function: F, **kept: TypeInformation) -> None:
        super().__init__(**kept)
        self._function: F = function

    def open(self, runtime_context: RuntimeContext) -> None:
        self._function.open(runtime_context)

    def close(self) -> None:
        self._function.close()


class ReducedRows(_Computed[ReduceFunction]):
    """The reduction of the rows, which ``reduce`` makes of any two."""

    form = ", reduction"

    def __init__(self, function: ReduceFunction, value_type: TypeInformation) -> None:
        super().__init__(function, reduced=value_type)

    def added(self, kept: Kept | None, row: Any, part: int, at: int) -> Kept:
        return (1, row) if kept is None else self._together(kept, (1, row))

    def _together(self, one: Kept, other: Kept) -> Kept:
        reduced = self._function.reduce(one[1], other[1])
        if reduced is None:
            raise ValueTypeError(f"the reduce function returned None for {one[1]!r} and {other[1]!r}")
        return one[0] + other[0], reduced

    def elements(self, start: int, end: int, kept: Kept) -> list[Any]:
        return [kept[1]]


class Accumulated(_Computed[AggregateFunction]):
    """The accumulator of an ``AggregateFunction``, which merges those of several parts."""

    form = ", accumulator"

    def __init__(self, function: AggregateFunction, accumulator_type: TypeInformation) -> None:
        super().__init__(function, accumulator=accumulator_type)

    def added(self, kept: Kept | None, row: Any, part: int, at: int) -> Kept:
        rows, accumulator = (0, self._function.create_accumulator()) if kept is None else kept
        return rows + 1, self._checked(self._function.add(row, accumulator), "add")

    def _together(self, one: Kept, other: Kept) -> Kept:
        return one[0] + other[0], self._checked(self._function.merge(one[1], other[1]), "merge")

    def elements(self, start: int, end: int, kept: Kept) -> list[Any]:
        return [self._function.get_result(kept[1])]

    def of_all(self, rows: Iterable[Any]) -> list[Any]:
        """What comes of all rows of a window, in their order."""
        kept: Kept | None = None
        for row in rows:
            kept = self.added(kept, row, 0, 0)
        return [] if kept is None else self.elements(0, 0, kept)

    def _checked(self, accumulator: Any, method: str) -> Any:
        if accumulator is None:
            raise ValueTypeError(f"{type(self._function).__name__} returned None from {method}")
        return accumulator


class WholeRows(Contents):
    """The rows themselves, each once in all of its windows together, by event time and total order.

    Args:
        folded: makes one element of all rows of a window; without, they are the elements.
    """

    form = ", rows"

    def __init__(self, row_type: TypeInformation, folded: Accumulated | None = None) -> None:
        super().__init__()
        self._descriptor, self._folded = SortedMapStateDescriptor(ELEMENTS, PLACE, row_type), folded

    def open(self, runtime_context: RuntimeContext) -> None:
        self._rows = runtime_context.get_sorted_map_state(self._descriptor)
        if self._folded is not None:
            self._folded.open(runtime_context)

    def close(self) -> None:
        if self._folded is not None:
            self._folded.close()

    def added(self, kept: Kept | None, row: Any, part: int, at: int) -> Kept:
        # rows of one time come to one part, or to one that it became part of, and so in the order of this number
        number = 0 if kept is None else kept[0]
        self._rows.put((at, number), row)
        return (number + 1,)

    def dropped(self, part: int, end: int) -> None:
        for place in [place for place, _ in self._rows.sub_items((part, 0), (end, 0))]:
            self._rows.remove(place)

    def elements(self, start: int, end: int, kept: Kept) -> list[Any]:
        rows = [row for _, row in self._rows.sub_items((start, 0), (end, 0))]
        return rows if self._folded is None else self._folded.of_all(rows)
