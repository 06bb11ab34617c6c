"""Feeds a keyed function with rows of every kind, without an engine, and shows its state."""

from __future__ import annotations

from typing import Any

from state_engine.core.functions.contexts import KeyedContext
from state_engine.core.functions.process_functions import KeyedProcessFunction
from state_engine.core.time.timer_service import MIN_TIMESTAMP, TimerService
from state_engine.core.types.row import RowKind
from state_engine.operators.retraction import takes_back
from tests.core.state.handles import Bench


class Feed:
    """One function with its state.

    Args:
        function: the function, opened here.
        loaded: entries by key that its states begin with, by name.
    """

    def __init__(self, function: KeyedProcessFunction, **loaded: dict[Any, Any]) -> None:
        self._bench, self._function = Bench(**loaded), function
        self._context = KeyedContext(self._bench.context, TimerService(0, MIN_TIMESTAMP))
        function.open(self._bench.runtime)

    def send(self, kind: RowKind, key: Any, element: Any) -> list[Any]:
        """The outputs for one row; where it is refused, its changes are undone."""
        context = self._bench.context
        context.key, context.row_kind, context.undo = key, kind, []
        try:
            return list(self._function.process_element(element, self._context) or ())  # type: ignore[arg-type]
        except Exception:
            context.roll_back()
            raise

    def insert(self, key: Any, *elements: Any) -> Feed:
        for element in elements:
            self.send(RowKind.INSERT, key, element)
        return self

    def state(self) -> dict[str, Any]:
        """What is stored, by state and key."""
        tables = self._bench.store.tables.items()
        return {name: {k: _plain(v) for k, v in table.entries.items()} for name, table in tables}


def apply(table: dict[Any, Any], outputs: list[Any]) -> None:
    """Change a table as the outputs say: what is deleted or replaced is there as it is said to be, and nothing else."""
    for kind, row in outputs:
        if takes_back(kind):
            assert repr(table.pop(row[0])) == repr(row), "it has the last values"
        else:
            assert row[0] not in table, (kind, row)
            table[row[0]] = row


def _plain(stored: Any) -> Any:
    return dict(sorted(stored.items(), key=repr)) if isinstance(stored, dict) else stored
