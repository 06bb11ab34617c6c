"""What must hold between a checkpoint, its parent and all rows before it; checked inside every commit.

Each predicate has a name, so that a failure says which promise would have been broken. Nothing is committed then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from state_engine.core.checkpoints.checkpoint import MAIN, CheckpointRow
from state_engine.core.checkpoints.checkpoint_kind import CheckpointKind
from state_engine.core.checkpoints.history import History
from state_engine.core.counted_nouns import counted
from state_engine.core.keys.key_groups import key_group_range


@dataclass(frozen=True)
class Violation:
    """A broken invariant: its name and what was seen."""

    name: str
    detail: str


def violations(
    row: CheckpointRow, parent: CheckpointRow | None, history: History | None = None
) -> list[Violation]:
    """All invariants that committing this row on this parent would break; empty where it is right.

    Args:
        parent: the row that it continues; None for the first.
        history: all that are committed; without them, the rules over the whole tree are not checked.
    """
    broken = [Violation(name, detail) for name, rule in _RULES.items() if (detail := rule(row, parent))]
    if history is not None:
        broken += [
            Violation(name, detail) for name, one in _TREE_RULES.items() if (detail := one(row, history))
        ]
    return broken


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
    before, now = ({s.name: s.watermark_ms for s in one.sources} for one in (parent, row))
    for name, known in now.items():
        was = before.get(name)
        if was is not None and known is not None and known < was:
            return f"watermark {known} of source '{name}' is below the parent's {was}"
    if row.watermark_ms is not None and row.watermark_ms >= parent.watermark_ms:
        return ""
    # it is the smallest of the sources with event time, and a job may give event time to a source or take it away
    others = any((before.get(name) is None) != (now.get(name) is None) for name in before | now)
    if others or (row.watermark_ms is None and None in now.values()):
        return ""
    return f"watermark {row.watermark_ms} is below the parent's {parent.watermark_ms}"


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
            return (
                f"operator '{operator.uid}': {counted(rows, 'row')} in its files, "
                f"{counted(operator.changed_entries, 'entry')} counted"
            )
    return ""


def _only_micro_batches_change_state(row: CheckpointRow, parent: CheckpointRow | None) -> str:
    changed = [o.uid for o in row.operators if o.changelog]
    if row.kind.changes_state or not changed:
        return ""
    return f"a row of kind '{row.kind}' lists changes of {changed}"


def _transforms_change_nothing_else(row: CheckpointRow, parent: CheckpointRow | None) -> str:
    if row.kind is not CheckpointKind.TRANSFORM:
        return ""
    if parent is None:
        return "a transform continues nothing"
    stages = any(sink.changes_sink for sink in row.sinks)
    if stages or row.dead_letters or row.operator_state_files or row.replaced_id is not None:
        return "a transform stages outputs or operator state, or moves the head"
    ends = [{s.name: s.position_to for s in one.sources} for one in (parent, row)]
    return "" if ends[0] == ends[1] else f"a transform moves sources from {ends[0]} to {ends[1]}"


def _bases_are_disjoint(row: CheckpointRow, parent: CheckpointRow | None) -> str:
    for operator in row.operators:
        free = 0
        for base in sorted(operator.bases, key=lambda b: b.key_group_start):
            start, end = base.key_group_start, base.key_group_end
            if not free <= start <= end < operator.max_parallelism:
                return (
                    f"operator '{operator.uid}': base {base.base_id} holds key groups {start} to {end}, of "
                    f"{operator.max_parallelism} those from {free} on are left"
                )
            free = end + 1
    return ""


def _base_files_are_the_attempts_own(row: CheckpointRow, parent: CheckpointRow | None) -> str:
    for operator in row.operators:
        own = [b for b in operator.bases if b.base_id == row.write_id]
        for file in operator.base_files:
            low, high = file.key_group_min, file.key_group_max
            if low is None or high is None:
                return f"operator '{operator.uid}': base file {file.path} records no key groups"
            if not any(b.key_group_start <= low and high <= b.key_group_end for b in own):
                return (
                    f"operator '{operator.uid}': base file {file.path} holds key groups {low} to {high}, the bases "
                    f"of this attempt {[(b.key_group_start, b.key_group_end) for b in own]}"
                )
    return ""


def _partitions_are_contiguous(row: CheckpointRow, parent: CheckpointRow | None) -> str:
    bounds = (row.partition_start_ms, row.partition_end_ms)
    if bool(row.partition) != (None not in bounds) or (not row.partition and bounds != (None, None)):
        return f"partition '{row.partition}' has the bounds {bounds}"
    if parent is None or not parent.partition:
        return ""
    same = (parent.partition, parent.partition_start_ms, parent.partition_end_ms)
    if (row.partition, *bounds) == same:
        return ""
    if not row.kind.is_micro_batch:
        return f"a row of kind '{row.kind}' goes on from partition '{parent.partition}' to '{row.partition}'"
    if row.partition_start_ms != parent.partition_end_ms:
        return f"partition '{row.partition}' does not begin where its parent's, '{parent.partition}', ended"
    return ""


def _ids_are_new(row: CheckpointRow, history: History) -> str:
    newest = history.newest_id
    return "" if row.checkpoint_id > newest else f"id {row.checkpoint_id} is not above the newest, {newest}"


def _on_the_branch(row: CheckpointRow, history: History) -> str:
    top = history.head_of(row.branch)
    if row.kind.moves_head and row.branch != MAIN:
        return f"a row of kind '{row.kind}' is on branch '{row.branch}'"
    if row.kind.moves_head and row.replaced_id != (top.checkpoint_id if top else None):
        return f"it replaces {row.replaced_id}, the head is {top.checkpoint_id if top else None}"
    if row.kind.starts_elsewhere or (top is None and row.branch != MAIN):
        return ""
    if row.parent_id != (top.checkpoint_id if top else None):
        return f"it continues {row.parent_id}, the head of '{row.branch}' is {top.checkpoint_id if top else None}"
    return ""


def _continues_what_is_there(row: CheckpointRow, history: History) -> str:
    if row.parent_id is not None and row.parent_id in history.expired:
        return f"it continues {row.parent_id}, which was expired"
    pinned = [p.checkpoint_id for p in row.pinned]
    wrong = [i for i in pinned if i not in history or i in history.expired]
    return f"it pins {wrong}, which are expired or not there" if wrong else ""


def _expires_nothing_needed(row: CheckpointRow, history: History) -> str:
    after = history.with_rows([row])
    needed = {row.checkpoint_id, row.parent_id}
    needed |= {pin.checkpoint_id for pin in after.pins.values()}
    top = history.head
    needed |= {top.checkpoint_id} if top else set()
    wrong = sorted(i for i in row.retired if i in needed or i not in history)
    return f"it expires {wrong}: a head, pinned by a savepoint, or not there" if wrong else ""


def _compactions_fit_the_path(row: CheckpointRow, history: History) -> str:
    if row.kind is not CheckpointKind.COMPACTION:
        return ""
    own = {b.checkpoint_id for o in row.operators for b in o.bases if b.base_id == row.write_id}
    wrong = [i for i in sorted(own) if not history.may_apply_compaction(i, row)]
    return f"its bases stand for {wrong}, which does not fit the path of {row.parent_id}" if wrong else ""


_RULES: dict[str, Callable[[CheckpointRow, CheckpointRow | None], str]] = {
    "ids grow": _ids_grow,
    "clock never goes back": _clock_never_goes_back,
    "watermark never goes back": _watermark_never_goes_back,
    "source positions are contiguous": _positions_are_contiguous,
    "every key in its own key group": _key_groups_in_range,
    "counts add up": _counts_add_up,
    "only micro-batches and transforms change state": _only_micro_batches_change_state,
    "transforms change nothing else": _transforms_change_nothing_else,
    "bases are disjoint": _bases_are_disjoint,
    "base files are the attempt's own": _base_files_are_the_attempts_own,
    "partitions are contiguous": _partitions_are_contiguous,
}

_TREE_RULES: dict[str, Callable[[CheckpointRow, History], str]] = {
    "ids are new": _ids_are_new,
    "on the branch": _on_the_branch,
    "continues existing rows": _continues_what_is_there,
    "expires nothing needed": _expires_nothing_needed,
    "compactions fit the path": _compactions_fit_the_path,
}
