"""The results of a join: the columns of both rows side by side, or the left row as it came."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from typing import Any, Literal, NamedTuple

from state_engine.core.errors import ConfigurationError
from state_engine.core.functions.co_functions import ProcessJoinFunction
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.functions.timestamped import Timestamped
from state_engine.core.operator.atomic_call import outputs_of
from state_engine.core.types.every_type import StructType
from state_engine.operators.windows.window_results import timed

JoinTime = Literal["left", "right", "later"]
"""Which of two rows gives a pair its event time."""


class Kept(NamedTuple):
    """A row and its event time."""

    at: int
    row: Any


class JoinResults:
    """Makes the outputs of a join."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Open a function."""

    def close(self) -> None:
        """Close it."""

    def of(self, left: Kept | None, right: Kept | None) -> list[Any]:
        """The outputs for a pair, or for a row without partner: None stands for the row that is not there."""
        raise NotImplementedError


class RowResults(JoinResults):
    """One row each time, which follows from the two rows alone."""

    time: JoinTime = "left"

    def row(self, left: Any, right: Any) -> Any:
        """The row, without event time; None stands for the row that is not there."""
        raise NotImplementedError

    def of(self, left: Kept | None, right: Kept | None) -> list[Any]:
        row = self.row(None if left is None else left.row, None if right is None else right.row)
        return [Timestamped(row, time_of_pair(left, right, self.time))]


class LeftRows(RowResults):
    """Left rows as they came."""

    def row(self, left: Any, right: Any) -> Any:
        return left


class JoinedRows(RowResults):
    """Rows of the columns of the left row, then those of the right one; null for a row that is not there.

    Args:
        take: columns of the right rows that come out; all by default.
        suffix: stands behind the name of a right column that the left rows have, too.
        join: the method, for messages.

    Raises:
        ConfigurationError: a column to take is not there, or two columns would have one name.

    Example:
        >>> from state_engine.core.types.type_parsing import to_type
        >>> orders, bids = (to_type(text, parameter="rows") for text in ("id int, at int", "id int, price int"))
        >>> JoinedRows(orders, bids, take=None, suffix="_right", join="join").columns.names
        ('id', 'at', 'id_right', 'price')
    """

    def __init__(
        self,
        left: StructType,
        right: StructType,
        *,
        take: Sequence[str] | None,
        suffix: str,
        join: str,
        time: JoinTime = "left",
    ) -> None:
        names = tuple(right.names) if take is None else tuple(take)
        unknown = [name for name in names if name not in right.names]
        if unknown:
            raise ConfigurationError(
                f"{join}: take names columns that the right stream does not have: {unknown}; it has {list(right.names)}"
            )
        self._taken = names
        self._taken_at = [right.names.index(name) for name in names]
        self._sides = _as_tuples(left), _as_tuples(right)
        shown = [name + suffix if name in left.names else name for name in names]
        self.columns = StructType(
            [*left.names, *_without_clash(shown, names, left.names, join)],
            [*left.types, *(right.types[at] for at in self._taken_at)],
            "row",
        )
        self.time = time

    def open(self, runtime_context: RuntimeContext) -> None:
        self._left, self._right = (side.compiled() for side in self._sides)
        self._no_left, self._no_right = ((None,) * len(side.names) for side in self._sides)

    def by_name(self, left: Callable[[str], Any], right: Callable[[str], Any]) -> dict[str, Any]:
        """The columns of results, by what gives a column of the left rows and of the right ones."""
        names, own = self.columns.names, len(self.columns.names) - len(self._taken)
        taken = zip(names[own:], self._taken, strict=True)
        return {name: left(name) for name in names[:own]} | {shown: right(name) for shown, name in taken}

    def row(self, left: Any, right: Any) -> Any:
        others = self._no_right if right is None else tuple(self._right(right))
        own = self._no_left if left is None else self._left(left)
        return (*own, *[others[at] for at in self._taken_at])


class CalledJoin(JoinResults):
    """What a function makes of each pair; outputs have the time of the later row."""

    def __init__(self, function: ProcessJoinFunction) -> None:
        self._function, self._context = function, ProcessJoinFunction.Context()

    def open(self, runtime_context: RuntimeContext) -> None:
        self._function.open(runtime_context)

    def close(self) -> None:
        self._function.close()

    def of(self, left: Kept | None, right: Kept | None) -> list[Any]:
        assert left is not None
        assert right is not None
        context = self._context.at(left.at, right.at)
        given = self._function.process_element(left.row, right.row, context)
        outputs = [] if given is None else outputs_of(given, "process_element")
        return [timed(output, context.get_timestamp()) for output in outputs]


def time_of_pair(left: Kept | None, right: Kept | None, time: JoinTime) -> int:
    """The event time of a pair; of a row alone it is its own."""
    if left is None or right is None:
        alone = left or right
        assert alone is not None
        return alone.at
    return {"left": left.at, "right": right.at, "later": max(left.at, right.at)}[time]


def _as_tuples(columns: StructType) -> StructType:
    """The type of the same records; of a dataclass, of its fields."""
    made_by = tuple if is_dataclass(columns.made_by) else columns.made_by
    return StructType(columns.names, columns.types, made_by, aliases=columns.aliases)


def _without_clash(
    shown: Sequence[str], names: Sequence[str], left: Sequence[str], join: str
) -> Sequence[str]:
    """The names of the right columns. Raises ConfigurationError where one of them is there already."""
    for place, name in enumerate(shown):
        if name in left or name in shown[:place]:
            raise ConfigurationError(
                f"{join}: the right column '{names[place]}' would come out as '{name}', and there is another column of "
                "this name: give another suffix, right='_…', name the columns in take=[…], or rename one in a "
                "transform before"
            )
    return shown
