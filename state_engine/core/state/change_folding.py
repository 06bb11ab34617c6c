"""``fold``: what entries of keyed state become by changes. The definition that every other fold is tested against.

    value  the last change of a key counts: a put, or a delete
    list   a clear takes a key's elements away, appended ones come last
    map    a clear takes a key's entries away; a put is of one entry, which keeps its place while it is there; so is a
           delete, and a key without entries is gone

Subtasks and the harness fold decoded objects by it. Compactions fold whole columns (``storage.state.base``), queries in
Spark's plans (``queries.fold_sql``), and subtasks that touch many keys look values up from the newest file back
(``storage.state.newest_entries``): tests compare all three with it, value by value. Plays the part of applying Flink's
changelog (``ChangelogStateBackend``). Decision 0043.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from state_engine.core.state.state_table import CLEAR, PUT

Entries = dict[Any, Any]
Step = tuple[Any, str, Any]
"""A key, an operation, and its value: of a value the item, of a list elements, of a map a map key and its item."""


def fold(shape: str, entries: Entries, changes: Iterable[Step]) -> None:
    """Fold changes into the entries of a state, in order.

    Args:
        entries: by key; changed. Lists and maps in them are changed, too.

    Example:
        >>> entries = {"a": {"x": 1}}
        >>> fold("map", entries, [("a", "put", ("y", 2)), ("a", "put", ("x", 3)), ("b", "clear", None)])
        >>> entries
        {'a': {'x': 3, 'y': 2}}
    """
    _FOLDS[shape](entries, changes)


def _fold_value(entries: Entries, changes: Iterable[Step]) -> None:
    for key, op, item in changes:
        if op == PUT:
            entries[key] = item
        else:
            entries.pop(key, None)


def _fold_list(entries: Entries, changes: Iterable[Step]) -> None:
    for key, op, elements in changes:
        if op == CLEAR:
            entries.pop(key, None)
        else:
            entries.setdefault(key, []).extend(elements)


def _fold_map(entries: Entries, changes: Iterable[Step]) -> None:
    for key, op, entry in changes:
        if op == PUT:
            map_key, item = entry
            entries.setdefault(key, {})[map_key] = item
        elif op == CLEAR:
            entries.pop(key, None)
        elif (of_key := entries.get(key)) is not None:
            of_key.pop(entry[0], None)
            if not of_key:
                del entries[key]


_FOLDS: dict[str, Callable[[Entries, Iterable[Step]], None]] = {
    "value": _fold_value,
    "list": _fold_list,
    "map": _fold_map,
}
