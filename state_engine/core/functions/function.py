"""``Function``: the base of all functions that users write, with their life cycle.

Mirrors ``org.apache.flink.api.common.functions.RichFunction``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from state_engine.core.functions.runtime_context import RuntimeContext


class Function:
    """Base of all functions.

    ``open`` and ``close`` run once a subtask and micro-batch: instance attributes are no cache across batches.
    """

    def open(self, runtime_context: RuntimeContext) -> None:
        """Called before the first element of a subtask's micro-batch: get state handles here."""

    def close(self) -> None:
        """Called after the last element, also when the subtask fails."""
