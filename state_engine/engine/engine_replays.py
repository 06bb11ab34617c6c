"""``EngineReplays``: replays of recorded micro-batches: run, compare, give up. ``promote`` is among the operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from state_engine.core.checkpoints import lineage
from state_engine.core.checkpoints.checkpoint import MAIN
from state_engine.core.checkpoints.retention import RetentionPolicy, pins
from state_engine.core.errors import ConfigurationError, StaleParentError
from state_engine.engine.engine_base import Clock, EngineBase, clock_of, job_name, requester
from state_engine.engine.renamed import renamed_parameters
from state_engine.job.job import StatefulJob
from state_engine.microbatch.coordinator import CheckpointCoordinator, RunOptions
from state_engine.microbatch.reports import BatchReport
from state_engine.operations.maintenance import Maintenance
from state_engine.replay.comparison import ComparisonReport, compare
from state_engine.replay.replay import Recording, ReplayReport, ReplaySteps, recording
from state_engine.sinks.staging import Staging
from state_engine.storage.storage_failures import kept_in_job

_FOR_EVER_MS = 10**15


class EngineReplays(EngineBase):
    """See ``StateEngine``."""

    @renamed_parameters(recut="rebatch", on_batch="on_progress")
    @kept_in_job
    def replay(
        self,
        job: StatefulJob,
        *,
        from_checkpoint: int | None = None,
        code: StatefulJob | None = None,
        branch: str | None = None,
        to_checkpoint: int | None = None,
        rebatch: bool = False,
        clock: Clock = None,
        parameters: Mapping[str, str] | None = None,
        requested_by: str | None = None,
        on_progress: Callable[[BatchReport], Any] | None = None,
    ) -> ReplayReport:
        """Run the recorded micro-batches after a checkpoint again, on a branch that publishes nothing.

        A branch that there is goes on where it stopped: after a crash, or with what ``main`` recorded since.

        Args:
            from_checkpoint: any checkpoint on the path of the head that can be restored; 0 or None for the very
                beginning. Of a branch that there is, it may be left out.
            code: the job to run, under the same name; ``job`` itself by default.
            branch: ``[a-z][a-z0-9_]*``; ``replay_<n>`` by default.
            to_checkpoint: the last one to replay; all by default.
            rebatch: let the sources cut the recorded input anew, by their own bounds, at the recorded last clock.
            clock: processing time in place of the recorded one.
            parameters: for ``RuntimeContext.get_job_parameter``; those of the recorded runs are not known.
            on_progress: called after every committed batch.

        Raises:
            ConfigurationError: no such checkpoint or branch, or the job has another name.
            SourceError: a source's input is not there unchanged, or cannot be read again.
            StateMigrationError, UserFunctionError, …: as for ``run``.
        """
        code = code or job
        if code.name != job.name:
            raise ConfigurationError(
                f"the code to replay job '{job.name}' with is of job '{code.name}': give it the same name"
            )
        code.check()
        tables = self._ran(job.name)
        recorded = recording(
            job.name,
            tables.store.load(),
            branch=branch,
            from_checkpoint=from_checkpoint,
            to_checkpoint=to_checkpoint,
        )
        coordinator = self._replaying(code, recorded, rebatch, clock, parameters, requested_by)
        batches: list[BatchReport] = []
        while True:
            try:
                report = coordinator.run_batch()
            except StaleParentError:
                if recorded.begin_id is not None or recorded.branch in lineage.branches(tables.store.load()):
                    raise
                continue  # main went on meanwhile, and this batch has no parent that it could be put upon
            if report is None:
                break
            batches.append(report)
            if on_progress is not None:
                on_progress(report)
        head = lineage.head(tables.store.load(), recorded.branch)
        return ReplayReport(
            job=job.name,
            branch=recorded.branch,
            begin_id=recorded.begin_id,
            batches=batches,
            branch_head_id=head.checkpoint_id if head else None,
            main_head_id=recorded.main_head_id,
            remaining=len(recorded.batches) - recorded.wanted,
        )

    @kept_in_job
    def compare(self, job: StatefulJob | str, branch: str, against: str = MAIN) -> ComparisonReport:
        """What differs between two branches, row by row: outputs since their common ancestor, and state at their heads.

        Where one of them has gone through more input, that shows as a difference, too.

        Raises:
            ConfigurationError: there is no such branch, or columns or keys of the two do not go together.
            MissingFilesError: a file of outputs or state is gone.
        """
        name = job_name(job)
        tables = self._ran(name)
        staging = Staging(tables.layout.root)
        return compare(self.spark, tables.layout, staging, tables.store.load(), new=branch, old=against)

    @kept_in_job
    def drop_branch(self, job: StatefulJob | str, branch: str, *, requested_by: str | None = None) -> None:
        """Give up a branch: it can neither go on nor be promoted; what only its head needs may be collected at once,
        the rest of it after the next ``expire_checkpoints``.

        Raises:
            ConfigurationError: it is ``main``, or no open branch, or a savepoint was taken of its head.
        """
        name = job_name(job)
        tables = self._ran(name)
        rows = tables.store.load()
        if branch == MAIN:
            raise ConfigurationError(f"job '{name}': '{MAIN}' cannot be dropped")
        known = {n: row for n, row in lineage.open_branches(rows).items() if n != MAIN}
        if branch not in known:
            raise ConfigurationError(
                f"job '{name}': there is no open branch '{branch}' to drop; there are {sorted(known)}"
            )
        head = known[branch].checkpoint_id
        pinned = sorted(pin.name for pin in pins(rows).values() if pin.checkpoint_id == head)
        if pinned:
            raise ConfigurationError(
                f"job '{name}': savepoints {pinned} are copies of the head of branch '{branch}': delete them first"
            )
        # a policy that keeps everything, so that nothing but the branch is given up
        keep_all = RetentionPolicy(keep_last=1, keep_younger_than_ms=_FOR_EVER_MS)
        Maintenance(
            name,
            tables=tables,
            kernel=self.kernel,
            spark=self.spark,
            requested_by=requested_by or requester(),
        ).retire(keep_all, drop_branches=[branch])

    def _replaying(
        self,
        code: StatefulJob,
        recorded: Recording,
        rebatch: bool,
        clock: Clock,
        parameters: Mapping[str, str] | None,
        requested_by: str | None,
    ) -> CheckpointCoordinator:
        """A coordinator on the branch, which runs what was recorded."""
        steps = ReplaySteps(recorded, rebatch=rebatch)
        script = self._planner(code, steps, clock_of(clock), repeats_times=clock is None)
        options = RunOptions(
            clock_of(clock),
            dict(parameters or {}),
            requested_by or requester(),
            branch=recorded.branch,
            begin_id=recorded.begin_id,
            script=script,
        )
        return self._coordinator(code, options)
