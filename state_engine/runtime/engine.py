"""``StateEngine``: runs jobs on a state root, and shows what they remember.

The one object that users of the engine hold; everything it does is done by the modules beside it. Works on any
location that Spark can write; starts a local session where none is given.
"""

from __future__ import annotations

import getpass
import os
import socket
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType as SparkStruct

from state_engine.backends.delta.kernel import DeltaKernel
from state_engine.backends.delta.layout import DEAD_LETTERS_SCHEMA, WRITE_ID, JobLayout
from state_engine.backends.files import join, normal_uri
from state_engine.core import lineage
from state_engine.core.checkpoint import CheckpointRow, PinnedCheckpoint
from state_engine.core.errors import ConfigurationError
from state_engine.core.names import check_name
from state_engine.core.retention import RetentionPolicy, pins
from state_engine.core.savepoint_manifest import SavepointManifest
from state_engine.core.spark_types import spark_schema
from state_engine.runtime.coordinator import CheckpointCoordinator, RunOptions
from state_engine.runtime.job import StatefulJob
from state_engine.runtime.job_tables import JobTables
from state_engine.runtime.maintenance import Compaction, Maintenance
from state_engine.runtime.operations import HeadMove, Operations, OutputsPolicy
from state_engine.runtime.publication import Publication
from state_engine.runtime.reports import BatchReport, RunReport
from state_engine.runtime.root import check_storage, open_root
from state_engine.runtime.routing import Router
from state_engine.runtime.savepoint_import import ImportOptions, import_savepoint
from state_engine.runtime.savepoints import Savepoint, Savepoints, described, savepoint_of, verified
from state_engine.runtime.session import check_session, local_session
from state_engine.runtime.state_reader import read_state

Clock = int | Callable[[], int] | None
"""Processing time in milliseconds: a fixed one, a function that gives it, or None for the wall clock."""


class StateEngine:
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

    def __init__(
        self,
        root: str | os.PathLike[str],
        spark: SparkSession | None = None,
        *,
        lock_timeout_s: float = 60.0,
        single_writer: bool = False,
    ) -> None:
        self.root = normal_uri(root)
        self._spark, self._lock_timeout_s, self._single_writer = spark, lock_timeout_s, single_writer
        self._kernel: DeltaKernel | None = None
        self._tables: dict[str, JobTables] = {}
        self._routers: dict[tuple[str, int], Router] = {}
        self._root_id: str | None = None

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
            _clock(clock),
            dict(parameters or {}),
            requested_by or _requester(),
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
        return self._coordinator(job, RunOptions(_clock(None))).settle()[1]

    # -- operating -------------------------------------------------------------------------------------------------

    def restore(
        self,
        job: StatefulJob | str,
        checkpoint_id: int | None = None,
        *,
        savepoint: str | os.PathLike[str] | None = None,
        outputs: OutputsPolicy = "withdraw",
        allow_non_restored_state: bool = False,
        dry_run: bool = False,
        requested_by: str | None = None,
    ) -> HeadMove:
        """Go back to an older checkpoint: state and source positions are what they were then, and so are the sinks.

        What is left stays inspectable until retention collects it, and can be restored again. A savepoint of this very
        job is its checkpoint; any other is copied into the job, which must not have run yet.

        Args:
            checkpoint_id: of any path of ``main``.
            savepoint: in place of a checkpoint, name of a savepoint of this job, or directory of any savepoint.
            outputs: ``withdraw``: outputs of what is left go from the sinks, in one commit a sink; ``keep``: they stay,
                and what is processed again comes twice.
            allow_non_restored_state: whether a savepoint's state that the job has no operator for may be left behind.
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
            own = savepoint_of(self._existing(_name(job)), savepoint)
            if isinstance(own, SavepointManifest):
                return self._import(
                    job, normal_uri(savepoint), own, allow_non_restored_state, dry_run, requested_by
                )
            checkpoint_id = own
        assert checkpoint_id is not None
        found = self._operations(job, requested_by)
        return found.restore(checkpoint_id, outputs=outputs, dry_run=dry_run)

    def _import(
        self,
        job: StatefulJob | str,
        path: str,
        manifest: SavepointManifest,
        allow_non_restored_state: bool,
        dry_run: bool,
        requested_by: str | None,
    ) -> HeadMove:
        if not isinstance(job, StatefulJob):
            raise ConfigurationError(
                f"to copy the savepoint {path} into job '{job}', give the StatefulJob itself: its operators are matched"
            )
        job.check()
        options = ImportOptions(allow_non_restored_state, dry_run, requested_by or _requester())
        return import_savepoint(
            job, path, manifest, tables=self._open(job.name), kernel=self.kernel, options=options
        )

    def savepoint(
        self,
        job: StatefulJob | str,
        name: str,
        path: str | os.PathLike[str] | None = None,
        *,
        checkpoint_id: int | None = None,
        requested_by: str | None = None,
    ) -> Savepoint:
        """Copy a checkpoint, whole, into a directory that can be moved and restored anywhere; micro-batches go on.

        Args:
            name: ``[a-z][a-z0-9_]*``, unique in the job.
            path: an empty or new directory; by default ``savepoints/<name>`` beside the job's tables.
            checkpoint_id: the head by default.

        Raises:
            ConfigurationError: the name is taken, the directory is not empty, or there is no such checkpoint.
        """
        name, at = check_name(name, what="savepoint"), path
        if at is None:
            at = join(JobLayout(self.root, _name(job)).directory, "savepoints", name)
        return self._savepoints(job, requested_by).create(name, normal_uri(at), checkpoint_id=checkpoint_id)

    def savepoints(self, job: StatefulJob | str) -> dict[str, PinnedCheckpoint]:
        """Savepoints of a job, by name."""
        tables = self._existing(_name(job))
        return pins(tables.store.load()) if tables else {}

    def verify_savepoint(self, path: str | os.PathLike[str]) -> Savepoint:
        """Read all of a savepoint and compare it with its checksums.

        Raises:
            MissingFilesError: it is damaged, or there is none.
        """
        uri = normal_uri(path)
        return described(uri, verified(uri))

    def delete_savepoint(self, job: StatefulJob | str, name: str, *, requested_by: str | None = None) -> None:
        """Delete a savepoint's directory, and let retention have its checkpoint."""
        self._savepoints(job, requested_by).delete(name)

    def promote(
        self,
        job: StatefulJob | str,
        branch: str,
        *,
        expected_head: int | None = None,
        outputs: OutputsPolicy = "withdraw",
        dry_run: bool = False,
        requested_by: str | None = None,
    ) -> HeadMove:
        """Make the head of a replay's branch the head of the job, and its outputs those of the sinks.

        Args:
            branch: name of the replay.
            expected_head: refuse if the head of ``main`` is another one.
            outputs, dry_run: as for ``restore``.

        Raises:
            ConfigurationError: there is no such branch, or the head is another one.
            SinkError, StaleParentError: as for ``restore``.
        """
        found = self._operations(job, requested_by)
        return found.promote(branch, expected_head=expected_head, outputs=outputs, dry_run=dry_run)

    def rescale(
        self,
        job: StatefulJob,
        *,
        parallelism: int | Mapping[str, int] | None = None,
        requested_by: str | None = None,
    ) -> CheckpointRow | None:
        """Give operators another parallelism by metadata only: not one byte of keyed state is written.

        In force until the job declares another parallelism than now. Operator state is handed out by its scheme when
        the next micro-batch runs.

        Args:
            parallelism: of all operators, or by uid; None for what the job declares.

        Returns:
            The row that says so; None where the operators run so already.

        Raises:
            ConfigurationError: more subtasks than key groups, or no such operator.
            RescaleError: an operator has raw operator state, which cannot be divided.
            StaleParentError: the job went on meanwhile; nothing was done.
        """
        job.check()
        return self._operations(job, requested_by).rescale(job, parallelism)

    def compact(
        self,
        job: StatefulJob | str,
        operators: Collection[str] | None = None,
        *,
        requested_by: str | None = None,
    ) -> Compaction:
        """Fold keyed state into new bases: deleted and expired entries go, reading becomes cheap again.

        Micro-batches go on meanwhile, and are never failed by it. Where the head moves to another path meanwhile, the
        work is dropped.

        Args:
            operators: uids; all by default. Those that did not change since their base are passed over.

        Raises:
            ConfigurationError: the job never ran, or has no such operator.
        """
        return self._maintenance(job, requested_by).compact(operators)

    def retain(
        self,
        job: StatefulJob | str,
        policy: RetentionPolicy | None = None,
        *,
        given_up: Collection[str] = (),
        dry_run: bool = False,
        requested_by: str | None = None,
    ) -> list[int]:
        """Give up old checkpoints: they can no longer be restored, and what only they need may be collected.

        Args:
            policy: what to keep; ``RetentionPolicy()`` by default.
            given_up: branches that nobody is going to promote.
            dry_run: only tell what would be given up.

        Returns:
            Ids of the checkpoints that are given up.
        """
        found = self._maintenance(job, requested_by)
        return found.retire(policy or RetentionPolicy(), given_up=given_up, dry_run=dry_run)

    # -- looking ---------------------------------------------------------------------------------------------------

    def checkpoints(self, job: StatefulJob | str) -> list[CheckpointRow]:
        """All checkpoints of a job, newest last; empty where it never ran."""
        tables = self._existing(_name(job))
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
        path = self._path(_name(job), checkpoint_id)
        return read_state(self.spark, JobLayout(self.root, _name(job)), path, operator, state)

    def dead_letters(self, job: StatefulJob | str) -> DataFrame:
        """All rows that were set aside, with position and error; empty where there are none."""
        layout = JobLayout(self.root, _name(job))
        if self._existing(_name(job)) is None or not self.kernel.exists(layout.dead_letters):
            schema = SparkStruct.fromJson(spark_schema(DEAD_LETTERS_SCHEMA.append(WRITE_ID)))
            return self.spark.createDataFrame([], schema)
        return self.spark.read.format("delta").load(layout.dead_letters)

    @property
    def spark(self) -> SparkSession:
        """The session; started on first use."""
        if self._spark is None:
            self._spark = local_session()
        return self._spark

    @property
    def kernel(self) -> DeltaKernel:
        """Delta Kernel in the session's JVM."""
        if self._kernel is None:
            check_session(self.spark)
            scheme = self.root.split(":")[0]
            log_store = self.spark.conf.get(f"spark.delta.logStore.{scheme}.impl", None)
            check_storage(self.root, log_store=log_store, single_writer=self._single_writer)
            self._kernel = DeltaKernel(self.spark, lock_timeout_s=self._lock_timeout_s)
        return self._kernel

    def close(self) -> None:
        """Wait for background work of commits. The Spark session stays."""
        if self._kernel is not None:
            self._kernel.close()
            self._kernel = None
            self._tables.clear()

    def __enter__(self) -> StateEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _coordinator(self, job: StatefulJob, options: RunOptions) -> CheckpointCoordinator:
        tables = self._open(job.name)
        return CheckpointCoordinator(
            job,
            tables=tables,
            kernel=self.kernel,
            spark=self.spark,
            router=self._router(job),
            options=options,
        )

    def _ran(self, name: str) -> JobTables:
        tables = self._existing(name)
        if tables is None:
            raise ConfigurationError(f"job '{name}' has no checkpoint in {self.root} yet: run it first")
        return tables

    def _maintenance(self, job: StatefulJob | str, requested_by: str | None) -> Maintenance:
        name = _name(job)
        return Maintenance(
            name,
            tables=self._ran(name),
            kernel=self.kernel,
            spark=self.spark,
            requested_by=requested_by or _requester(),
        )

    def _savepoints(self, job: StatefulJob | str, requested_by: str | None) -> Savepoints:
        tables = self._ran(_name(job))
        return Savepoints(
            tables=tables,
            spark=self.spark,
            maintenance=self._maintenance(job, requested_by),
            publication=Publication(self.kernel, tables),
        )

    def _operations(self, job: StatefulJob | str, requested_by: str | None) -> Operations:
        name = _name(job)
        tables = self._ran(name)
        return Operations(
            name,
            tables=tables,
            publication=Publication(self.kernel, tables),
            requested_by=requested_by or _requester(),
        )

    def _router(self, job: StatefulJob) -> Router:
        at = (job.name, job.max_parallelism)
        if at not in self._routers:
            self._routers[at] = Router(self.spark, max_parallelism=job.max_parallelism)
        return self._routers[at]

    def _open(self, name: str) -> JobTables:
        """The job's tables, made if need be."""
        if name not in self._tables:
            kernel = self.kernel
            if self._root_id is None:
                self._root_id = open_root(self.root, create=True)
            assert self._root_id is not None
            self._tables[name] = JobTables(self.spark, kernel, JobLayout(self.root, name), self._root_id)
        self._tables[name].create()
        return self._tables[name]

    def _existing(self, name: str) -> JobTables | None:
        """The job's tables if it ever ran; makes nothing."""
        if name in self._tables:
            return self._tables[name]
        root_id = open_root(self.root, create=False)
        if root_id is None:
            return None
        tables = JobTables(self.spark, self.kernel, JobLayout(self.root, name), root_id)
        if not tables.store.check():
            return None
        self._tables[name] = tables
        return tables

    def _path(self, name: str, checkpoint_id: int | None) -> list[CheckpointRow]:
        tables = self._existing(name)
        rows = tables.store.load() if tables else {}
        head = lineage.head(rows)
        if head is None:
            raise ConfigurationError(f"job '{name}' has no checkpoint in {self.root} yet: run it first")
        return lineage.path(rows, head.checkpoint_id if checkpoint_id is None else checkpoint_id)


def _name(job: StatefulJob | str) -> str:
    return job.name if isinstance(job, StatefulJob) else check_name(job, what="job")


def _clock(clock: Clock) -> Callable[[], int]:
    if clock is None:
        return lambda: time.time_ns() // 1_000_000
    if callable(clock):
        return clock
    fixed = int(clock)
    return lambda: fixed


def _requester() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()} pid {os.getpid()}"
