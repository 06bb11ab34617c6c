"""What ``statelake doctor --repair`` can repair: finders, each of which looks at a root for one kind of damage.

A finder returns what it found and, for each, a function that repairs it. Guarantees: finding changes nothing; a repair
may be run again, and does nothing where it was done; finders look in the order of the list, each after what the ones
before it found was repaired. Neither Spark nor Java is started, unless a repair cannot be done without.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from state_engine.core.checkpoints.checkpoint import StagedSink
from state_engine.core.checkpoints.checkpoint_kind import CheckpointKind
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.row_outputs import dead_letters_sink, sink_key
from state_engine.core.checkpoints.sink_kind import SinkKind
from state_engine.core.checkpoints.sink_moves import newest_sinks
from state_engine.core.checkpoints.updates import AddCheckpoint, LeaveOut, NewestIs, continuing
from state_engine.core.errors import MissingFilesError, SinkError, StatelakeError, StorageError
from state_engine.operations.root_repair import Damage, marker_damages
from state_engine.publishing.publication import Publication
from state_engine.sinks.file_moves import moves_of
from state_engine.sinks.file_owner import looking
from state_engine.storage.checkpoint_files import checkpoints_in, read_rows
from state_engine.storage.delta.log import DeltaLog
from state_engine.storage.layout import JobLayout
from state_engine.storage.root import jobs_in
from state_engine.storage.stores.failures import keeping
from state_engine.storage.stores.files import open_location

if TYPE_CHECKING:
    from state_engine.engine.engine import StateEngine


_ROW = re.compile(r"checkpoint-(\d{12})-([0-9a-f]+)")
_BACKUP = "put the file back from a backup of the root, or restore a savepoint into another root"
_LOOKED = "Nothing was done; all commits are unchanged"
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
            f"leave out checkpoint {number}, unless a sink shows it; the next run makes a micro-batch again, under "
            "another id, and a restore or promotion did not happen"
        )
        yield Damage(f"Checkpoints of {job}", damage, what, _left_out(uri, job, name))


def _problem(table: str, name: str) -> str:
    try:
        checkpoints_in(read_rows(table, name), where=name)
    except MissingFilesError as error:
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
    """Leave out the newest row of a job, whose file a power cut without syncs took or damaged; what was done.

    The next run does everything again that a micro-batch stood for; a restore or promotion did not happen. Rows are
    synced before sinks show them, so only a disk that lies about syncs takes one that a sink shows. A row without
    content takes the next id in the same commit, so the id of the lost row is never used again.

    Raises:
        SinkError: a sink shows the row; nothing was done.
        StaleParentError: the job ran meanwhile.
        StorageError: the storage refused; nothing was done.
    """
    with keeping(job, _LOOKED, at=engine.root):
        return _leave_out(engine, job, name)


def _leave_out(engine: StateEngine, job: str, name: str) -> str:
    lost_id, tables = int(name.split("-")[1]), engine.context.ran(job)
    tables.log.pass_over(name)
    history = tables.log.load()
    parent = history.head
    if parent is None or lost_id <= max(history):
        raise StatelakeError(f"job '{job}': checkpoint {lost_id} is no longer the newest: {_BACKUP}")
    _check_unseen(engine.context.publication(tables), history, lost_id)
    attempt = tables.clock.attempt()
    row = continuing(parent, CheckpointKind.RETENTION, lost_id + 1, attempt, requested_by=REQUESTED_BY)
    tables.log.commit([AddCheckpoint(row), LeaveOut([name])], NewestIs(history.newest_id))
    return f"job '{job}': checkpoint {lost_id} is left out, the head is that of checkpoint {parent.checkpoint_id}"


def _check_unseen(publication: Publication, history: History, lost_id: int) -> None:
    """Refuse where a sink shows the row, wholly or in part; raises SinkError."""
    letters = dead_letters_sink()
    sinks = {**newest_sinks(history.values()), sink_key(letters): letters}
    # a table that shows a state is compared with it as a whole by the next run
    appended = (sink for sink in sinks.values() if not SinkKind(sink.kind).shows_state)
    located = map(publication.places.located, appended)
    showing = [s.name for s in located if publication.seen(s) >= lost_id or _is_moving(s, lost_id)]
    if showing:
        raise SinkError(
            f"{showing} show checkpoint {lost_id}, so the next run would publish outputs a second time. Nothing was "
            f"done: {_BACKUP}"
        )


def _is_moving(sink: StagedSink, lost_id: int) -> bool:
    """Whether files of a sink stand in the middle of a move by a row."""
    if sink.kind != SinkKind.FILES:
        return False
    return any(move.checkpoint_id >= lost_id for move in looking(open_location(sink.path), moves_of))


Finder = Callable[[str], Iterable[Damage]]
"""Looks at a root, given its URI."""

FINDERS: tuple[Finder, ...] = (marker_damages, head_damages)
"""In order: what comes later may rest on what comes before; without the root's id nothing else can be judged."""


def damages(uri: str, finders: Sequence[Finder] = FINDERS) -> list[Damage]:
    """What the first finder that finds anything has found: later ones may rest on it. Nothing is changed."""
    return next((of_finder for finder in finders if (of_finder := list(finder(uri)))), [])


def repair(
    uri: str,
    *,
    on_damage: Callable[[Damage], None] = lambda _: None,
    on_done: Callable[[str], None] = lambda _: None,
    finders: Sequence[Finder] = FINDERS,
) -> list[Damage]:
    """Repair what can be; returns what is left for the user.

    Args:
        on_damage: called before each repair, and for what has none.
        on_done: called after each, with what was done.
        finders: look in this order.
    """
    for finder in finders:
        left = []
        for damage in list(finder(uri)):
            on_damage(damage)
            if damage.apply is None:
                left.append(damage)
            else:
                on_done(damage.apply())
        if left:
            return left
    return []
