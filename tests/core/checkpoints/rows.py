"""Checkpoint rows for tests, in short form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from state_engine.core.checkpoints.checkpoint import (
    BaseFile,
    CheckpointRow,
    DataFile,
    OperatorCheckpoint,
    SourceProgress,
)
from state_engine.core.checkpoints.history import History


def checkpoint(checkpoint_id: int, parent_id: int | None = None, **facts: Any) -> CheckpointRow:
    """A row in which nothing happened, but for the given facts."""
    given: dict[str, Any] = {
        "checkpoint_id": checkpoint_id,
        "parent_id": parent_id,
        "branch": "main",
        "kind": "checkpoint",
        "write_id": f"w{checkpoint_id}",
        "created_at": datetime(2013, 1, 1, tzinfo=UTC),
        "clock_ms": 0,
        "watermark_ms": None,
        "rows_in": 0,
        "rows_refused": 0,
        "operators": [],
        "operator_state": [],
        "operator_state_files": [],
        "sources": [],
        "sinks": [],
        "dead_letters": [],
    }
    return CheckpointRow(**(given | facts))


def progress(position_from: str, position_to: str, *, name: str = "events") -> SourceProgress:
    return SourceProgress(name, position_from, position_to, 0, None)


def changes(subtask: int, groups: tuple[int | None, int | None], *, rows: int = 1) -> DataFile:
    """A changelog file with keys of these key groups."""
    return DataFile("f", 10, rows, subtask, *groups, 0, 0)


def in_base(groups: tuple[int | None, int | None], *, rows: int = 1) -> BaseFile:
    """A file of a base with keys of these key groups."""
    return BaseFile("f", 10, rows, 0, *groups, 0, 0)


def operator(
    *files: DataFile, parallelism: int = 2, changed_entries: int | None = None
) -> OperatorCheckpoint:
    """An operator with 128 key groups."""
    counted = sum(f.rows for f in files) if changed_entries is None else changed_entries
    return OperatorCheckpoint(
        "counter", parallelism, 128, "struct<`k`: bigint>", [], list(files), [], counted
    )


def tree(rows: Mapping[int, CheckpointRow] | Iterable[CheckpointRow]) -> History:
    """The history of these rows."""
    return rows if isinstance(rows, History) else History(rows)
