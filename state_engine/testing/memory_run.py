"""``MemoryRun``: a job that runs in memory, micro-batch after micro-batch, and what can be seen of it.

The engine itself runs the job: planning, routing, operators, watermarks, timers, state, the commit with its
invariants, and restores are its own. Four things are others: there is no Spark, so subtasks run in this process, one
after the other; logs of tables are kept in memory, in the place of Delta Kernel; every sink is a directory of files
that is read back; and published tables are in memory. Directory and files are below ``/dev/shm`` where the system has
it, so they never reach a disk. Decision 0040.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Self

import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.sink_kind import SinkKind
from state_engine.core.errors import ConfigurationError
from state_engine.engine.context import EngineContext
from state_engine.engine.engine import StateEngine
from state_engine.job.job import StatefulJob
from state_engine.job.job_tables import JobTables
from state_engine.machine.defects import guarded_class
from state_engine.microbatch.reports import RunReport
from state_engine.operations.head_operations import RestoreReport
from state_engine.operations.outputs_policy import OutputsPolicy
from state_engine.publishing.publication import Publication
from state_engine.replay.replay import ReplayReport
from state_engine.spark.no_spark import NO_SPARK
from state_engine.storage.delta.kernel import DeltaKernel
from state_engine.storage.layout import JobLayout
from state_engine.storage.state.copy_directory import NO_COPIES
from state_engine.storage.stores.files import join
from state_engine.testing import memory_views
from state_engine.testing.memory_job import MemoryJob, Transforms
from state_engine.testing.memory_kernel import MemoryKernel
from state_engine.testing.memory_tables import MemoryTables

_MEMORY = "/dev/shm"
_ROOM_BYTES = 2**28


@guarded_class
class MemoryRun:
    """A job in memory; ``run_in_memory`` makes one.

    Args:
        job, types, transforms, clock, parameters: see ``run_in_memory``.
    """

    def __init__(
        self,
        job: StatefulJob,
        *,
        types: Mapping[str, Any],
        transforms: Transforms,
        clock: int,
        parameters: Mapping[str, str],
    ) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="statelake-memory-", dir=_in_memory())
        self._types, self._transforms = types, transforms
        self._clock, self._parameters = clock, parameters
        self._engine = _MemoryEngine(join(f"file://{self._directory.name}", "root"))
        try:
            self._restart(job)
        except BaseException:
            self._directory.cleanup()
            raise

    def _restart(self, job: StatefulJob) -> None:
        self._made = MemoryJob.of(job, join(self._directory.name, "sinks"), self._types, self._transforms)

    # -- running -------------------------------------------------------------------------------------------------------

    def process(
        self,
        rows: Mapping[str, Iterable[Any]] | None = None,
        *,
        clock: int | None = None,
        drain: bool = False,
    ) -> dict[str, list[Any]]:
        """Run one micro-batch, and give what each sink gets from it; nothing where there was nothing to do.

        Args:
            rows: new rows by source, in the order in which the source would give them: tuples, dicts, Rows,
                dataclasses, or bare values, as the source's type says. Sources that hold their rows themselves
                (``from_collection``, a ``SourceFunction``) give the next ones anyway.
            clock: processing time in milliseconds, from now on; it never goes back.
            drain: the input has ended for good: where no source has anything new, every event-time timer fires.

        Raises:
            ConfigurationError: there is no such source, or it holds its rows itself.
            ValueTypeError: a row does not fit the type of its source.
            UserFunctionError, StateMigrationError, …: as ``StateEngine.run``; nothing of the micro-batch is kept.
        """
        before = self._newest_id()
        try:
            self._give(rows or {})
            self.run(max_batches=1, clock=clock, drain=drain)
        finally:
            self._give({})
        newest = self._newest_id()
        if newest == before:
            return {}
        job = self._made.job
        return {name: memory_views.shown(job, name, [newest]) for name in job.sinks}

    def run(
        self, *, max_batches: int | None = None, clock: int | None = None, drain: bool = False
    ) -> RunReport:
        """Run micro-batches until the sources that hold their rows have no more; see ``StateEngine.run``."""
        self._clock = self._clock if clock is None else clock
        return self._engine.run(
            self._made.job,
            max_batches=max_batches,
            clock=self._clock,
            parameters=self._parameters,
            requested_by="test",
            drain=drain,
        )

    def restart(self, job: StatefulJob) -> None:
        """Go on with other code of the same job, on the existing state, as the next scheduled run would."""
        if job.name != self._made.job.name:
            raise ConfigurationError(f"job '{self._made.job.name}' cannot go on as '{job.name}'")
        self._restart(job)

    def restore(self, checkpoint_id: int, *, outputs: OutputsPolicy = "withdraw") -> RestoreReport:
        """Go back to an earlier micro-batch: state, timers, watermarks and outputs are again what they were then.

        Args:
            outputs: see ``StateEngine.restore``.
        """
        return self._engine.restore(
            self._made.job, checkpoint_id=checkpoint_id, outputs=outputs, requested_by="test"
        )

    def replay(self, *, rebatch: bool = False, outputs: OutputsPolicy = "withdraw") -> ReplayReport:
        """Run all recorded micro-batches again, and take the result over: head and sinks are those of the replay.

        Args:
            rebatch: let the sources cut the recorded input again; see ``StateEngine.replay``.
            outputs: see ``StateEngine.promote``.

        Raises:
            SourceError: a source was given its rows, which it does not keep; those of ``from_collection`` are.
        """
        job = self._made.job
        report = self._engine.replay(job, rebatch=rebatch, parameters=self._parameters, requested_by="test")
        self._engine.promote(job, report.branch, outputs=outputs, requested_by="test")
        return report

    # -- looking -------------------------------------------------------------------------------------------------------

    def sink(self, name: str) -> list[Any]:
        """All that a sink shows: elements as functions see them, by micro-batch and subtask.

        At parallelism 1 that is their total order.
        """
        if name not in self._made.job.sinks:
            raise ConfigurationError(
                f"job '{self._made.job.name}' has no sink '{name}'; its sinks: {sorted(self._made.job.sinks)}"
            )
        return memory_views.shown(self._made.job, name)

    def state(self, operator: str, name: str) -> Any:
        """What is stored of a state: keyed state by key (a value, a list or a dict), operator state by subtask.

        Raises:
            ConfigurationError: there is no such operator or state.
        """
        layout = JobLayout(self._engine.root, self._made.job.name)
        return memory_views.state(layout, self._made.job, self._path(), operator, name)

    def table(self, name: str) -> list[Any]:
        """The rows that a published table shows, by key, as Rows with the columns of the real table.

        Raises:
            ConfigurationError: the job publishes no state to a table of this name.
        """
        published = self._made.job.published
        if name not in published:
            raise ConfigurationError(
                f"job '{self._made.job.name}' publishes no state to a table '{name}'; its tables: {sorted(published)}"
            )
        return self._engine.context.published.rows(published[name].table.place)

    def dead_letters(self) -> list[dict[str, Any]]:
        """The rows that were set aside, oldest first, each with its position and error."""
        layout = JobLayout(self._engine.root, self._made.job.name)
        return memory_views.dead_letters(layout, self._path())

    def checkpoints(self) -> list[CheckpointRow]:
        """All checkpoints, newest last; of a micro-batch, what it read and wrote, watermarks and metrics."""
        return self._engine.checkpoints(self._made.job)

    # -- inside --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Discard all of it."""
        self._engine.close()
        self._directory.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _give(self, rows: Mapping[str, Iterable[Any]]) -> None:
        unknown = sorted(set(rows) - set(self._made.given))
        if unknown:
            raise ConfigurationError(
                f"job '{self._made.job.name}': {unknown} cannot be given rows; sources that can: "
                f"{sorted(self._made.given)}. Those of from_collection and a SourceFunction hold their rows, unless "
                "types= of run_in_memory names them"
            )
        for name, source in self._made.given.items():
            source.give(list(rows.get(name, ())))

    def _path(self) -> list[CheckpointRow]:
        return self._engine.context.history(self._made.job.name).main_path

    def _newest_id(self) -> int:
        return self._engine.context.history(self._made.job.name).newest_id


class _MemoryEngine(StateEngine):
    def __init__(self, root: str) -> None:
        self.context: _MemoryContext = _MemoryContext(root, NO_SPARK, durability="os", local_copies=NO_COPIES)


class _MemoryContext(EngineContext):
    @cached_property
    def published(self) -> MemoryTables:
        return MemoryTables()

    def publication(self, tables: JobTables) -> Publication:
        name = tables.layout.job
        if name not in self._publications:
            targets = dict.fromkeys(
                (SinkKind.DELTA_STATE.value, SinkKind.SQL_STATE.value), self.published.target
            )
            self._publications[name] = Publication(self.kernel, tables, targets)
        return self._publications[name]

    @property
    def kernel(self) -> DeltaKernel:
        if self._kernel is None:
            self._kernel = MemoryKernel()
        return self._kernel

    def tables(self, name: str) -> JobTables:
        if name not in self._jobs:
            self._jobs[name] = _MemoryTables(NO_SPARK, self.kernel, JobLayout(self.root, name), "memory")
        self._jobs[name].create()
        return self._jobs[name]

    def existing(self, name: str) -> JobTables | None:
        return self._jobs.get(name)


class _MemoryTables(JobTables):
    """Their columns need not grow: nobody reads them as tables."""

    def _ensure_columns(self, uri: str, schema: pa.Schema) -> None:
        pass

    def _columns_of(self, uri: str) -> pa.DataType:
        return pa.struct([])


def _in_memory() -> str | None:
    """A directory that never reaches a disk, where the system has one with room; None for its usual place."""
    usable = os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ROOM_BYTES
    return _MEMORY if usable else None
