"""Leaves out the newest row of ``checkpoints`` where its file is lost or damaged, as after a power cut without syncs.

Everything that a micro-batch stood for is done again by the next run, from its parent; a restore or a promotion did not
happen, and may be asked for again. So no sink may show the row any more: where one does, it is first brought back to
what it showed before, see ``lost_outputs``. A row of a branch is shown nowhere. A row without content takes the next id
in the same commit that removes the damaged file; so the id of the lost row is never used again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from state_engine.core.checkpoints.checkpoint_kind import CheckpointKind
from state_engine.core.checkpoints.operation_rows import continuing
from state_engine.core.checkpoints.updates import AddCheckpoint, LeaveOut, NewestIs
from state_engine.core.errors import MissingFilesError, StatelakeError, StorageError
from state_engine.monitoring.lost_outputs import LostChange, LostOutputs, LostRow
from state_engine.operations.damage import Damage
from state_engine.storage.checkpoint_files import checkpoints_in, read_rows
from state_engine.storage.delta.log import DeltaLog
from state_engine.storage.layout import JobLayout
from state_engine.storage.root import jobs_in
from state_engine.storage.storage_failures import keeping

if TYPE_CHECKING:
    from state_engine.engine.engine import StateEngine

_ROW = re.compile(r"checkpoint-(\d{12})-([0-9a-f]+)")
_BACKUP = "put the file back from a backup of the root, or restore a savepoint into another root"
_LOOKED = "Nothing was done; all commits are unchanged"
_AGAIN = "Earlier commits are unchanged; a second repair goes on where this one ended"
REQUESTED_BY = "statelake doctor --repair"


def head_damages(uri: str) -> list[Damage]:
    """Rows of ``checkpoints`` that cannot be read, of all jobs; for ``repairs``."""
    damages: list[Damage] = []
    for job in jobs_in(uri):
        with keeping(job, _LOOKED, at=uri):
            damages += _of_job(uri, job)
    return damages


def _of_job(uri: str, job: str) -> Iterator[Damage]:
    table = JobLayout(uri, job).checkpoints
    try:
        log = DeltaLog(table).newest()
    except StorageError:  # what is denied, or does not answer, is not damaged
        raise
    except (StatelakeError, ValueError) as error:
        yield Damage(f"Checkpoints of {job}", f"the log of {table} cannot be read: {error}", _BACKUP)
        return
    files = sorted(log.files if log else [])
    broken = {name: problem for name in files if (problem := _problem(table, name))}
    newest = max((name for name in files if _ROW.match(name)), default="")
    for name, problem in broken.items():
        damage = f"job '{job}': {problem}"
        if name != newest or len(broken) > 1 or len(files) == 1:
            yield Damage(f"Checkpoints of {job}", damage, _BACKUP)
            continue
        number = int(name.split("-")[1])
        what = (
            f"leave out checkpoint {number}, after sinks that show it are brought back to what they showed before; a "
            "micro-batch is made again by the next run, under another id, and a restore or promotion did not happen"
        )
        yield Damage(f"Checkpoints of {job}", damage, what, _left_out(uri, job, name))


def _problem(table: str, name: str) -> str:
    """Why a file of rows cannot be read; empty where it can."""
    try:
        checkpoints_in(read_rows(table, name), where=name)
    except (MissingFilesError, FileNotFoundError) as error:
        return str(error)
    return ""


def _left_out(uri: str, job: str, name: str) -> Callable[[], str]:
    def apply() -> str:
        from state_engine.engine.engine import StateEngine
        from state_engine.spark.session import local_session

        with StateEngine(uri, local_session()) as engine:
            return leave_out(engine, job, name)

    return apply


def leave_out(engine: StateEngine, job: str, name: str) -> str:
    """Leave out the newest row of a job; what was done.

    Raises:
        SinkError: a sink shows the row and cannot be brought back; nothing was done.
        StaleParentError: the job ran meanwhile.
        StorageError: the storage refused; a second repair goes on where this one ended.
    """
    with keeping(job, _AGAIN, at=engine.root):
        return _leave_out(engine, job, name)


def _leave_out(engine: StateEngine, job: str, name: str) -> str:
    match = _ROW.match(name)
    assert match is not None
    lost = LostRow(int(match[1]), match[2], _BACKUP)
    tables = engine.context.ran(job)
    tables.log.pass_over(name)
    history = tables.log.load()
    parent = history.head
    if parent is None or lost.checkpoint_id <= max(history):
        raise StatelakeError(
            f"job '{job}': checkpoint {lost.checkpoint_id} is no longer the newest: {_BACKUP}"
        )
    outputs = LostOutputs(engine.context.publication(tables), engine.kernel, history, lost)
    changes = outputs.changes()
    for change in changes:
        outputs.take_back(change, lost.checkpoint_id + 1)
    attempt = tables.clock.attempt()
    row = continuing(
        parent,
        kind=CheckpointKind.RETENTION,
        checkpoint_id=lost.checkpoint_id + 1,
        write_id=attempt.write_id,
        created_at=attempt.created_at,
        requested_by=REQUESTED_BY,
    )
    tables.log.commit([AddCheckpoint(row), LeaveOut([name])], NewestIs(history.newest_id))
    return (
        f"job '{job}': checkpoint {lost.checkpoint_id} is left out, the head is that of checkpoint "
        f"{parent.checkpoint_id}; {_in_words(changes)}"
    )


def _in_words(changes: list[LostChange]) -> str:
    withdrawn = [change.sink.name for change in changes if change.came]
    back = [change.sink.name for change in changes if change.went]
    parts = [f"its outputs were withdrawn from {withdrawn}"] if withdrawn else []
    parts += [f"withdrawn outputs were put back into {back}"] if back else []
    return ", and ".join(parts) or "no sink showed it"
