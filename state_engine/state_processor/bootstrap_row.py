"""The first row of a job that begins with given state, and the files of operator state and positions that it lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from state_engine.core.checkpoints.checkpoint import (
    MAIN,
    CheckpointRow,
    DataFile,
    OperatorStateRef,
    SourceProgress,
)
from state_engine.core.checkpoints.checkpoint_kind import CheckpointKind
from state_engine.core.checkpoints.write_ids import WriteAttempt
from state_engine.job.job import StatefulJob
from state_engine.job.job_tables import JobTables
from state_engine.sources.base import Element
from state_engine.sources.source_positions import SourcePositions
from state_engine.state_processor.bootstrap_operator_state import GivenOperatorState


def first_row(
    job: StatefulJob,
    attempt: WriteAttempt,
    *,
    clock_ms: int,
    operator_state: Sequence[GivenOperatorState],
    consumed: Mapping[str, list[Element]],
    tables: JobTables,
    positions: SourcePositions,
    requested_by: str,
) -> CheckpointRow:
    """The row without keyed state; the files that it lists are in place and in the log of their table.

    Args:
        consumed: by source, what the state holds of it already.
    """
    refs, files = list[OperatorStateRef](), list[DataFile]()
    for state in operator_state:
        ref, written = state.write(uri=tables.layout.operator_state, write_id=attempt.write_id)
        refs.append(ref)
        files += written
    if any(consumed.values()):
        files.append(positions.write(attempt.write_id, consumed))
        refs += [OperatorStateRef(name, attempt.write_id, len(e)) for name, e in consumed.items() if e]
    if files:
        tables.list_operator_state(files, attempt.write_id)
    return CheckpointRow(
        checkpoint_id=1,
        parent_id=None,
        branch=MAIN,
        kind=CheckpointKind.BOOTSTRAP,
        write_id=attempt.write_id,
        created_at=attempt.created_at,
        clock_ms=clock_ms,
        watermark_ms=None,
        rows_in=0,
        rows_refused=0,
        operators=[],
        operator_state=refs,
        operator_state_files=files,
        sources=[_progress(job, name, consumed.get(name, [])) for name in job.sources],
        sinks=[],
        dead_letters=[],
        job=job.name,
        code_version=job.code_version,
        requested_by=requested_by,
    )


def _progress(job: StatefulJob, name: str, elements: list[Element]) -> SourceProgress:
    source = job.sources[name].source
    return SourceProgress(name, source.empty_position(), source.position_text(elements), 0, None)
