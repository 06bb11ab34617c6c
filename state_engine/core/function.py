"""``Function``: the base of all functions that users write, with their life cycle.

Mirrors ``org.apache.flink.api.common.functions.RichFunction``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from state_engine.core.functions.runtime_context import RuntimeContext


class Function:
    """Base of all functions.

    ``open`` and ``close`` run once a subtask and micro-batch: do not use instance attributes as a cache across batches.

    Attributes:
        accepts_changes: whether the function knows what to do with updates and deletes, ``ctx.row_kind()``. Building a
            job refuses one that does not on a stream that changes. ``map``, ``filter`` and ``flat_map`` without state
            need not set it: they keep the kind of each element.
        emits_changes: whether what a process function emits has kinds of its own: Rows that have one, or pairs
            ``RowKind.DELETE, value``. Without, all its outputs are inserts.
    """

    accepts_changes: bool = False
    emits_changes: bool = False

    def open(self, runtime_context: RuntimeContext) -> None:
        """Called before the first element of a subtask's micro-batch: get state handles here."""

    def close(self) -> None:
        """Called after the last element, also when the subtask fails."""
