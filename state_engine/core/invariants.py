"""What must hold between a checkpoint and its parent; checked before every commit.

Each predicate has a name, so that a failure says which promise would have been broken. Nothing is committed then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from state_engine.core.checkpoint import CheckpointRow
from state_engine.core.key_groups import key_group_range


@dataclass(frozen=True)
class Violation:
    """A broken invariant: its name and what was seen."""

    name: str
    detail: str


def violations(row: CheckpointRow, parent: CheckpointRow | None) -> list[Violation]:
    """All invariants that committing this row on this parent would break; empty where it is right."""
    return [Violation(name, detail) for name, rule in _RULES.items() if (detail := rule(row, parent))]


def _ids_grow(row: CheckpointRow, parent: CheckpointRow | None) -> str:
    if row.parent_id != (parent.checkpoint_id if parent else None):
        return f"parent_id is {row.parent_id}, the parent is {parent.checkpoint_id if parent else None}"
    if parent and row.checkpoint_id <= parent.checkpoint_id:
        return f"id {row.checkpoint_id} is not above its parent's {parent.checkpoint_id}"
    return ""


def _clock_never_goes_back(row: CheckpointRow, parent: CheckpointRow | None) -> str:
    if parent and row.clock_ms < parent.clock_ms:
        return f"clock {row.clock_ms} is below the parent's {parent.clock_ms}"
    return ""


def _watermark_never_goes_back(row: CheckpointRow, parent: CheckpointRow | None) -> str:
    if parent is None or parent.watermark_ms is None:
        return ""
    if row.watermark_ms is None or row.watermark_ms < parent.watermark_ms:
        return f"watermark {row.watermark_ms} is below the parent's {parent.watermark_ms}"
    return ""


def _positions_are_contiguous(row: CheckpointRow, parent: CheckpointRow | None) -> str:
    before = {s.name: s.position_to for s in parent.sources} if parent else {}
    for source in row.sources:
        expected = before.get(source.name)
        if expected is not None and source.position_from != expected:
            return f"source '{source.name}' starts at {source.position_from}, the parent ended at {expected}"
    return ""


def _key_groups_in_range(row: CheckpointRow, parent: CheckpointRow | None) -> str:
    for operator in row.operators:
        for file in operator.changelog:
            own = key_group_range(operator.max_parallelism, operator.parallelism, file.subtask)
            low, high = file.key_group_min, file.key_group_max
            if low is None or high is None or low < own.start or high > own.end:
                return (
                    f"operator '{operator.uid}': subtask {file.subtask} owns key groups {own.start} to {own.end} "
                    f"and wrote {low} to {high}"
                )
    return ""


def _counts_add_up(row: CheckpointRow, parent: CheckpointRow | None) -> str:
    for operator in row.operators:
        rows = sum(f.rows for f in operator.changelog)
        if rows != operator.changed_entries:
            return f"operator '{operator.uid}': {rows} rows in its files, {operator.changed_entries} entries counted"
    return ""


_RULES: dict[str, Callable[[CheckpointRow, CheckpointRow | None], str]] = {
    "ids grow": _ids_grow,
    "clock never goes back": _clock_never_goes_back,
    "watermark never goes back": _watermark_never_goes_back,
    "source positions are contiguous": _positions_are_contiguous,
    "every key in its own key group": _key_groups_in_range,
    "counts add up": _counts_add_up,
}
