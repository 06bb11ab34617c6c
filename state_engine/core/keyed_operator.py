"""``KeyedProcessOperator``: a ``StreamOperator`` on a keyed stream.

Mirrors Flink's ``KeyedProcessOperator``; runs any function class that has a place on keyed streams.
"""

from __future__ import annotations

from typing import Any

from state_engine.core.keyed_state import KeyedStateStore
from state_engine.core.outputs import ElementRefused, Outputs, Refusal
from state_engine.core.stream_operator import StreamOperator

__all__ = ["ElementRefused", "KeyedProcessOperator", "Outputs", "Refusal"]


class KeyedProcessOperator(StreamOperator):
    """One subtask of a keyed operator during one micro-batch; see ``StreamOperator`` for the arguments."""

    def __init__(self, function: Any, *, store: KeyedStateStore, **options: Any) -> None:
        super().__init__(function, store=store, **options)
