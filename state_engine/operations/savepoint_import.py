"""Restores a savepoint into a job that has no checkpoint yet: another root, another name, another parallelism.

The files are copied into the job's tables under the name of a new attempt, and one row of kind ``import`` puts them in
force. Nothing of the savepoint's old root is needed. What a savepoint says is data from elsewhere: it names no file
outside of itself and no sink. Mirrors starting a Flink job with ``--fromSavepoint``. Decision 0024.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from state_engine.core.checkpoints.checkpoint import (
    MAIN,
    BaseRange,
    CheckpointRow,
    DataFile,
    OperatorCheckpoint,
    OperatorStateRef,
)
from state_engine.core.checkpoints.checkpoint_kind import CheckpointKind
from state_engine.core.checkpoints.savepoint_manifest import SavepointManifest, matched
from state_engine.core.checkpoints.table_names import operator_directory
from state_engine.core.checkpoints.updates import AddCheckpoint, NewestIs, without_work
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import StateMigrationError
from state_engine.job.job import StatefulJob
from state_engine.job.job_tables import JobTables
from state_engine.operations.head_operations import RestoreReport
from state_engine.sources.source_positions import SourcePositions
from state_engine.storage.state.operator_state_files import copy_state
from state_engine.storage.stores.files import join, open_location
from state_engine.storage.stores.in_threads import in_threads


@dataclass(frozen=True)
class ImportOptions:
    """How a savepoint is imported.

    Attributes:
        allow_non_restored_state: whether state that the job has no operator for may be left behind.
    """

    allow_non_restored_state: bool = False
    dry_run: bool = False
    requested_by: str = ""


def import_savepoint(
    job: StatefulJob,
    path: str,
    manifest: SavepointManifest,
    *,
    tables: JobTables,
    positions: SourcePositions,
    options: ImportOptions,
) -> RestoreReport:
    """Copy a savepoint into a job's tables and commit the row that continues it.

    Args:
        job: that is to continue; operators are matched by uid, sources by name.

    Raises:
        StaleParentError: the job ran meanwhile.
    """
    source, write_id = manifest.checkpoint, tables.clock.attempt().write_id
    held = set(matched(
        manifest, [*job.operators, *job.sources], allow_non_restored_state=options.allow_non_restored_state
    ).restored)  # fmt: skip
    for operator in source.operators:
        if operator.uid in held and operator.max_parallelism != job.max_parallelism:
            raise StateMigrationError(
                f"savepoint '{manifest.name}' holds state of operator '{operator.uid}' in "
                f"{counted(operator.max_parallelism, 'key group')}, job '{job.name}' declares "
                f"max_parallelism={job.max_parallelism}. Declare the old number, and change it by a rescale afterwards"
            )
    planned = RestoreReport(CheckpointKind.IMPORT, source.checkpoint_id, None, [], [])
    if options.dry_run:
        return planned
    operators = [_import_keyed(o, path, write_id, tables=tables) for o in source.operators if o.uid in held]
    refs, files = _import_operator_state(
        [r for r in source.operator_state if r.operator in held],
        source,
        path,
        write_id,
        tables=tables,
        own_positions=positions,
    )
    if files:
        tables.list_operator_state(files, write_id)
    row = replace(
        _without_history(source),
        write_id=write_id,
        created_at=tables.clock.now(),
        operators=operators,
        operator_state=refs,
        operator_state_files=files,
        sources=[replace(s, position_from=s.position_to, rows=0) for s in source.sources if s.name in held],
        job=job.name,
        code_version=job.code_version,
        requested_by=options.requested_by,
    )
    tables.log.commit([AddCheckpoint(row)], NewestIs(0))
    return replace(planned, committed_id=row.checkpoint_id)


def _without_history(source: CheckpointRow) -> CheckpointRow:
    """The first row of a job that goes on from another one's checkpoint: nothing of what led there, and no outputs."""
    # where outputs go is the job's to say, not a file's
    return replace(
        without_work(source),
        checkpoint_id=1,
        parent_id=None,
        branch=MAIN,
        kind=CheckpointKind.IMPORT,
        rescaled=[],
    )


def _import_keyed(
    operator: OperatorCheckpoint, path: str, write_id: str, *, tables: JobTables
) -> OperatorCheckpoint:
    base_id, into = operator.bases[0].base_id, tables.layout.base(operator.uid)
    files = [replace(f, path=f.path.replace(base_id, write_id)) for f in operator.base_files]
    sources = [join(path, operator_directory(operator.uid), f.path) for f in operator.base_files]
    _copy_files(sources, [join(into, f.path) for f in files])
    tables.list_base(operator, files, write_id)
    whole = BaseRange(0, operator.max_parallelism - 1, write_id, 1)
    return replace(operator.unwritten(), bases=[whole], base_files=files)


def _import_operator_state(
    refs: Sequence[OperatorStateRef],
    source: CheckpointRow,
    path: str,
    write_id: str,
    *,
    tables: JobTables,
    own_positions: SourcePositions,
) -> tuple[list[OperatorStateRef], list[DataFile]]:
    uri, into = join(path, "operator_state"), tables.layout.operator_state
    sources = {s.name for s in source.sources}
    copied, files, positions = [], list[DataFile](), {}
    for ref in refs:
        if ref.operator in sources:
            positions[ref.operator] = SourcePositions(uri).elements([source], ref.operator)
            copied.append(replace(ref, write_id=write_id))
            continue
        made, written = copy_state(ref, source.operator_state_files, uri=uri, into=into, write_id=write_id)
        copied.append(made)
        files += written
    if any(positions.values()):
        files.append(own_positions.write(write_id, positions))
    return copied, files


def _copy_files(sources: Sequence[str], targets: Sequence[str]) -> None:
    def one(pair: tuple[str, str]) -> None:
        source, target = map(open_location, pair)
        target.above().make_directory()
        source.copy_to(target)

    for _ in in_threads(one, zip(sources, targets, strict=True)):
        pass
