"""``StateEngine``: runs jobs on a state root, and shows what they remember.

The one object that users of the engine hold; everything it does is done by the modules beside it. Works on any
location that Spark can write; starts a local session where none is given.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Never

from state_engine.core.checkpoints import lineage
from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.compaction_policy import compaction_due
from state_engine.core.errors import ConfigurationError
from state_engine.engine.engine_backfill import EngineBackfill, tell_late_rows
from state_engine.engine.engine_base import Clock, clock_of, job_name, requester
from state_engine.engine.engine_letters import EngineLetters
from state_engine.engine.engine_operations import EngineOperations
from state_engine.engine.engine_queries import EngineQueries
from state_engine.engine.engine_replays import EngineReplays
from state_engine.engine.renamed import METHODS, renamed, renamed_parameters
from state_engine.engine.savepoints import JobSavepoints
from state_engine.engine.state_processor import StateProcessor
from state_engine.job.job import StatefulJob
from state_engine.microbatch.coordinator import RunOptions
from state_engine.microbatch.reports import BatchReport, CompactionReport, RunReport
from state_engine.spark.lost_spark import telling_lost_processes
from state_engine.storage.storage_failures import kept_in_job

_LOG = logging.getLogger(__name__)


@telling_lost_processes
class StateEngine(EngineQueries, EngineOperations, EngineReplays, EngineBackfill, EngineLetters):
    """Runs stateful jobs; see the module docstring.

    Args:
        root: directory of all state: local path or URI.
        spark: a Spark Classic session with Delta; None starts a local one when it is first needed.
        lock_timeout_s: how long a commit waits for another process's lock.
        single_writer: vouches that no other process writes to this root, on stores that cannot fence.
        durability: ``sync``: what is committed to local directories outlasts a power cut; ``os``: it outlasts crashes
            of processes, and the operating system decides when it reaches the disk.

    Example::

        engine = StateEngine(root="state")
        report = engine.run(job)
        engine.read_state(job, "plane_delays", "last_flight").show()
    """

    # -- running ---------------------------------------------------------------------------------------------------

    @renamed_parameters(on_batch="on_progress")
    @kept_in_job
    def run(
        self,
        job: StatefulJob,
        *,
        partition: str | None = None,
        max_batches: int | None = None,
        clock: Clock = None,
        parameters: Mapping[str, str] | None = None,
        requested_by: str | None = None,
        drain: bool = False,
        on_progress: Callable[[BatchReport], Any] | None = None,
    ) -> RunReport:
        """Run micro-batches until the sources have nothing new, and compact in between where the job's policy says so.

        A job in time partitions runs those that come after the head's and are over by the clock, one a micro-batch.

        Args:
            partition: run this one only, in a job with time partitions: that after the head's, whether it is over or
                not. Nothing is to be done where the head ends with it.
            max_batches: stop after so many.
            clock: processing time of the batches, in milliseconds.
            parameters: for ``RuntimeContext.get_job_parameter``.
            requested_by: recorded with every checkpoint; user and host by default.
            drain: the input has ended for good: when all is read, every event-time timer fires, in a last micro-batch.
                Timers of processing time wait for their time, as in Flink; the watermark stays, so the job can go on.
            on_progress: called after every committed and published batch.

        Raises:
            PartitionOrderError: another partition is to be run first, or the asked one was run already.
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
            script=self._partition_script(job, partition, clock_of(clock), drain=drain),
        )
        coordinator = self._coordinator(job, options)
        path, settled = coordinator.settle()
        batches: list[BatchReport] = []
        compactions: list[CompactionReport] = []
        caught_up = False
        while max_batches is None or len(batches) < max_batches:
            report = coordinator.run_batch()
            if report is None:
                caught_up = True
                break
            batches.append(report)
            tell_late_rows(job, report)
            if on_progress is not None:
                on_progress(report)
            compactions += self._tidied(job, report.checkpoint_id, options.requested_by)
        return RunReport(
            job.name,
            batches,
            caught_up,
            settled,
            compactions,
            coordinator.files_waiting(),
            left_alone=self._left_alone(job, path),
        )

    @kept_in_job
    def publish_pending(self, job: StatefulJob | str, *, from_checkpoint: int | None = None) -> list[int]:
        """Publish what earlier runs committed and did not publish; ids of those checkpoints.

        Only the last row can be waiting. A sink that was put back from a backup lacks more: everything runs stop at it,
        and the error names the first checkpoint that it does not show.

        Args:
            job: given by its name, all sinks count, and not only those of its code.
            from_checkpoint: publish again what a sink does not show of this checkpoint and of later ones.

        Raises:
            SinkBehindError: a sink lacks outputs of earlier checkpoints, too.
            MissingFilesError: what is to be published is gone: restore the job to a checkpoint before.
            SinkError: a sink cannot take the outputs.
        """
        tables = self._open(job.name) if isinstance(job, StatefulJob) else self._ran(job_name(job))
        rows = tables.store.load()
        head = lineage.head(rows)
        path = lineage.path(rows, head.checkpoint_id if head else None)
        if from_checkpoint is not None and from_checkpoint not in rows:
            raise ConfigurationError(f"job '{job_name(job)}' has no checkpoint {from_checkpoint}")
        return self._publication(tables).settle(path, self._declared(tables, job), again_from=from_checkpoint)

    # -- parts -----------------------------------------------------------------------------------------------------

    def savepoints(self, job: StatefulJob | str) -> JobSavepoints:
        """The savepoints of a job: ``create``, ``list``, ``verify``, ``delete``."""
        return JobSavepoints(self, job)

    def state_processor(self, job: StatefulJob | str) -> StateProcessor:
        """What makes and changes state without input: ``bootstrap``, ``transform_state``, ``erase_keys``, …"""
        return StateProcessor(self, job)

    if not TYPE_CHECKING:  # a type checker is to see what there is

        def __getattr__(self, name: str) -> Never:
            raise AttributeError(renamed("StateEngine", name, METHODS))

    # -- inside ----------------------------------------------------------------------------------------------------

    def _left_alone(self, job: StatefulJob, path: Sequence[CheckpointRow]) -> dict[str, str]:
        tables = self._open(job.name)
        left = self._publication(tables).left_alone(path, self._declared(tables, job))
        return {staged.name: staged.path for staged in left}

    def _tidied(self, job: StatefulJob, checkpoint_id: int, requested_by: str) -> list[CompactionReport]:
        """Merge files of checkpoint rows, and compact what the job's policy sees a reason for, where it is time.

        What fails here is tried again after the next micro-batch, and fails no run.
        """
        try:
            self._open(job.name).store.merge()
            return self._compacted(job, checkpoint_id, requested_by)
        except Exception:
            _LOG.warning(
                "job '%s': tidying up failed; it is tried again",
                job.name,
                exc_info=True,
                extra={"job": job.name, "checkpoint_id": checkpoint_id},
            )
            return []

    def _compacted(self, job: StatefulJob, checkpoint_id: int, requested_by: str) -> list[CompactionReport]:
        if job.compaction is None:
            return []
        path = lineage.path(self._open(job.name).store.rows, checkpoint_id)
        due = compaction_due(path, job.compaction)
        if not due:
            return []
        facts = {"job": job.name, "checkpoint_id": checkpoint_id, "step": "compact"}
        _LOG.info("job '%s': compacting: %s", job.name, due.told, extra=facts)
        return [self.compact(job, list(due.reasons), requested_by=requested_by)]
