"""Histories of a keyed table for tests: rows with kinds, handed to an operator over any cut into micro-batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

from state_engine.core.types.row import Row, RowKind
from state_engine.state_backends.state_backend import StateBackend
from state_engine.testing import KeyedHarness

INSERT, UPDATE_BEFORE = RowKind.INSERT, RowKind.UPDATE_BEFORE
UPDATE_AFTER, DELETE = RowKind.UPDATE_AFTER, RowKind.DELETE

cuts = st.lists(st.integers(1, 9), min_size=1, max_size=4)
"""Sizes of micro-batches, again and again from the first."""


def of_kind(kind: RowKind, **columns: Any) -> Row:
    return Row.of_kind(kind, **columns)


def batches(rows: Sequence[Row], sizes: Sequence[int]) -> Iterator[list[Row]]:
    start, turn = 0, 0
    while start < len(rows):
        end = start + sizes[turn % len(sizes)]
        yield list(rows[start:end])
        start, turn = end, turn + 1


def keyed_by_id(function: Any, **options: Any) -> KeyedHarness:
    return KeyedHarness(function, **_options(function, **options))


def after(
    function: Any, rows: Sequence[Row], sizes: Sequence[int] = (1000,), backend: StateBackend | None = None
) -> KeyedHarness:
    """A harness that got the rows in micro-batches of these sizes, and was restored between them."""
    options = _options(function, backend=backend)
    harness = KeyedHarness(function, **options)
    for batch in batches(rows, sizes):
        outputs = harness.process(batch)
        assert function.emits_changes or outputs == []
        harness = KeyedHarness.restored(function, harness.snapshot(), **options)
    return harness


def _options(function: Any, **options: Any) -> dict[str, Any]:
    return {"key_by": lambda row: row["id"], "changing": function.accepts_changes, **options}


def stored(harness: KeyedHarness, state: str) -> dict[Any, Any]:
    """The entries of a state by key, comparable also where values are NaN; none where nothing was stored yet."""
    if state not in harness.snapshot().keyed.entries:
        return {}
    return {key: shown(value) for key, value in harness.state(state).items()}


def shown(value: Any) -> Any:
    """A value as text and numbers that compare as what they show."""
    if isinstance(value, Row):
        return tuple((name, shown(part)) for name, part in value.as_dict().items())
    if isinstance(value, dict):
        return {key: shown(part) for key, part in value.items()}
    return "NaN" if value != value else value


def in_turns(lists: Iterable[Sequence[Any]]) -> list[Any]:
    """The elements of lists, one list behind the other."""
    return [element for part in lists for element in part]
