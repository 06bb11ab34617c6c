"""Raw state: bytes that the engine stores and gives back without looking at them.

A function writes them again in every ``snapshot_state`` and iterates over them in ``initialize_state``. Raw operator
state is one run of bytes a subtask; raw keyed state is one a key group, and goes where its key group goes. Mirrors
Flink's ``OperatorStateCheckpointOutputStream`` and ``KeyedStateCheckpointOutputStream`` with their inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from state_engine.core.errors import StateAccessError, ValueTypeError
from state_engine.core.keys.key_groups import KeyGroupRange


class RawOperatorOutput:
    """Where ``snapshot_state`` writes the raw state of its subtask."""

    def __init__(self, operator: str) -> None:
        self._operator = operator
        self._data = bytearray()
        self._open = True

    def write(self, data: bytes) -> None:
        """Append bytes. Raises ValueTypeError for anything else, StateAccessError after snapshot_state."""
        self._data += _checked(data, self._open, f"operator '{self._operator}': raw operator state")

    def finish(self) -> bytes:
        """All that was written; nothing can be written any more."""
        self._open = False
        return bytes(self._data)


class RawKeyedOutput:
    """Where ``snapshot_state`` writes the raw state of its key groups, one group after the other."""

    def __init__(self, operator: str, subtask: int, key_groups: KeyGroupRange | None) -> None:
        """``key_groups``: of this subtask; None where the operator is not on a keyed stream."""
        self._operator, self._subtask, self._own = operator, subtask, key_groups
        self._groups: dict[int, bytearray] = {}
        self._current: bytearray | None = None
        self._open = True

    def get_key_group_list(self) -> KeyGroupRange:
        """The key groups of this subtask: those that may be started."""
        if self._own is None:
            raise StateAccessError(
                f"operator '{self._operator}' is not on a keyed stream, so it has no raw keyed state; "
                "call key_by before it, or write to raw_operator_state"
            )
        return self._own

    def start_key_group(self, key_group: int) -> None:
        """What is written from now on belongs to this key group. Each group can be started once."""
        own = self.get_key_group_list()
        _checked(b"", self._open, f"operator '{self._operator}': raw keyed state")
        if key_group not in own:
            raise StateAccessError(
                f"operator '{self._operator}': key group {key_group!r} does not belong to subtask {self._subtask}, "
                f"which has {own.start} … {own.end}; loop over raw_keyed_state.get_key_group_list()"
            )
        if key_group in self._groups:
            raise StateAccessError(
                f"operator '{self._operator}': key group {key_group} was started before; "
                "write all that belongs to it at once"
            )
        self._current = self._groups[key_group] = bytearray()

    def write(self, data: bytes) -> None:
        """Append bytes to the current key group. Raises StateAccessError where none was started."""
        what = f"operator '{self._operator}': raw keyed state"
        checked = _checked(data, self._open, what)
        if self._current is None:
            self.get_key_group_list()
            raise StateAccessError(f"{what} belongs to key groups: call start_key_group before write")
        self._current += checked

    def finish(self) -> tuple[tuple[int, bytes], ...]:
        """What was written by key group, in their order; nothing can be written any more."""
        self._open = False
        return tuple((group, bytes(self._groups[group])) for group in sorted(self._groups))


class RawOperatorInput:
    """The raw state that the subtask's last snapshot wrote.

    Iterating gives one ``bytes`` object, or nothing where nothing was written.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self) -> bytes:
        """All of it; empty where nothing was written."""
        return self._data

    def __iter__(self) -> Iterator[bytes]:
        return iter([self._data] if self._data else [])


class RawKeyedInput:
    """The raw state of the subtask's key groups; iterating gives (key group, bytes) in key group order."""

    def __init__(self, groups: tuple[tuple[int, bytes], ...]) -> None:
        self._groups = groups

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        return iter(self._groups)


def _checked(data: Any, is_open: bool, what: str) -> bytes:
    if not is_open:
        raise StateAccessError(f"{what} can be written inside snapshot_state only")
    if not isinstance(data, bytes | bytearray | memoryview):
        raise ValueTypeError(f"{what} takes bytes, not {data!r} ({type(data).__name__}): encode it first")
    return bytes(data)
