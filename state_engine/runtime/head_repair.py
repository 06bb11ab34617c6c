"""Leaves out the newest row of ``checkpoints`` where its file is lost or damaged, as after a power cut without syncs.

Everything that the row stood for is done again by the next run, from its parent. So no sink may show it any more:
where one does, its outputs are withdrawn first, by the name of the attempt, which is in the name of the row's file as
in those of its outputs. A row without content takes the next id in the same commit that removes the damaged file; so
the id of the lost row is never used again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from uuid6 import uuid7

from state_engine.backends.delta.checkpoint_files import checkpoints_in, read_rows
from state_engine.backends.delta.layout import JobLayout
from state_engine.backends.delta.log_reader import read_log
from state_engine.backends.files import open_location
from state_engine.core import lineage
from state_engine.core.checkpoint import MAIN, CheckpointRow, DataFile, StagedSink
from state_engine.core.errors import MissingFilesError, SinkError, StatelakeError
from state_engine.core.operation_rows import continuing
from state_engine.core.sink_moves import DEAD_LETTERS
from state_engine.runtime.damage import Damage
from state_engine.runtime.root import jobs_in
from state_engine.runtime.sinks.file_moves import STAGED_PREFIX, published_files
from state_engine.runtime.sinks.foreach_batch import FOREACH_KIND
from state_engine.runtime.sinks.staging import Staging

if TYPE_CHECKING:
    from state_engine.runtime.engine import StateEngine

_ROW = re.compile(r"checkpoint-(\d{12})-([0-9a-f]+)")
_BACKUP = "put the file back from a backup of the root, or restore a savepoint into another root"
REQUESTED_BY = "statelake doctor --repair"


def head_damages(uri: str) -> list[Damage]:
    """Rows of ``checkpoints`` that cannot be read, of all jobs; for ``repairs``."""
    return [damage for job in jobs_in(uri) for damage in _of_job(uri, job)]


def _of_job(uri: str, job: str) -> Iterator[Damage]:
    table = JobLayout(uri, job).checkpoints
    try:
        log = read_log(table)
    except (StatelakeError, ValueError) as error:
        yield Damage(f"Checkpoints of {job}", f"the log of {table} cannot be read: {error}", _BACKUP)
        return
    files = sorted(log.files if log else [])
    broken = {name: problem for name in files if (problem := _problem(table, name))}
    newest = max((name for name in files if _ROW.match(name)), default="")
    for name, problem in broken.items():
        found = f"job '{job}': {problem}"
        if name != newest or len(broken) > 1 or len(files) == 1:
            yield Damage(f"Checkpoints of {job}", found, _BACKUP)
            continue
        number = int(name.split("-")[1])
        what = (
            f"leave out checkpoint {number}, after its outputs are withdrawn from sinks that show it; the next run "
            "does its work again, under another id"
        )
        yield Damage(f"Checkpoints of {job}", found, what, _left_out(uri, job, name))


def _problem(table: str, name: str) -> str:
    """Why a file of rows cannot be read; empty where it can."""
    try:
        checkpoints_in(read_rows(table, name), where=name)
    except (MissingFilesError, FileNotFoundError) as error:
        return str(error)
    return ""


def _left_out(uri: str, job: str, name: str) -> Callable[[], str]:
    def apply() -> str:
        from state_engine.runtime.engine import StateEngine
        from state_engine.runtime.session import local_session

        with StateEngine(uri, local_session()) as engine:
            return leave_out(engine, job, name)

    return apply


def leave_out(engine: StateEngine, job: str, name: str) -> str:
    """Leave out the newest row of a job; what was done.

    Args:
        name: of the row's file.

    Raises:
        SinkError: a sink shows the row and cannot let its outputs go.
        StaleParentError: the job ran meanwhile.
    """
    found = _ROW.match(name)
    assert found is not None
    number, write_id = int(found[1]), found[2]
    tables = engine._ran(job)
    tables.store.pass_over(name)
    rows = tables.store.load()
    parent = lineage.head(rows)
    if parent is None or number <= max(rows):
        raise StatelakeError(f"job '{job}': checkpoint {number} is not the newest any more: {_BACKUP}")
    withdrawn = [
        one
        for sink in _sinks(lineage.path(rows, parent.checkpoint_id))
        if _withdraw(engine, job, sink, number, write_id)
        for one in [sink.name]
    ]
    row = continuing(
        parent,
        kind="retention",
        checkpoint_id=number + 1,
        write_id=uuid7().hex,
        created_at=datetime.now(UTC),
        requested_by=REQUESTED_BY,
    )
    tables.check(row, parent)
    tables.store.append(row, instead_of=[name])
    sinks = f"; its outputs were withdrawn from {withdrawn}" if withdrawn else "; no sink showed it"
    return f"job '{job}': checkpoint {number} is left out, the head is that of checkpoint {parent.checkpoint_id}{sinks}"


def _sinks(path: list[CheckpointRow]) -> list[StagedSink]:
    """The sinks that a path knows, as its newest rows do, without files; dead letters among them."""
    known = {(sink.name, sink.path): sink for row in path if row.branch == MAIN for sink in row.sinks}
    return [replace(sink, files=[], withdrawn=[]) for sink in known.values()]


def _withdraw(engine: StateEngine, job: str, sink: StagedSink, number: int, write_id: str) -> bool:
    """Withdraw what a sink shows of a row; False where it shows nothing."""
    publication = engine._publication(engine._ran(job))
    app = publication.app(sink.name)
    publisher = publication.publisher(sink.kind)
    if publisher.seen(sink.path, app) < number:
        return False
    if sink.kind == FOREACH_KIND:
        raise SinkError(
            f"sink '{sink.name}': its function was called with the outputs of checkpoint {number}, and cannot take "
            f"them back. Nothing was done: {_BACKUP}"
        )
    files = _shown(engine, sink, write_id)
    if files and sink.kind != DEAD_LETTERS:
        publisher.publish(replace(sink, withdrawn=files), app, number + 1)
    return bool(files)


def _shown(engine: StateEngine, sink: StagedSink, write_id: str) -> list[DataFile]:
    """The files of an attempt that a sink shows, or that its rows came from."""
    at = open_location(sink.path)
    if sink.kind == "files":
        paths = [f"{STAGED_PREFIX}{write_id}/{name}" for name in published_files(at) if write_id in name]
    elif sink.kind == "delta":
        paths = [path for path in engine.kernel.active_files(sink.path) if write_id in path]
    else:  # rows of a database, or of a table that Spark writes, bear the name of the attempt
        staged = open_location(Staging(engine.root).here(sink.path)) if sink.kind == "sql" else at
        paths = [
            info.path.removeprefix(f"{staged.path}/")
            for info in staged.listing(recursive=True, missing_ok=True)
            if write_id in info.base_name and info.base_name.endswith(".parquet")
        ]
    return [DataFile(path=path, bytes=0, rows=0, subtask=0) for path in sorted(paths)]
