"""A job with every kind of sink on a master that runs a task again: the first attempt dies when its files are written.

In the second micro-batch the worker of one subtask is killed just before it would report: all its files are whole, or
torn. Spark runs the task again. Cases begin after the first micro-batch, or after the second, see ``Bed``.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from pyspark.sql import SparkSession

from state_engine import (
    CheckpointedFunction,
    DataStream,
    ListStateDescriptor,
    RuntimeContext,
    StatefulJob,
)
from state_engine.job.job_tables import listed_files
from state_engine.microbatch.subtask import subtask_outputs
from state_engine.storage.stores import durability
from tests.faults.workloads import (
    LETTERS,
    PAIR,
    POSTGRES_PASSWORD,
    POSTGRES_URL,
    Picky,
    Site,
    Workload,
    _events,
)

EVERY_SINK = ("delta", "spark_delta", "files", "csv", "sql", "function")
POSTGRES = "postgres"
CUT = 7
"""Three micro-batches."""
ALL = ("1", "2", "3")
"""Their checkpoints."""


@dataclass(frozen=True)
class Dying:
    """How the first attempt of a task ends."""

    marker: Path
    torn: bool


class PickyOnce(Picky, CheckpointedFunction):
    """Sums up, and keeps all numbers; the first attempt at a micro-batch with a marker to make dies."""

    def __init__(self, dying: Dying | None) -> None:
        self.dying = dying

    def initialize_state(self, context: Any) -> None:
        self.kept = context.get_operator_state_store().get_list_state(ListStateDescriptor("kept", int))

    def snapshot_state(self, context: Any) -> None:
        pass

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        yield from super().process_element(value, ctx)
        self.kept.add(value.n)

    def open(self, runtime_context: RuntimeContext) -> None:
        super().open(runtime_context)
        if self.dying is not None:
            _die_at_the_end(self.dying)


def _die_at_the_end(dying: Dying) -> None:
    """In the worker: record the files that are written from now on, and die where the subtask would report."""
    written: list[str] = []
    sink_file, letters = subtask_outputs.write_sink_file, subtask_outputs.SubtaskOutputs._write_dead_letters

    def noted(table: Any, sink: Any, name: str, *rest: Any) -> Any:
        written.append(f"{sink.directory}/{name}".removeprefix("file://"))
        return sink_file(table, sink, name, *rest)

    def dies(self: Any) -> None:
        letters(self)
        if not written:
            return
        written.extend(
            f"{self._work.spec.layout.dead_letters}/{f.path}"[7:] for f in self._work.report.dead_letters
        )
        try:
            with dying.marker.open("x") as file:
                json.dump(written, file)
        except FileExistsError:
            return
        for path in written if dying.torn else []:
            os.truncate(path, os.path.getsize(path) // 2)
        os.kill(os.getpid(), signal.SIGKILL)

    subtask_outputs.write_sink_file, subtask_outputs.SubtaskOutputs._write_dead_letters = noted, dies  # type: ignore[method-assign, assignment]


def workload(sinks: tuple[str, ...], dying: Dying | None = None) -> Workload:
    """One operator, and every sink on its output."""

    def build(job: StatefulJob, cut: int) -> Mapping[str, DataStream]:
        stream = _events(job, cut).key_by("k").process(PickyOnce(dying), uid="sums", output_type=PAIR)
        return dict.fromkeys(sinks, stream)

    return Workload("every_sink", build, ("sums",), sinks, letters=True)


class PostgresSite(Site):
    """Also looks into the server's database, where each site has a table of its own."""

    def outputs(self) -> dict[str, list[Any]]:
        shown = super().outputs()
        for name in self.workload.sinks:
            if name.startswith(POSTGRES):
                shown[name] = self._selected(name)
        return shown

    def _selected(self, table: str) -> list[Any]:
        with _database() as connection:
            if not sa.inspect(connection).has_table(table):
                return []
            return sorted(
                (row[0], row[1]) for row in connection.execute(sa.text(f"SELECT k, n FROM {table}"))
            )


def _database() -> sa.Connection:
    url = sa.make_url(os.environ[POSTGRES_URL]).set(password=os.environ[POSTGRES_PASSWORD])
    engine = sa.create_engine(url.set(drivername="postgresql+psycopg"), poolclass=sa.NullPool)
    return engine.connect()


def shown(site: Site) -> dict[str, Any]:
    """Outputs of every kind of sink, as JSON values."""
    seen = site.seen()
    outputs = {name if name == LETTERS else name.split("_")[0]: rows for name, rows in seen.outputs.items()}
    return {"outputs": outputs, "state": sorted(map(repr, seen.state.items()))}


class Bed:
    """One directory with a root and every sink, which can be put back to what it was.

    Paths of sinks are in the rows, so each case uses the same directory, one after the other.
    """

    def __init__(self, directory: Path, spark: SparkSession) -> None:
        self.directory, self.spark = directory, spark
        self.work = directory / "work"
        self._sinks, self._deaths = (*EVERY_SINK, f"{POSTGRES}_bed"), 0

    def site(self, *, dying: Dying | None = None, function: bool = True) -> PostgresSite:
        """The job, as another process would have it."""
        kinds = tuple(name for name in self._sinks if function or name != "function")
        return PostgresSite(self.work, workload(kinds, dying), self.spark, cut=CUT)

    def dying(self, *, torn: bool = False) -> Dying:
        """The next task that dies."""
        self._deaths += 1
        return Dying(self.directory / f"died-{self._deaths}", torn)

    def run_retried(self, *, torn: bool = False) -> list[str]:
        """A micro-batch with a task that runs again; what its first attempt wrote."""
        dying = self.dying(torn=torn)
        (batch,) = self.site(dying=dying).run(max_batches=1).batches
        attempts = [one.attempt for operator in batch.operators.values() for one in operator.subtasks]
        assert 1 in attempts, f"a report does not say that its subtask was tried before: {attempts}"
        return written_by(dying)

    def save(self, name: str) -> None:
        """Save the present content."""
        shutil.copytree(self.work, self.directory / f"saved-{name}")
        with _database() as connection:
            for table in self._tables():
                connection.execute(sa.text(f"CREATE TABLE saved_{name}_{table} AS SELECT * FROM {table}"))
            connection.commit()

    def put_back(self, name: str) -> None:
        """Restore the saved content, and forget what is cached of later content."""
        shutil.rmtree(self.work)
        shutil.copytree(self.directory / f"saved-{name}", self.work)
        with _database() as connection:
            for table in self._tables():
                connection.execute(sa.text(f"DELETE FROM {table}"))
                connection.execute(sa.text(f"INSERT INTO {table} SELECT * FROM saved_{name}_{table}"))
            connection.commit()
        self.forget()

    def forget(self) -> None:
        """As after a start of the machine."""
        durability.forget()
        jvm: Any = self.spark._jvm
        jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()

    def missing(self) -> list[str]:
        """Files that rows list and that are not there, or are of another size; a ``FileSink`` has moved its own."""
        site = self.site()
        gone = []
        with site.engine() as engine:
            layout = engine.context.ran(site.workload.name).layout
        for row in site.path():
            for uri, files in listed_files(layout, row):
                if "/sinks/files" not in uri and "/sinks/csv" not in uri:
                    at = Path(uri.removeprefix("file://"))
                    gone += [str(at / f.path) for f in files if _size(at / f.path) != f.bytes]
        return gone

    def _tables(self) -> tuple[str, str]:
        return f"{POSTGRES}_bed", "_statelake_tables"


def written_by(dying: Dying) -> list[str]:
    """The files of the attempt that died; raises FileNotFoundError where none died."""
    written: list[str] = json.loads(dying.marker.read_text())
    return written


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else -1
