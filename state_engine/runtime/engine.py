"""``StateEngine``: runs jobs on a state root, and shows what they remember.

The one object that users of the engine hold; everything it does is done by the modules beside it. Works on any
location that Spark can write; starts a local session where none is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType as SparkStruct

from state_engine.backends.delta.layout import DEAD_LETTERS_SCHEMA, WRITE_ID, JobLayout
from state_engine.core.checkpoint import CheckpointRow
from state_engine.core.spark_types import spark_schema
from state_engine.runtime.coordinator import CheckpointCoordinator, RunOptions
from state_engine.runtime.engine_base import Clock, clock_of, job_name, requester
from state_engine.runtime.engine_operations import EngineOperations
from state_engine.runtime.engine_replays import EngineReplays
from state_engine.runtime.job import StatefulJob
from state_engine.runtime.reports import BatchReport, RunReport
from state_engine.runtime.state_reader import read_state


class StateEngine(EngineOperations, EngineReplays):
    """Runs stateful jobs; see the module docstring.

    Args:
        root: directory of all state: local path or URI.
        spark: a Spark Classic session with Delta; None starts a local one when it is first needed.
        lock_timeout_s: how long a commit waits for another process's lock.
        single_writer: vouches that no other process writes to this root, on stores that cannot fence.

    Example::

        engine = StateEngine(root="state")
        report = engine.run(job)
        engine.read_state(job, "plane_delays", "last_flight").show()
    """

    # -- running ---------------------------------------------------------------------------------------------------

    def run(
        self,
        job: StatefulJob,
        *,
        max_batches: int | None = None,
        clock: Clock = None,
        parameters: Mapping[str, str] | None = None,
        requested_by: str | None = None,
        drain: bool = False,
        on_batch: Callable[[BatchReport], Any] | None = None,
    ) -> RunReport:
        """Run micro-batches until the sources have nothing new.

        Args:
            max_batches: stop after so many.
            clock: processing time of the batches, in milliseconds.
            parameters: for ``RuntimeContext.get_job_parameter``.
            requested_by: recorded with every checkpoint; user and host by default.
            drain: the input has ended for good: when all is read, every timer fires, in a last micro-batch.
            on_batch: called after every committed and published batch.

        Raises:
            UserFunctionError, SourceError, SinkError, StateMigrationError, CommitError, …: see ``core.errors``;
                nothing of the failing batch is visible, and what was committed before stays.
        """
        job.check()
        options = RunOptions(
            clock_of(clock),
            dict(parameters or {}),
            requested_by or requester(),
            drain=drain,
            bounded=max_batches is not None,
        )
        coordinator = self._coordinator(job, options)
        _, settled = coordinator.settle()
        batches: list[BatchReport] = []
        caught_up = False
        while max_batches is None or len(batches) < max_batches:
            report = coordinator.run_batch()
            if report is None:
                caught_up = True
                break
            batches.append(report)
            if on_batch is not None:
                on_batch(report)
        return RunReport(job.name, batches, caught_up, settled)

    def settle(self, job: StatefulJob) -> list[int]:
        """Publish what earlier runs committed and did not publish; ids of those checkpoints."""
        return self._coordinator(job, RunOptions(clock_of(None))).settle()[1]

    # -- looking ---------------------------------------------------------------------------------------------------

    def checkpoints(self, job: StatefulJob | str) -> list[CheckpointRow]:
        """All checkpoints of a job, newest last; empty where it never ran."""
        tables = self._existing(job_name(job))
        return [row for _, row in sorted(tables.store.load().items())] if tables else []

    def read_state(
        self, job: StatefulJob | str, operator: str, state: str, checkpoint_id: int | None = None
    ) -> DataFrame:
        """A keyed state as a DataFrame, as of a checkpoint (the head by default).

        Returns:
            The key columns as stored, ``map_key`` for map states, and ``value``.

        Raises:
            ConfigurationError: no such checkpoint, operator or state.
            MissingFilesError: files that the checkpoint needs are gone or changed.
        """
        path = self._path(job_name(job), checkpoint_id)
        return read_state(self.spark, JobLayout(self.root, job_name(job)), path, operator, state)

    def dead_letters(self, job: StatefulJob | str) -> DataFrame:
        """All rows that were set aside, with position and error; empty where there are none."""
        layout = JobLayout(self.root, job_name(job))
        if self._existing(job_name(job)) is None or not self.kernel.exists(layout.dead_letters):
            schema = SparkStruct.fromJson(spark_schema(DEAD_LETTERS_SCHEMA.append(WRITE_ID)))
            return self.spark.createDataFrame([], schema)
        return self.spark.read.format("delta").load(layout.dead_letters)

    def _coordinator(self, job: StatefulJob, options: RunOptions) -> CheckpointCoordinator:
        tables = self._open(job.name)
        return CheckpointCoordinator(
            job,
            tables=tables,
            kernel=self.kernel,
            spark=self.spark,
            router=self._router(job),
            publication=self._publication(tables),
            options=options,
        )
