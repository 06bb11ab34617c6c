"""The sites of file faults and power cuts: a root with sinks of every kind, and the operations on it.

The engine is the real one; Spark jobs run in this process, and so do commits (``log_kernel``), so that what Delta's
log store writes is behind a plane over files, too. A sink that Spark writes is not among these: see ``test_matrix``.

A function cannot take back what it was called with, so a site has one where an operation withdraws nothing. It may be
called again with the same rows and the same id, and only so.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from state_engine import DataStream, DeltaSink, FileSink, ForeachBatchSink, SqlSink, StateEngine, StatefulJob
from state_engine.core.checkpoints.checkpoint import CheckpointRow, DataFile, StagedSink
from state_engine.core.checkpoints.retention import RetentionPolicy
from state_engine.core.checkpoints.row_outputs import publications
from state_engine.core.errors import StatelakeError
from state_engine.microbatch.attempt_outputs import AttemptSinks
from state_engine.microbatch.batch import BatchContext
from state_engine.microbatch.batch_result import Execution
from state_engine.microbatch.executor import GraphExecutor
from state_engine.microbatch.subtask.refusals import letters_table
from state_engine.monitoring.repairs import head_damages, leave_out
from state_engine.operations import maintenance, savepoints
from state_engine.publishing.publication import Publication
from state_engine.sinks.base import Sink
from state_engine.storage.layout import JobLayout, file_name, partition_path
from state_engine.storage.stores import locks
from state_engine.storage.stores.files import join, write_parquet
from tests.core.checkpoints.rows import tree
from tests.faults.log_kernel import NO_SPARK, LogKernel
from tests.protocol import model_job
from tests.protocol.model_job import JOB, SOURCE, build, execute, fold, numbers_read, slices, stored_state
from tests.protocol.passing_time import Clock
from tests.protocol.verdict import delta_rows, file_rows

NUMBERS = 6
CLOCK_MS = 1_000_000
OPERATIONS = (
    "first batch", "batch", "restore", "restore and keep", "compact", "retain", "collect", "savepoint", "import",
    "repair",
)  # fmt: skip
BATCHES = ("first batch", "batch")
LETTERS = "dead_letters"
WITHDRAWING = ("out", "out_files", "out_csv", "out_lineage", "out_sql")
"""Sinks that can withdraw, besides the dead letters, which are always there."""
EVERY = (*WITHDRAWING, "out_function")

Rows = Counter[tuple[Any, ...]]


# -- the site ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Called:
    """A function that keeps its rows in a database; a second call with the same id must have equal rows."""

    database: str

    def __call__(self, rows: Any, checkpoint_id: int) -> None:
        with opened(self.database) as database:
            database.execute("create table if not exists calls (id integer primary key, rows text)")
            before = database.execute("select rows from calls where id = ?", [checkpoint_id]).fetchone()
            content = json.dumps(rows.to_pylist())
            assert before in (None, (content,)), f"other rows of checkpoint {checkpoint_id}"
            database.execute("insert or ignore into calls values (?, ?)", [checkpoint_id, content])


@contextmanager
def opened(database: str) -> Iterator[sqlite3.Connection]:
    """A database, in one transaction."""
    connection = sqlite3.connect(database)
    try:
        with connection:
            yield connection
    finally:
        connection.close()


@dataclass
class Site:
    """A directory with a root and sinks."""

    directory: Path
    sinks: tuple[str, ...] = WITHDRAWING
    keeps: bool = False

    def engine(self, *, lock_timeout_s: float = 5.0) -> StateEngine:
        engine = StateEngine(self.directory / "root", NO_SPARK)
        engine.context._spark = NO_SPARK
        engine.context._kernel = LogKernel(lock_timeout_s=lock_timeout_s)
        return engine

    def job(self) -> StatefulJob:
        job = build(self.directory, numbers=NUMBERS, at_once=2, parallelism=2, files=True)
        stream = DataStream(job, next(iter(job.sinks.values())).parent)
        for name in self.sinks[2:]:
            stream.sink(name, self._sink(name))
        return job

    def _sink(self, name: str) -> Sink:
        path = str(self.directory / name)
        match name:
            case "out_csv":
                return FileSink(path, "csv")
            case "out_lineage":
                return DeltaSink(path, lineage=True)
            case "out_sql":
                return SqlSink(f"sqlite:///{path}.db", "out", lineage=True)
            case "out_function":
                return ForeachBatchSink(Called(f"{path}.db"), name="called_in_tests_of_faults")
        raise ValueError(name)

    def run(self, **options: Any) -> Any:
        with self.engine() as engine:
            return engine.run(self.job(), clock=CLOCK_MS, **options)

    def shown(self, sink: str) -> Rows:
        """The rows that a sink shows, to readers that share nothing with the engine."""
        path = self.directory / sink
        match sink:
            case "out_csv":
                return Counter(
                    tuple(int(value) for value in line.values())
                    for file in path.glob("checkpoint_id=*/*.csv")
                    for line in csv.DictReader(file.read_text().splitlines())
                )
            case "out_files":
                return file_rows(path)
            case "out_sql":
                with opened(f"{path}.db") as database:
                    return Counter(database.execute("select x, k, total from out"))
            case "out_function":
                with opened(f"{path}.db") as database:
                    calls = database.execute("select rows from calls").fetchall()
                return Counter(tuple(row.values()) for (rows,) in calls for row in json.loads(rows))
            case "dead_letters":
                table = self.directory / "root" / JOB / LETTERS
                at = [field.name for field in letters_table([]).schema].index("row")
                return Counter((int(row[at]),) for row in delta_rows(table).elements())
        return Counter(row[:3] for row in delta_rows(path).elements())


@contextmanager
def in_this_process() -> Iterator[Clock]:
    """Replaces Spark jobs, and shortens waits for locks."""
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        clock.rule(patch)
        patch.setattr(GraphExecutor, "execute", execute_with_letters)
        patch.setattr(maintenance, "write_base", model_job.fold_base)
        patch.setattr(savepoints, "write_base", model_job.fold_base)
        patch.setitem(locks.table_lock.__wrapped__.__kwdefaults__, "timeout_s", 0.05)  # type: ignore[attr-defined]
        yield clock


def execute_with_letters(self: GraphExecutor, batch: BatchContext, outputs: AttemptSinks) -> Execution:
    """In place of ``GraphExecutor.execute``: besides, every even number leaves a dead letter."""
    done = execute(self, batch, outputs)
    numbers = [x for x in _numbers(batch.write_id) if is_noted(x)]
    if numbers:
        path = partition_path(batch.write_id, file_name(batch.write_id, 0, 0))
        letters = [
            {"operator": model_job.UID, "source": SOURCE, "error": "even", "row": str(x)} for x in numbers
        ]
        file = write_parquet(letters_table(letters), join(self._layout.dead_letters, path))
        outputs.dead_letters.append(DataFile(path, file.bytes, len(letters), 0, footer=file.footer))
        done.refused += len(letters)
    return done


def is_noted(number: int) -> bool:
    """Whether a number leaves a dead letter."""
    return number % 2 == 0


def _numbers(write_id: str) -> range:
    start, end = slices[write_id]
    return range(start + 1, end + 1)


# -- operations --------------------------------------------------------------------------------------------------------


def site_of(directory: Path, operation: str) -> Site:
    """The site of an operation."""
    sinks = WITHDRAWING if operation in ("restore", "collect") else EVERY
    return Site(directory, sinks, keeps=operation == "restore and keep")


def prepare(site: Site, operation: str) -> None:
    """Prepare an operation."""
    if operation == "first batch":
        return
    site.run(max_batches=2)
    if operation == "collect":
        with site.engine() as engine:
            engine.compact(JOB)
            engine.restore(JOB, checkpoint_id=1)
        site.sinks = EVERY  # from here on nothing is withdrawn any more
        site.run(max_batches=1)
        with site.engine() as engine:
            engine.expire_checkpoints(JOB, RetentionPolicy(keep_last=1))
    if operation == "repair":
        with shown_in(0), suppress(StatelakeError):
            site.run(max_batches=1)
        os.truncate(rows_files(site)[-1], 0)
    if operation == "import":
        with site.engine() as engine:
            engine.savepoints(JOB).create("safe", site.directory / "safe")
        for path in set(site.directory.iterdir()) - {site.directory / "safe"}:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@contextmanager
def shown_in(sinks: int) -> Iterator[None]:
    """A power cut after so many sinks show a row."""
    real, calls = Publication._publish, []

    def publish(self: Publication, staged: StagedSink, checkpoint_id: int) -> None:
        calls.append(staged)
        if len(calls) > sinks:
            raise StatelakeError("out of power")
        real(self, staged, checkpoint_id)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Publication, "_publish", publish)
        yield


def rows_files(site: Site) -> list[Path]:
    """The files of the rows of ``checkpoints``, newest last."""
    return sorted((site.directory / "root" / JOB / "checkpoints").glob("checkpoint-*.parquet"))


def perform(site: Site, operation: str, clock: Clock) -> None:
    """Perform the operation once, with an engine of its own."""
    with site.engine() as engine:
        match operation:
            case "first batch" | "batch":
                engine.run(site.job(), clock=CLOCK_MS, max_batches=1)
            case "restore":
                engine.restore(JOB, checkpoint_id=1)
            case "restore and keep":
                engine.restore(JOB, checkpoint_id=1, outputs="keep")
            case "compact":
                engine.compact(JOB)
            case "retain":
                engine.expire_checkpoints(JOB, RetentionPolicy(keep_last=1))
            case "collect":
                engine.vacuum(site.job(), clock=clock.now_ms, delta_vacuum=False)
            case "savepoint":
                engine.savepoints(JOB).create("safe", site.directory / "safe")
            case "repair":
                [lost] = [file for file in rows_files(site) if not file.stat().st_size]
                leave_out(engine, JOB, lost.name)
            case "import":
                engine.restore(site.job(), savepoint=site.directory / "safe")


def finish(site: Site, operation: str, clock: Clock, *, ended: bool) -> None:
    """What an operator does afterwards, without faults: repeat an operation that did not end, and run on."""
    if not ended and operation not in BATCHES:
        if operation == "savepoint":
            with site.engine() as engine, suppress(StatelakeError):
                engine.savepoints(JOB).delete("safe")
        if operation == "savepoint" and (site.directory / "safe").exists():
            shutil.rmtree(site.directory / "safe")  # what the message says
            with site.engine() as engine, suppress(StatelakeError):
                engine.savepoints(JOB).delete("safe", keep_files=True)
        if not _is_done(site, operation):
            perform(site, operation, clock)
    site.run()


def _is_done(site: Site, operation: str) -> bool:
    """Whether an operation that ended with an error did its work, and a second one would be refused."""
    if operation == "repair":
        return not head_damages((site.directory / "root").as_uri())
    with site.engine() as engine:
        return operation == "import" and bool(engine.checkpoints(JOB))


def check(site: Site) -> None:
    """State and sinks hold the results of the numbers: nothing is lost or duplicated."""
    with site.engine() as engine:
        rows = {row.checkpoint_id: row for row in engine.checkpoints(JOB)}
        layout = JobLayout(engine.root, JOB)
    path = tree(rows).path(max(rows))
    state, outputs = fold(range(1, NUMBERS + 1))
    if rows[1].kind != "import":  # it is, unless a rival began in the empty root
        assert list(numbers_read(path)) == list(range(1, NUMBERS + 1))
    assert stored_state(layout, path) == state
    by_number = {output[0]: output for output in outputs}
    published = _published(rows.values() if site.keeps else path)
    for sink in (*site.sinks, LETTERS):
        numbers = published.get(sink, [])
        expected: Rows = Counter((x,) if sink == LETTERS else by_number[x] for x in numbers)
        assert site.shown(sink) == expected, f"sink '{sink}'"


def _published(rows: Iterable[CheckpointRow]) -> dict[str, list[int]]:
    """By sink, the numbers whose outputs it shows where it shows those of these rows."""
    numbers_by_sink: dict[str, list[int]] = {}
    for row in rows:
        for staged in publications(row) if row.kind == "checkpoint" else []:
            numbers = [x for x in _numbers(row.write_id) if staged.name != LETTERS or is_noted(x)]
            numbers_by_sink.setdefault(staged.name, []).extend(numbers if staged.files else [])
    return numbers_by_sink


# -- a site that is saved and put back -----------------------------------------------------------------------------


@dataclass
class SavedSite:
    """Where an operation is tried: always in the same directory, as sinks are recorded by path."""

    site: Site
    saved: Path
    operation: str

    @classmethod
    def of(cls, base: Path, operation: str) -> SavedSite:
        """Prepare an operation and save the site."""
        site = site_of(base / "work", operation)
        site.directory.mkdir()
        with in_this_process():
            prepare(site, operation)
        shutil.copytree(site.directory, base / "saved")
        return cls(site, base / "saved", operation)

    @contextmanager
    def anew(self) -> Iterator[Clock]:
        """Restore the content from before the operation."""
        shutil.rmtree(self.site.directory)
        shutil.copytree(self.saved, self.site.directory)
        with in_this_process() as clock:
            self.pass_time(clock)
            yield clock

    def pass_time(self, clock: Clock) -> None:
        """A collection deletes only what is old."""
        if self.operation == "collect":
            clock.pass_hours(25)

    def perform(self, clock: Clock) -> None:
        """Perform the operation once."""
        perform(self.site, self.operation, clock)

    def finish_and_check(self, clock: Clock, *, ended: bool) -> None:
        """Finish without faults, and check that nothing is lost or duplicated."""
        finish(self.site, self.operation, clock, ended=ended)
        check(self.site)


SavedSites = Callable[[str], SavedSite]
"""Gives the saved_site of an operation."""
