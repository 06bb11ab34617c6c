"""What functions share that keep one result for each key of a stream whose rows are updated and deleted.

A row of kind ``DELETE`` or ``UPDATE_BEFORE`` is *taken back*: the key then has the result that the rows left would give
alone, and after its last row it has none, and no state. Plays the part of ``RecordCounter`` and ``RowDataUtil`` of
Flink's group aggregation. Decision 0065.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from state_engine.core.errors import StateMigrationError
from state_engine.core.functions.process_functions import KeyedProcessFunction
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.state.aggregate_functions import never_added
from state_engine.core.state.descriptors import ValueStateDescriptor
from state_engine.core.types.row import Row, RowKind, row_of_kind


def takes_back(kind: RowKind) -> bool:
    """Whether a row of this kind removes one that came before.

    Example:
        >>> [kind.name for kind in RowKind if takes_back(kind)]
        ['UPDATE_BEFORE', 'DELETE']
    """
    return kind is RowKind.DELETE or kind is RowKind.UPDATE_BEFORE


def without_kind(value: Any) -> Any:
    """An element as one that is kept: a Row of any kind as an insert.

    Example:
        >>> from state_engine.core.types.row import Row
        >>> without_kind(Row.of_kind(RowKind.DELETE, id=7)).get_row_kind()
        <RowKind.INSERT: 0>
    """
    return row_of_kind(value, RowKind.INSERT) if isinstance(value, Row) else value


NO_RESULT: Any = object()
"""Stands for the result of a key without rows."""


class ResultOfKey(KeyedProcessFunction):
    """Base of functions that put out the result of a key for every element.

    Attributes:
        emits_changes: whether results have kinds. Set by who builds the job, where the stream changes or where each
            result is to take the one before back.
    """

    @property
    def gives_running_results(self) -> bool:  # type: ignore[override]
        return not self.emits_changes

    def result(self, before: Any, after: Any) -> Iterable[Any]:
        """What comes out for an element, of the results of its key before and after it.

        The new result; with kinds, an insert of the first one, for each later one an update of the one before, and
        where no row is left a delete of the last one.
        """
        if not self.emits_changes:
            return [] if after is NO_RESULT else [after]
        if before is NO_RESULT:
            return [(RowKind.INSERT, after)]
        if after is NO_RESULT:
            return [(RowKind.DELETE, before)]
        return [(RowKind.UPDATE_BEFORE, before), (RowKind.UPDATE_AFTER, after)]

    def gone(self, before: Any) -> Iterable[Any]:
        """The outputs when a key is forgotten; see ``ForgettableFunction``."""
        return [] if before is NO_RESULT else [(RowKind.DELETE, before)]


class RetainedRows:
    """How many rows a key has, in a state of its own beside that of a function."""

    def __init__(self, runtime_context: RuntimeContext, name: str, *, what: str) -> None:
        self._state = runtime_context.get_state(ValueStateDescriptor(f"{name}_rows", int))
        self._what = what

    def added(self, *, kept: bool) -> None:
        """Count a row more.

        Args:
            kept: whether the function keeps something of the key already.
        """
        if not kept:
            self._state.update(1)
        elif (rows := self._state.value()) is not None:  # else nobody counted the rows before
            self._state.update(rows + 1)

    def clear(self) -> None:
        self._state.clear()

    def taken_back(self, value: Any, *, kept: bool) -> bool:
        """Count a row less.

        Args:
            kept: whether the function keeps something of the key.

        Returns:
            Whether it was the last one of the key.
        """
        if not kept:
            raise never_added(value, what=self._what)
        rows = self._state.value()
        if rows is None:
            raise StateMigrationError(
                f"{self._what} takes back a row of a key whose rows were not counted: its state was made when it had "
                "no retract or inverse. Give the operator another uid and run it over the input again, or replay it"
            )
        self._state.update(rows - 1 or None)
        return bool(rows == 1)
