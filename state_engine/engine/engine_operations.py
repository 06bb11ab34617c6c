"""``EngineOperations``: what is done to a job between its micro-batches: restore, promote, rescale, compact, save.

Each call looks the job up, and leaves the work to the module of its name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta

from pyspark.sql import SparkSession

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.compaction_policy import CompactionPolicy
from state_engine.core.checkpoints.disposal import Disposal
from state_engine.core.checkpoints.retention import RetentionPolicy
from state_engine.core.checkpoints.savepoint_manifest import SavepointManifest
from state_engine.core.errors import ConfigurationError, MissingFilesError, SinkError
from state_engine.engine.engine_base import Clock, EngineBase, clock_of, job_name, requester
from state_engine.engine.renamed import renamed_parameters
from state_engine.job.job import StatefulJob
from state_engine.microbatch.reports import CompactionReport
from state_engine.operations.collector import ORPHAN_AGE, Collector, VacuumReport
from state_engine.operations.head_moves import Operations, OutputsPolicy, RestoreReport
from state_engine.operations.maintenance import Maintenance
from state_engine.operations.max_parallelism import MaxParallelismChange
from state_engine.operations.root_upgrade import UpgradeReport, upgrade_root
from state_engine.operations.savepoint_import import ImportOptions, import_savepoint
from state_engine.operations.savepoints import Savepoints, savepoint_of
from state_engine.spark.task_progress import OnProgress, task_progress
from state_engine.storage.files import normal_uri
from state_engine.storage.storage_failures import kept_in_job


class EngineOperations(EngineBase):
    """See ``StateEngine``."""

    @classmethod
    def upgrade(
        cls,
        root: str | os.PathLike[str],
        spark: SparkSession | None = None,
        *,
        dry_run: bool = False,
        single_writer: bool = False,
    ) -> UpgradeReport:
        """Bring a root of an older format to this version's, in place; nothing happens where it has it already.

        Stop all runners of the older version first. A crash leaves a root that is refused until this is run again.

        Args:
            root: where the root is.
            spark: session; None for a local one.
            dry_run: only tell what would happen.
            single_writer: see ``StateEngine``.

        Raises:
            RootError: there is no root, or it was written by a newer version, or its format is too old.
        """
        with cls(root, spark, single_writer=single_writer) as engine:
            return upgrade_root(engine.root, kernel=engine.kernel, spark=engine.spark, dry_run=dry_run)

    @kept_in_job
    def restore(
        self,
        job: StatefulJob | str,
        checkpoint_id: int | None = None,
        *,
        savepoint: str | os.PathLike[str] | None = None,
        outputs: OutputsPolicy = "withdraw",
        allow_non_restored_state: bool = False,
        leave_alone: Collection[str] = (),
        dry_run: bool = False,
        requested_by: str | None = None,
    ) -> RestoreReport:
        """Go back to an older checkpoint: state and source positions are what they were then, and so are the sinks.

        What is left stays inspectable until retention collects it, and can be restored again. A savepoint of this very
        job is its checkpoint; any other is copied into the job, which must not have run yet.

        Args:
            checkpoint_id: of any path of ``main``.
            savepoint: in place of a checkpoint, name of a savepoint of this job, or directory of any savepoint.
            outputs: ``withdraw``: outputs of what is left go from the sinks, in one commit a sink; ``keep``: they stay,
                and what is processed again comes twice.
            allow_non_restored_state: whether a savepoint's state that the job has no operator for may be left behind.
            leave_alone: names of sinks that stay as they are, whatever becomes of them; ``left_alone`` reports them.
                Sinks that the code does not have any more are, where the job itself is given.
            dry_run: only tell what would happen.

        Raises:
            ConfigurationError: there is no such checkpoint, or it was retired.
            MissingFilesError: the savepoint is damaged.
            StateMigrationError: the savepoint does not fit the job.
            SinkError: a sink cannot withdraw; nothing was done. The message names the ways out.
            StaleParentError: the job went on meanwhile; nothing was done.
        """
        if (checkpoint_id is None) == (savepoint is None):
            raise ConfigurationError("restore takes either a checkpoint_id or a savepoint")
        if savepoint is not None:
            own = savepoint_of(self._existing(job_name(job)), savepoint)
            if isinstance(own, SavepointManifest):
                return self._import(
                    job, normal_uri(savepoint), own, allow_non_restored_state, dry_run, requested_by
                )
            checkpoint_id = own
        assert checkpoint_id is not None
        with _sinks_of_unknown_code(job, leave_alone):
            found = self._operations(job, requested_by, leave_alone)
            return found.restore(checkpoint_id, outputs=outputs, dry_run=dry_run)

    def _import(
        self,
        job: StatefulJob | str,
        path: str,
        manifest: SavepointManifest,
        allow_non_restored_state: bool,
        dry_run: bool,
        requested_by: str | None,
    ) -> RestoreReport:
        if not isinstance(job, StatefulJob):
            raise ConfigurationError(
                f"to copy the savepoint {path} into job '{job}', give the StatefulJob itself: its operators are matched"
            )
        job.check()
        options = ImportOptions(allow_non_restored_state, dry_run, requested_by or requester())
        return import_savepoint(
            job, path, manifest, tables=self._open(job.name), kernel=self.kernel, options=options
        )

    @kept_in_job
    def promote(
        self,
        job: StatefulJob | str,
        branch: str,
        *,
        expected_head: int | None = None,
        outputs: OutputsPolicy = "withdraw",
        leave_alone: Collection[str] = (),
        dry_run: bool = False,
        requested_by: str | None = None,
    ) -> RestoreReport:
        """Make the head of a replay's branch the head of the job, and its outputs those of the sinks.

        Args:
            branch: name of the replay.
            expected_head: refuse if the head of ``main`` is another one; compaction and retention since are no matter.
            outputs, leave_alone, dry_run: as for ``restore``.

        Raises:
            ConfigurationError: there is no such branch, or the head is another one.
            SinkError, StaleParentError: as for ``restore``.
        """
        with _sinks_of_unknown_code(job, leave_alone):
            found = self._operations(job, requested_by, leave_alone)
            return found.promote(branch, expected_head=expected_head, outputs=outputs, dry_run=dry_run)

    @kept_in_job
    def rescale(
        self,
        job: StatefulJob,
        *,
        parallelism: int | Mapping[str, int] | None = None,
        max_parallelism: int | None = None,
        requested_by: str | None = None,
    ) -> CheckpointRow | None:
        """Give operators another parallelism by metadata only: not one byte of keyed state is written.

        In force until the job declares another parallelism than now. Operator state is handed out by its scheme when
        the next micro-batch runs.

        With ``max_parallelism``, keyed state is written anew in that many key groups while micro-batches go on, and
        one row puts it in force; from then on the job must declare the new number. A micro-batch that is under way at
        that moment gets ``StaleParentError`` and is to run again.

        Args:
            parallelism: of all operators, or by uid; None for what the job declares, or with ``max_parallelism`` for
                what is in force.
            max_parallelism: number of key groups, 1 to 32768; None keeps it.

        Returns:
            The row that says so; None where the operators run so already.

        Raises:
            ConfigurationError: more subtasks than key groups, or no such operator.
            RescaleError: an operator has raw operator state, which cannot be divided; or, with ``max_parallelism``,
                raw state of any kind.
            StaleParentError: the job went on meanwhile, with ``max_parallelism`` time and again; nothing was done.
        """
        job.check()
        operations = self._operations(job, requested_by)
        if max_parallelism is None:
            return operations.rescale(job, parallelism)
        change = MaxParallelismChange(
            job,
            max_parallelism,
            operations=operations,
            tables=self._ran(job.name),
            kernel=self.kernel,
            spark=self.spark,
        )
        return change.run(parallelism)

    @kept_in_job
    def compact(
        self,
        job: StatefulJob | str,
        operators: Collection[str] | None = None,
        *,
        policy: CompactionPolicy | None = None,
        full: bool = False,
        requested_by: str | None = None,
        on_progress: OnProgress | None = None,
    ) -> CompactionReport:
        """Fold keyed state into new bases: deleted and expired entries go, reading becomes cheap again.

        Micro-batches go on meanwhile, and are never failed by it. Where the head moves to another path meanwhile, the
        work is dropped. Key groups in which nothing changed and nothing expired keep their base.

        Args:
            operators: uids; all by default.
            policy: pass over the operators that it sees no reason for; None to fold whatever changed.
            full: write all key groups anew.
            on_progress: told how many tasks are done, and of how many, from another thread.

        Raises:
            ConfigurationError: the job never ran, or has no such operator.
        """
        with task_progress(self.spark, on_progress):
            return self._maintenance(job, requested_by).compact(operators, policy=policy, full=full)

    @renamed_parameters(given_up="drop_branches")
    @kept_in_job
    def expire_checkpoints(
        self,
        job: StatefulJob | str,
        policy: RetentionPolicy | None = None,
        *,
        drop_branches: Collection[str] = (),
        dry_run: bool = False,
        requested_by: str | None = None,
    ) -> list[int]:
        """Give up old checkpoints: they can no longer be restored, and what only they need may be collected.

        Args:
            policy: what to keep; ``RetentionPolicy()`` by default.
            drop_branches: branches that nobody is going to promote.
            dry_run: only tell what would be given up.

        Returns:
            Ids of the checkpoints that are given up.
        """
        found = self._maintenance(job, requested_by)
        return found.retire(policy or RetentionPolicy(), drop_branches=drop_branches, dry_run=dry_run)

    @renamed_parameters(vacuum="delta_vacuum", on_file="on_progress")
    @kept_in_job
    def vacuum(
        self,
        job: StatefulJob | str,
        *,
        orphan_age: timedelta = ORPHAN_AGE,
        dry_run: bool = False,
        delta_vacuum: bool = False,
        clock: Clock = None,
        on_progress: Callable[[Disposal], None] = lambda _: None,
        requested_by: str | None = None,
    ) -> VacuumReport:
        """Delete the files that nobody needs any more: of retired checkpoints, and of attempts that crashed.

        Never touched: what a checkpoint that can be restored, a savepoint's checkpoint, an open branch or a row that is
        not published yet needs; what sinks show; what is younger than ``orphan_age``; files of others. Files of retired
        checkpoints leave the logs of the job's tables first, and are deleted by a collection ``orphan_age`` later.

        Args:
            job: give the ``StatefulJob`` itself to reach sinks that got files, and no checkpoint yet.
            orphan_age: how long a file stays after it was written, or needed last; at least 24 hours.
            dry_run: only tell what would go.
            delta_vacuum: let Delta clean up the job's own tables, too: what it does not list and is older than a week.
            clock: gives the time, in milliseconds since 1970; None for the clock of the storage that holds the files:
                by that their ages are right whatever the clock of this machine says.
            on_progress: called for every file that is done, in a dry run for every file that would be.

        Raises:
            ConfigurationError: the job has no checkpoint yet, or ``orphan_age`` is too short.
        """
        name = job_name(job)
        tables = self._ran(name)
        found = Collector(
            name,
            tables=tables,
            kernel=self.kernel,
            maintenance=self._maintenance(job, requested_by),
            publication=self._publication(tables),
            declared=self._declared(tables, job),
            sinks=job.sinks.values() if isinstance(job, StatefulJob) else (),
        )
        return found.collect(
            orphan_age=orphan_age,
            now_ms=None if clock is None else clock_of(clock)(),
            dry_run=dry_run,
            delta_vacuum=delta_vacuum,
            on_progress=on_progress,
        )

    # -- inside ----------------------------------------------------------------------------------------------------

    def _maintenance(self, job: StatefulJob | str, requested_by: str | None) -> Maintenance:
        name = job_name(job)
        return Maintenance(
            name,
            tables=self._ran(name),
            kernel=self.kernel,
            spark=self.spark,
            requested_by=requested_by or requester(),
        )

    def _savepoints(self, job: StatefulJob | str, requested_by: str | None) -> Savepoints:
        tables = self._ran(job_name(job))
        return Savepoints(
            tables=tables,
            spark=self.spark,
            maintenance=self._maintenance(job, requested_by),
            publication=self._publication(tables),
            declared=self._declared(tables, job),
        )

    def _operations(
        self, job: StatefulJob | str, requested_by: str | None, leave_alone: Collection[str] = ()
    ) -> Operations:
        name = job_name(job)
        tables = self._ran(name)
        return Operations(
            name,
            tables=tables,
            publication=self._publication(tables),
            requested_by=requested_by or requester(),
            declared=self._declared(tables, job, leave_alone),
        )


@contextmanager
def _sinks_of_unknown_code(job: StatefulJob | str, leave_alone: Collection[str]) -> Iterator[None]:
    """Adds the way out to errors of sinks, where nobody said which ones the code of the job has."""
    try:
        yield
    except (SinkError, MissingFilesError) as error:
        if isinstance(job, str) and not leave_alone:
            error.args = (
                f"{error}. If the job does not write to that sink any more, leave it alone: leave_alone=[…] "
                "(--leave-alone), or give the job itself",
            )
        raise
