"""From which checkpoint on parts of a job were made by other code, and what a replay of that costs."""

from __future__ import annotations

from collections.abc import Sequence

from state_engine.code_changes.job_plan import PlannedReplay
from state_engine.code_changes.part_changes import results_differ
from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.retention import restore_refusal
from state_engine.core.errors import ConfigurationError
from state_engine.job.job import StatefulJob
from state_engine.microbatch.declared_parts import DeclaredParts
from state_engine.microbatch.findings import Part
from state_engine.replay.replay import recording
from state_engine.sources.file import FileSource
from state_engine.sources.file_ranges import recorded_ranges
from state_engine.sources.source_positions import SourcePositions

_PREFIX = "plan_"
"""Of the names of branches for replays that a plan asks for."""


def planned_replay(
    job: StatefulJob,
    history: History,
    now: DeclaredParts,
    parts: Sequence[Part],
    positions: SourcePositions,
) -> PlannedReplay:
    """The replay after which all parts were made by the code of today.

    Args:
        parts: that other code made.
        positions: of the sources of the job.
    """
    path = history.main_path
    begin_id = _begin(history, path, _first_otherwise(path, now, parts))
    try:
        batches = recording(job.name, history, branch=_new_branch(history), from_checkpoint=begin_id).batches
    except ConfigurationError as error:
        return PlannedReplay(begin_id, problem=str(error))
    if job.partitions is not None:
        commands = [
            f"statelake backfill {job.name} --from {batches[0].partition} --to {batches[-1].partition}"
        ]
    else:
        apply = f"statelake apply {job.name} --from {begin_id or 0}"
        commands = [apply, f"{apply} --promote --expected-head {path[-1].checkpoint_id}"]
    return PlannedReplay(
        begin_id,
        len(batches),
        sum(row.rows_in for row in batches),
        _files(job, batches, positions),
        sum(sum(row.durations_ms.values()) for row in batches) / 1000,
        tuple(commands),
    )


def _first_otherwise(path: Sequence[CheckpointRow], now: DeclaredParts, parts: Sequence[Part]) -> int:
    """Place on a path of the first micro-batch that other code ran, or code that is not known."""

    def otherwise(declared: str) -> bool:
        was = DeclaredParts.of_text(declared)
        comparable = was.made_by == now.made_by
        known = ((part, was.parts[part]) for part in parts if part in was.parts)
        return not comparable or any(
            results_differ(part, facts, now.parts[part], comparable=comparable) for part, facts in known
        )

    texts = {row.declared for row in path if row.kind.is_micro_batch}
    differ = {text for text in texts if otherwise(text)}
    return next(i for i, row in enumerate(path) if row.kind.is_micro_batch and row.declared in differ)


def _begin(history: History, path: Sequence[CheckpointRow], first: int) -> int | None:
    """The newest checkpoint before a place that can be restored; None for the beginning."""
    before = (row.checkpoint_id for row in reversed(path[:first]))
    return next((i for i in before if restore_refusal(history, i) is None), None)


def branch_of_replay(history: History, now: DeclaredParts, from_checkpoint: int | None) -> str:
    """The branch of a replay by today's code: an open one that today's code began there, or a new one."""
    for name, head in history.open_branches.items():
        own = [row for row in history.path(head.checkpoint_id) if row.branch == name]
        by_this_code = all(row.declared == now.text() for row in own if row.kind.is_micro_batch)
        if name.startswith(_PREFIX) and own[0].parent_id == from_checkpoint and by_this_code:
            return name
    return _new_branch(history)


def _new_branch(history: History) -> str:
    assert history.head is not None
    name = f"{_PREFIX}{history.head.checkpoint_id}"
    return name if name not in history.branches else f"{name}_{history.next_id}"


def _files(job: StatefulJob, batches: Sequence[CheckpointRow], positions: SourcePositions) -> int:
    """Files that micro-batches read, of the sources that read files and are not cut into time partitions."""
    names = [name for name, node in job.sources.items() if isinstance(node.source, FileSource)]
    read = {one.uri for name in names for one in recorded_ranges(positions.elements(batches, name))}
    return len(read)
