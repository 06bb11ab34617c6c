"""``StateEngine``: runs jobs on a state root, and shows what they remember.

The one object that users of the engine hold. Each method says what it does and hands over to the module that does it,
here or in the room of its concept. Works on any location that Spark can write; starts a local session where none is
given. Decision 0030.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Self

from pyspark.sql import DataFrame, SparkSession

from state_engine.code_changes.job_plan import JobPlan
from state_engine.code_changes.planned import plan_of
from state_engine.core.checkpoints.checkpoint import MAIN, CheckpointRow
from state_engine.core.checkpoints.compaction_policy import CompactionPolicy
from state_engine.core.checkpoints.file_disposal import Disposal
from state_engine.core.checkpoints.retention import RetentionPolicy
from state_engine.core.checkpoints.savepoint_manifest import SavepointManifest
from state_engine.core.choices import check_bound
from state_engine.core.errors import ConfigurationError
from state_engine.engine import backfills, dead_letters, published, queries, running
from state_engine.engine.arguments import Clock, clock_of, code_of, job_name, requester
from state_engine.engine.backfills import JobBackfill, backfill_request, check_outputs
from state_engine.engine.context import EngineContext
from state_engine.engine.dead_letters import DeadLetterReport
from state_engine.engine.guard import guarded
from state_engine.engine.published import JobPublished
from state_engine.engine.queries import PastOf
from state_engine.engine.savepoints import JobSavepoints, restore_savepoint
from state_engine.engine.state_processor import StateProcessor
from state_engine.job.job import StatefulJob
from state_engine.microbatch.coordinator import RunOptions
from state_engine.microbatch.dead_letters import DeadLetter
from state_engine.microbatch.partition_runs import PartitionStatus, partition_states, partitions_of
from state_engine.microbatch.reports import BatchReport, CompactionReport, RunReport
from state_engine.operations.file_collector import ORPHAN_AGE, VacuumReport
from state_engine.operations.head_operations import RestoreReport
from state_engine.operations.max_parallelism import MaxParallelismChange
from state_engine.operations.outputs_policy import OutputsPolicy
from state_engine.operations.rescaling import RescaleReport, foreseen
from state_engine.operations.root_upgrade import UpgradeReport, upgrade_root
from state_engine.operations.savepoint_import import ImportOptions
from state_engine.operations.savepoints import savepoint_of
from state_engine.queries.catalog_views import RegistrationReport
from state_engine.queries.state_views import SqlView
from state_engine.replay.backfill import BackfillReport, Mode
from state_engine.replay.comparison import ComparisonReport, compare
from state_engine.replay.differences import StateDiff
from state_engine.replay.key_debug import KeyDebug
from state_engine.replay.key_history import KeyHistory
from state_engine.replay.replay import ReplayReport, recording
from state_engine.spark.catalog import place_of
from state_engine.spark.engine_session import handed_out
from state_engine.spark.task_progress import OnProgress, task_progress
from state_engine.storage.delta.kernel import DeltaKernel
from state_engine.storage.layout import JobLayout
from state_engine.storage.state.copy_directory import LocalCopies
from state_engine.storage.stores.durability import Durability
from state_engine.storage.stores.object_stores import StoreAccess


@guarded
class StateEngine:
    """Runs stateful jobs on a state root, shows what they remember, and operates on them.

    Args:
        root: directory of all state: local path or URI.
        spark: a Spark Classic session with Delta; None starts a local one when it is first needed.
        lock_timeout_s: how long a commit waits for another process's lock.
        single_writer: you guarantee that no other process writes to this root, on stores that cannot fence.
        durability: ``sync``: what is committed to local directories outlasts a power cut; ``os``: it outlasts crashes
            of processes, and the operating system decides when it reaches the disk.
        stores: how the bucket of the root is reached, and those that it names (``buckets``); None for both as the
            section ``[storage]`` of the settings says. Engines of one process may reach different buckets differently.
        local_copies: of large files of state on the machines that run subtasks; None for the section
            ``[local_copies]`` of the settings.
        opentelemetry: whether runs make spans and metrics by OpenTelemetry's API, for the SDK that the program has set
            up; None for the section ``[telemetry]`` of the settings. Needs ``statelake[otel]``.

    Raises:
        ConfigurationError: this process reaches one of these buckets in another way already.

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
        durability: Durability = "sync",
        stores: StoreAccess | None = None,
        local_copies: LocalCopies | None = None,
        opentelemetry: bool | None = None,
    ) -> None:
        self.context = EngineContext(
            root,
            spark,
            lock_timeout_s=lock_timeout_s,
            single_writer=single_writer,
            durability=durability,
            stores=stores,
            local_copies=local_copies,
            opentelemetry=opentelemetry,
        )

    @property
    def root(self) -> str:
        """Where the root is, as a URI."""
        return self.context.root

    @property
    def spark(self) -> SparkSession:
        """Your session; started on first use. Runs use one of their own beside it, see the guide of sources."""
        return self.context.user_session

    @property
    def kernel(self) -> DeltaKernel:
        """Delta Kernel in the session's JVM."""
        return self.context.kernel

    def close(self) -> None:
        """Wait for background work of commits. The Spark session stays."""
        self.context.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- running -------------------------------------------------------------------------------------------------------

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
        accept_clock: bool = False,
        register: str | None = None,
        on_progress: Callable[[BatchReport], object] | None = None,
    ) -> RunReport:
        """Run micro-batches until the sources have nothing new; compact in between if the job's policy asks for it.

        A job in time partitions runs those that come after the head's and are over by the clock, one a micro-batch.

        Args:
            partition: run this one only, in a job with time partitions: that after the head's, whether it is over or
                not. Nothing is to be done where the head ends with it.
            max_batches: stop after this many.
            clock: processing time of the batches, in milliseconds.
            parameters: for ``RuntimeContext.get_job_parameter``.
            requested_by: recorded with every checkpoint; user and host by default.
            drain: the input has ended for good: when all is read, every event-time timer fires, in a last micro-batch.
                Timers of processing time wait for their time, as in Flink; the watermark stays, so the job can go on.
            accept_clock: the clock is right, even if it is further ahead of the last checkpoint than the job's
                ``max_clock_jump``.
            register: ``schema`` or ``catalog.schema``, in which the job is registered when the run has come to its end,
                see ``register``.
            on_progress: called after every committed and published batch.

        Raises:
            SetupError: the clock jumps, see ``accept_clock``.
            PartitionOrderError: another partition is to be run first, or the asked one was run already.
            UserFunctionError, SourceError, SinkError, StateMigrationError, CommitError, …: see ``core.errors``;
                nothing of the failing batch is visible, and what was committed before stays.
        """
        code_of(job, "run").check()
        options = self._options(clock, parameters, requested_by, accept_clock, drain=drain)
        place = place_of(register) if register else None
        done = running.run(
            self.context, job, options, partition=partition, max_batches=max_batches, on_progress=on_progress
        )
        if place:
            published.register(self.context, *place, [job])
        return done

    def publish_pending(
        self, job: StatefulJob | str, *, from_checkpoint: int | None = None, dry_run: bool = False
    ) -> list[int]:
        """Publish what earlier runs committed and did not publish; ids of those checkpoints.

        Only the last row can be waiting. A sink that was put back from a backup lacks more: everything runs stop at it,
        and the error names the first checkpoint that it does not show.

        Args:
            job: given by its name, all sinks count, and not only those of its code.
            from_checkpoint: publish again what a sink does not show of this checkpoint and of later ones.
            dry_run: only report which checkpoints wait.

        Raises:
            SinkBehindError: a sink lacks outputs of earlier checkpoints, too.
            MissingFilesError: what is to be published is gone: restore the job to a checkpoint before.
            SinkError: a sink cannot take the outputs.
        """
        return running.publish_pending(self.context, job, from_checkpoint=from_checkpoint, dry_run=dry_run)

    def plan(
        self,
        job: StatefulJob,
        *,
        sample: int | None = None,
        parameters: Mapping[str, str] | None = None,
        clock: Clock = None,
    ) -> JobPlan:
        """What a run of today's code would do to existing state and outputs: nothing is committed or written.

        Reads the root and looks at the tables of sinks, without Spark and Java. ``notes`` has what only rows
        or a subtask show.

        Args:
            sample: also run today's code over so many recorded rows at most, unless a run is refused: the newest
                micro-batches, with the state that they had; of one with more rows, some keys. Starts Spark for what
                needs it.
            parameters, clock: as for ``run``.

        Raises:
            ConfigurationError: ``sample`` is below 1.
            RootError: the root is of another format, or the job of another root.
            DamagedFileError: rows of checkpoints are not what was committed.

        Example:
            >>> from state_engine import FileSink, FileSource
            >>> job = StatefulJob("clicks")
            >>> clicks = job.source("clicks", FileSource("/lake/inbox", schema="user string"))
            >>> _ = clicks.sink("copy", FileSink("/lake/clicks"))
            >>> StateEngine("/lake/never").plan(job).summary()
            'clicks: never ran here; the first run begins with nothing'
        """
        code = code_of(job, "plan")
        check_bound(sample, what="sample")
        return plan_of(
            self.root,
            code,
            clock=clock_of(clock),
            parameters=parameters or {},
            sample=sample,
            session=lambda: self.context.spark,
        )

    # -- looking -------------------------------------------------------------------------------------------------------

    def checkpoints(self, job: StatefulJob | str) -> list[CheckpointRow]:
        """All checkpoints of a job, newest last; empty where it never ran."""
        return [row for _, row in sorted(self.context.history(job_name(job)).items())]

    def read_state(
        self,
        job: StatefulJob | str,
        operator: str,
        state: str,
        *,
        checkpoint_id: int | None = None,
        as_of: datetime | str | None = None,
        include_expired: bool = False,
        metadata: bool = False,
    ) -> DataFrame:
        """A keyed state as a DataFrame, as of a checkpoint (the head by default).

        Args:
            checkpoint_id: any that is retained, on any path.
            as_of: a time, or its ISO 8601 text, UTC where no zone is given: the newest checkpoint on the path of the
                head that was made at or before then.
            include_expired: also entries that had expired by the checkpoint's clock or watermark and were not cleaned
                up yet. Left out by default, unless the job itself may see them (ReturnExpiredIfNotCleanedUp).
            metadata: also the columns ``updated_at`` and ``expires_at`` (timestamps, null without a time to live; of a
                list those of the element that lives longest) and ``key_group``.

        Returns:
            The key columns as stored, ``map_key`` for map states, and ``value``: of reducing, aggregating and folding
            states the accumulator. A key column with the name of another column gets ``key_`` before it.

        Raises:
            ConfigurationError: no such checkpoint, operator or state.
            MissingFilesError: files that the checkpoint needs are gone or changed.
        """
        past = PastOf(self.context, job_name(job), checkpoint_id=checkpoint_id, as_of=as_of)
        return past.read_state(operator, state, include_expired=include_expired, metadata=metadata)

    def sql(
        self,
        job: StatefulJob | str,
        text: str,
        *,
        checkpoint_id: int | None = None,
        as_of: datetime | str | None = None,
        unrestricted: bool = False,
    ) -> DataFrame:
        """The answer to a SQL query over what a job remembers, as of a checkpoint (the head by default).

        There is a view for every keyed state: ``<state>`` where that is unique in the job, and always
        ``<operator>__<state>``; and ``checkpoints``, ``sources``, ``sinks``, ``operator_state``, ``dead_letters`` and
        ``key_groups``. ``list_views`` lists them. They lie in a session of their own, and only those that the query
        names are made. Tables of the session's catalog can be joined; nothing but queries is run. Functions are those
        that come with Spark, without those that call Java methods or read files; a file cannot be read as a table.

        Args:
            checkpoint_id, as_of: see ``read_state``.
            unrestricted: whether the query may use all that the session can: functions of the catalog, ``reflect``,
                files as tables, programs. For queries that you would run as code.

        Raises:
            ConfigurationError: the query cannot be understood, or uses what it may not, or there is no such checkpoint.
            MissingFilesError: files that the checkpoint needs are gone or changed.

        Example::

            engine.sql(job, "SELECT sensor, value.* FROM sum WHERE value.f0 > 1", as_of="2026-03-01").show()
        """
        past = PastOf(self.context, job_name(job), checkpoint_id=checkpoint_id, as_of=as_of)
        return past.sql(text, unrestricted=unrestricted)

    def list_views(
        self,
        job: StatefulJob | str,
        *,
        checkpoint_id: int | None = None,
        as_of: datetime | str | None = None,
    ) -> Sequence[SqlView]:
        """The views that ``sql`` has for a job, with their columns; reads no state."""
        return PastOf(self.context, job_name(job), checkpoint_id=checkpoint_id, as_of=as_of).views()

    def diff(
        self,
        job: StatefulJob | str,
        before: int | datetime | str,
        after: int | datetime | str,
        *,
        operator: str | None = None,
        state: str | None = None,
    ) -> list[StateDiff]:
        """What changed in keyed state from one checkpoint to another.

        Args:
            before, after: ids of checkpoints, on any paths, or times as for ``read_state``.
            operator, state: only of these; all by default.

        Returns:
            One for each state, with a DataFrame of its changes: key, [map key,] change (added, removed, changed),
            before and after. What has expired by the clock of either side is not there on that side.

        Raises:
            ConfigurationError: no such checkpoint, operator or state.
            MissingFilesError: files that the checkpoints need are gone or changed.
        """
        return queries.diff(self.context, job_name(job), before, after, operator=operator, state=state)

    def explain(
        self,
        job: StatefulJob | str,
        key: Any,
        *,
        operator: str | None = None,
        from_checkpoint: int | None = None,
        to_checkpoint: int | None = None,
        last: int = 20,
        limit: int = 20,
        on_progress: Callable[[CheckpointRow], object] | None = None,
    ) -> KeyHistory:
        """What happened to one key: inputs, states before and after, timers and outputs, checkpoint by checkpoint.

        Inputs are the rows that the sources gave then; they are read again, and today's code parses them and makes
        their keys. What is no longer there (a file that is gone, state of an expired checkpoint, a sink without the
        columns of the key) is named, and the rest is given.

        Args:
            job: a job, or a name; without its code, inputs are not known.
            key: as functions see it, or a dict by column.
            operator: only of this one; all that are keyed like this by default.
            from_checkpoint, to_checkpoint: on the path of the head, both included; the newest ``last`` by default.
            limit: so many rows of each input and output are given; all are counted.
            on_progress: called before each checkpoint is looked at.

        Raises:
            ConfigurationError: the job never ran, there is no such operator or checkpoint, or nothing has such keys.

        Example::

            for event in engine.explain(job, "N121DE").events:
                print(event.checkpoint_id, event.inputs, event.states)
        """
        check_bound(last, what="last")
        check_bound(limit, what="limit")
        return queries.explainer(self.context, job, limit).explain(
            key,
            operator=operator,
            first=from_checkpoint,
            last=to_checkpoint,
            newest=last,
            on_progress=on_progress,
        )

    def debug(
        self,
        job: StatefulJob,
        key: Any,
        *,
        checkpoint_id: int | None = None,
        from_checkpoint: int | None = None,
        to_checkpoint: int | None = None,
        operator: str | None = None,
        parameters: Mapping[str, str] | None = None,
        on_progress: Callable[[CheckpointRow], object] | None = None,
    ) -> KeyDebug:
        """Run today's function over the recorded inputs of one key, in this process, and compare with the record.

        The key starts with the state that it had, and goes on with its own from micro-batch to micro-batch. A debugger
        stops in the function, whose elements come one by one. Nothing is written to the root. Spark starts only where
        an input cannot be read without it; then there is a note. Operators before this one run again, over all rows
        of the micro-batch. The report names what is gone (a file, state of an expired checkpoint), and the rest runs.

        Args:
            key: as functions see it, or a dict by column.
            checkpoint_id: this micro-batch alone; by default the newest of the last 20 that touched the key.
            from_checkpoint, to_checkpoint: instead, micro-batches on the path of the head, both included.
            operator: only of this one; all that are keyed like this by default.
            parameters: of the job, which are not recorded.
            on_progress: called before each micro-batch is read.

        Raises:
            ConfigurationError: the job never ran, there is no such operator or micro-batch, or nothing has such keys.

        An exception of the function comes as it is, unless the job sets refused rows aside.

        Example::

            debugged = engine.debug(job, "N121DE", checkpoint_id=41)
            for batch in debugged.operators[0].batches:
                print(batch.steps, batch.states, batch.outputs)
            assert debugged.same
        """
        if checkpoint_id is not None and (from_checkpoint, to_checkpoint) != (None, None):
            raise ConfigurationError(
                "debug() takes checkpoint_id, or from_checkpoint and to_checkpoint, and not both: leave one of them out"
            )
        return queries.debugger(self.context, code_of(job, "debug()"), parameters or {}).debug(
            key,
            operator=operator,
            first=from_checkpoint if checkpoint_id is None else checkpoint_id,
            last=to_checkpoint if checkpoint_id is None else checkpoint_id,
            on_progress=on_progress,
        )

    def partitions(self, job: StatefulJob, *, clock: Clock = None) -> list[PartitionStatus]:
        """The time partitions of a job, in order: done, stale or missing.

        Args:
            clock: partitions that are over by then are listed, besides all that were run.
        """
        partitions = partitions_of(code_of(job, "partitions"), "partitions()")
        return partition_states(partitions, self.context.history(job.name), now_ms=clock_of(clock)())

    def register(
        self,
        catalog: str,
        schema: str,
        *,
        jobs: Collection[StatefulJob | str] | None = None,
        dry_run: bool = False,
    ) -> RegistrationReport:
        """Give published tables, and a view of every other keyed state, a name in a catalog.

        A published Delta table gets its own name, and follows the head. A keyed state gets a view
        ``<operator>__<state>``, as ``list_views`` has it, without what had expired; any session with Delta reads it,
        without this engine. It shows the head of now until it is registered again, and pins nothing: after its
        checkpoint has expired and its files were collected, a query of it fails and names a missing file.

        Args:
            catalog: ``spark_catalog`` for Spark's own; another one must know views.
            schema: that gets the names; it must be there.
            jobs: only these; all of the root by default.
            dry_run: only check the names, and report them.

        Raises:
            ConfigurationError: something else has one of the names, there is no such schema, or no job ran yet.
            InvalidNameError: catalog or schema are not names.
            MissingFilesError: files of a state are gone or changed.

        Example::

            engine.register("spark_catalog", "lake")
            spark.sql("SELECT * FROM lake.plane_delays__last_flight")    # in any session of this catalog
        """
        return published.register(self.context, catalog, schema, jobs, dry_run=dry_run)

    # -- rows that were refused ----------------------------------------------------------------------------------------

    def dead_letters(self, job: StatefulJob | str) -> DataFrame:
        """All rows that were set aside, with position and error; empty where there are none.

        Raises:
            MissingFilesError: files that hold them are gone or changed.
        """
        return handed_out(queries.dead_letters(self.context, job_name(job), self.context.spark))

    def list_dead_letters(self, job: StatefulJob | str, *, sent: bool = False) -> list[DeadLetter]:
        """The dead letters on the head's path, oldest first; ``dead_letters`` has them as a DataFrame.

        Args:
            job: a job, or a name; only of a job it is known whether its operators and sources could take them.
            sent: whether those that were sent again are listed, too.
        """
        code = job if isinstance(job, StatefulJob) else None
        every = dead_letters.list_dead_letters(self.context, job_name(job), code)
        return [letter for letter in every if sent or not letter.sent]

    def replay_dead_letters(
        self,
        job: StatefulJob,
        *,
        ids: Sequence[str] | None = None,
        operator: str | None = None,
        max_rows: int = 10_000,
        clock: Clock = None,
        parameters: Mapping[str, str] | None = None,
        requested_by: str | None = None,
        accept_clock: bool = False,
        dry_run: bool = False,
        on_progress: Callable[[BatchReport], object] | None = None,
    ) -> DeadLetterReport:
        """Send dead letters through today's code, each exactly once along the head's path.

        A letter goes to the operator that refused it, or, where it could not be parsed, to its source. Letters come
        after all rows that were read before them, so one may be late by its event time. One that is refused again is a
        new letter. A restore to before takes back what they did, and has them waiting again.

        Args:
            ids: of letters; all that wait and can be sent by default.
            operator: only those that it refused.
            max_rows: letters of a micro-batch.
            clock, parameters, requested_by, accept_clock, on_progress: as for ``run``.
            dry_run: only report what would be sent.

        Raises:
            ConfigurationError: a letter was sent before, or cannot be.
            SetupError: the clock jumps, see ``run``.
            UserFunctionError, …: as for ``run``; what was committed before stays, and the others wait.
        """
        code_of(job, "replay_dead_letters").check()
        options = self._options(clock_of(clock)(), parameters, requested_by, accept_clock)
        return dead_letters.replay_dead_letters(
            self.context,
            job,
            options,
            ids=ids,
            operator=operator,
            max_rows=max_rows,
            dry_run=dry_run,
            on_progress=on_progress,
        )

    # -- moving the head -----------------------------------------------------------------------------------------------

    def restore(
        self,
        job: StatefulJob | str,
        *,
        checkpoint_id: int | None = None,
        savepoint: str | os.PathLike[str] | None = None,
        outputs: OutputsPolicy = "withdraw",
        allow_non_restored_state: bool = False,
        leave_alone: Collection[str] = (),
        dry_run: bool = False,
        requested_by: str | None = None,
    ) -> RestoreReport:
        """Go back to an older checkpoint: state and source positions are what they were then, and so are the sinks.

        What is left stays inspectable until it is expired, and can be restored again. A savepoint of this very
        job is its checkpoint; any other is copied into the job, which must not have run yet.

        Args:
            checkpoint_id: of any path of ``main``.
            savepoint: instead of a checkpoint, name of a savepoint of this job, or directory of any savepoint.
            outputs: ``withdraw``: outputs of what is left go from the sinks, in one commit a sink; ``keep``: they stay,
                and what is processed again comes twice. Or one of them by name of a sink, ``{"mail": "keep"}``: sinks
                that are not named withdraw.
            allow_non_restored_state: whether a savepoint's state that the job has no operator for may be left behind.
            leave_alone: names of sinks that stay as they are, whatever becomes of them; ``left_alone`` reports them.
                Sinks that the code no longer has are, where the job itself is given.
            dry_run: only report what would happen.

        Raises:
            ConfigurationError: there is no such checkpoint, or it was expired.
            MissingFilesError: the savepoint is damaged.
            StateMigrationError: the savepoint does not fit the job.
            SinkError: a sink cannot withdraw; nothing was done. The message names the ways out.
            StaleParentError: the job went on meanwhile; nothing was done.
        """
        if (checkpoint_id is None) == (savepoint is None):
            raise ConfigurationError("restore takes either a checkpoint_id or a savepoint")
        context = self.context
        if savepoint is not None:
            own = savepoint_of(context.existing(job_name(job)), savepoint)
            if isinstance(own, SavepointManifest):
                options = ImportOptions(allow_non_restored_state, dry_run, requested_by or requester())
                return restore_savepoint(context, job, savepoint, own, options)
            checkpoint_id = own
        assert checkpoint_id is not None
        operations = context.operations(job, requested_by, leave_alone)
        return operations.restore(checkpoint_id, outputs=outputs, dry_run=dry_run)

    def rescale(
        self,
        job: StatefulJob,
        *,
        parallelism: int | Mapping[str, int] | None = None,
        max_parallelism: int | None = None,
        dry_run: bool = False,
        requested_by: str | None = None,
    ) -> RescaleReport:
        """Give operators another parallelism by metadata only: not one byte of keyed state is written.

        In force until the job declares another parallelism than now. Operator state is handed out by its scheme when
        the next micro-batch runs.

        With ``max_parallelism``, keyed state is rewritten in that many key groups while micro-batches go on, and
        one row puts it in force; from then on the job must declare the new number. A micro-batch that is under way at
        that moment gets ``StaleParentError`` and must run again.

        Args:
            parallelism: of all operators, or by uid; None for what the job declares, or with ``max_parallelism`` for
                what is in force.
            max_parallelism: number of key groups, 1 to 32768; None keeps it.
            dry_run: only report what would be in force.

        Raises:
            ConfigurationError: more subtasks than key groups, or no such operator.
            RescaleError: an operator has raw operator state, which cannot be divided; or, with ``max_parallelism``,
                raw state of any kind.
            StaleParentError: the job went on meanwhile, with ``max_parallelism`` time and again; nothing was done.
        """
        code_of(job, "rescale").check()
        operations, tables = self.context.operations(job, requested_by), self.context.ran(job.name)
        change = None
        if max_parallelism is not None:
            change = MaxParallelismChange(job, max_parallelism, operations, tables, self.context.spark)
        if dry_run:
            return foreseen(job, tables.log.load().main_path[-1], parallelism, max_parallelism)
        row = change.run(parallelism) if change else operations.rescale(job, parallelism)
        return RescaleReport.of(row or tables.log.load().main_path[-1], row)

    # -- branches: running again what was recorded ---------------------------------------------------------------------

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
        accept_clock: bool = False,
        on_progress: Callable[[BatchReport], object] | None = None,
    ) -> ReplayReport:
        """Run the recorded micro-batches after a checkpoint again, on a branch that publishes nothing.

        An existing branch goes on where it stopped: after a crash, or with what ``main`` recorded since.

        Args:
            from_checkpoint: any checkpoint on the path of the head that can be restored; 0 or None for the very
                beginning. Of an existing branch, it may be left out.
            code: the job to run, under the same name; ``job`` itself by default.
            branch: ``[a-z][a-z0-9_]*``; ``replay_<n>`` by default.
            to_checkpoint: the last one to replay; all by default.
            rebatch: let the sources cut the recorded input again, by their own bounds, at the recorded last clock.
            clock: processing time instead of the recorded one.
            parameters: for ``RuntimeContext.get_job_parameter``; those of the recorded runs are not known.
            accept_clock: as for ``run``; recorded times are right.
            on_progress: called after every committed batch.

        Raises:
            ConfigurationError: no such checkpoint or branch, or the job has another name.
            SetupError: the clock jumps, see ``run``.
            SourceError: a source's input is not there unchanged, or cannot be read again.
            StateMigrationError, UserFunctionError, …: as for ``run``.
        """
        code = code or code_of(job, "replay")
        if code.name != job_name(job):
            raise ConfigurationError(
                f"the code to replay job '{job_name(job)}' with is of job '{code.name}': give it the same name"
            )
        code.check()
        history = self.context.ran(code.name).log.load()
        recorded = recording(
            code.name, history, branch=branch, from_checkpoint=from_checkpoint, to_checkpoint=to_checkpoint
        )
        return backfills.replay(
            self.context,
            code,
            recorded,
            self._options(clock, parameters, requested_by, accept_clock or clock is None),
            rebatch=rebatch,
            repeats_times=clock is None,
            on_progress=on_progress,
        )

    def backfill(
        self,
        job: StatefulJob,
        start: str,
        end: str,
        mode: Mode | str = "roll_forward",
        *,
        dry_run: bool = False,
        clock: Clock = None,
        code: StatefulJob | None = None,
        rebatch: bool = False,
        branch: str | None = None,
        outputs: OutputsPolicy = "withdraw",
        parameters: Mapping[str, str] | None = None,
        requested_by: str | None = None,
        accept_clock: bool = False,
        on_progress: Callable[[BatchReport], object] | None = None,
    ) -> BackfillReport:
        """Run time partitions again, from the state at the end of the one before the first of them.

        The same call goes on with a backfill that did not come to its end, at its first unfinished partition.
        Partitions at the end of the range that were never run are run as well.

        Args:
            start, end: keys of the first and last partition.
            mode: ``roll_forward``: also all later ones that were run, on a branch, whose outputs then replace the old
                ones in one commit a sink; ``stop``: these only, the head ends with the last one, and later ones keep
                their outputs and are stale until they run again; ``branch``: as ``roll_forward``, and left on the
                branch, for ``compare`` and ``promote``.
            dry_run: only report what would be done.
            clock: processing time instead of the recorded one.
            code: the job to run, under the same name; ``job`` itself by default.
            rebatch: read partitions from what the sources hold of them now, rows that were late included; by default,
                what the recorded runs read.
            branch: its name; ``backfill_<n>`` by default.
            outputs: ``withdraw``: old outputs go from the sinks as the new ones come; ``keep``, with ``roll_forward``:
                they stay beside them, for sinks that cannot let go of any. Or one of them by name of a sink, as for
                ``restore``.
            parameters, requested_by, accept_clock, on_progress: as for ``run``.

        Raises:
            PartitionOrderError: partitions in front of the first were not run yet.
            ConfigurationError: the job is continuous, there are no such partitions, or the state in front of them is
                no longer kept.
            SetupError: the clock jumps, see ``run``.
            SourceError: input that was recorded is not there unchanged.
            SinkError: a sink cannot let go of old outputs.
        """
        code = code or code_of(job, "backfill")
        request = backfill_request(job, code, start, end, mode, rebatch=rebatch, branch=branch)
        check_outputs(outputs, request.mode)
        options = self._options(clock, parameters, requested_by, accept_clock, backfill=request.text)
        work = JobBackfill(
            self.context,
            job,
            code,
            request,
            outputs,
            options,
            repeats_times=clock is None,
            on_progress=on_progress,
        )
        return work.run(dry_run=dry_run)

    def branches(self, job: StatefulJob | str) -> dict[str, CheckpointRow]:
        """Heads of the replays that are neither promoted nor dropped, by the names of their branches."""
        heads = self.context.history(job_name(job)).open_branches
        return {name: row for name, row in heads.items() if name != MAIN}

    def compare(self, job: StatefulJob | str, branch: str, against: str = MAIN) -> ComparisonReport:
        """What differs between two branches, row by row: outputs since their common ancestor, and state at their heads.

        Where one of them has gone through more input, that shows as a difference, too.

        Raises:
            ConfigurationError: there is no such branch, or columns or keys of the two do not go together.
            MissingFilesError: a file of outputs or state is gone.
        """
        tables = self.context.ran(job_name(job))
        return compare(self.context.spark, tables.layout, tables.log.load(), new=branch, old=against)

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
            expected_head: refuse if the head of ``main`` is another one; compaction and retention since do not matter.
            outputs, leave_alone, dry_run: as for ``restore``.

        Raises:
            ConfigurationError: there is no such branch, or the head is another one.
            SinkError, StaleParentError: as for ``restore``.
        """
        operations = self.context.operations(job, requested_by, leave_alone)
        return operations.promote(branch, expected_head=expected_head, outputs=outputs, dry_run=dry_run)

    def drop_branch(
        self,
        job: StatefulJob | str,
        branch: str,
        *,
        dry_run: bool = False,
        requested_by: str | None = None,
    ) -> list[int]:
        """Drop a branch: it can neither go on nor be promoted.

        ``vacuum`` may delete what only its head needs at once, the rest of it after the next ``expire_checkpoints``.

        Args:
            dry_run: only report what would be expired.

        Returns:
            Ids of the checkpoints that are expired.

        Raises:
            ConfigurationError: it is ``main``, or no open branch, or a savepoint was taken of its head.
        """
        return backfills.drop_branch(self.context, job, branch, requested_by=requested_by, dry_run=dry_run)

    # -- upkeep --------------------------------------------------------------------------------------------------------

    def compact(
        self,
        job: StatefulJob | str,
        operators: Collection[str] | None = None,
        *,
        policy: CompactionPolicy | None = None,
        full: bool = False,
        dry_run: bool = False,
        requested_by: str | None = None,
        on_progress: OnProgress | None = None,
    ) -> CompactionReport:
        """Fold keyed state into new bases: deleted and expired entries go, reading becomes cheap again.

        Micro-batches go on meanwhile, and are never failed by it. Where the head moves to another path meanwhile, the
        work is dropped. Key groups in which nothing changed and nothing expired keep their base.

        Args:
            operators: uids; all by default.
            policy: pass over the operators that it sees no reason for; None to fold whatever changed.
            full: rewrite all key groups.
            dry_run: only report how many key groups would be written.
            on_progress: called with how many tasks are done, and of how many, from another thread.

        Raises:
            ConfigurationError: the job never ran, or has no such operator.
        """
        with task_progress(self.spark, on_progress):
            return running.compact(
                self.context,
                job,
                operators,
                policy=policy,
                full=full,
                dry_run=dry_run,
                requested_by=requested_by,
            )

    def expire_checkpoints(
        self,
        job: StatefulJob | str,
        policy: RetentionPolicy | None = None,
        *,
        drop_branches: Collection[str] = (),
        dry_run: bool = False,
        requested_by: str | None = None,
    ) -> list[int]:
        """Expire old checkpoints: they can no longer be restored, and ``vacuum`` may delete what only they need.

        Args:
            policy: what to keep; ``RetentionPolicy()`` by default.
            drop_branches: branches that nobody is going to promote.
            dry_run: only report what would be expired.

        Returns:
            Ids of the checkpoints that are expired.
        """
        maintenance = self.context.maintenance(job, requested_by)
        return maintenance.expire_checkpoints(
            policy or RetentionPolicy(), drop_branches=drop_branches, dry_run=dry_run
        )

    def vacuum(
        self,
        job: StatefulJob | str,
        *,
        orphan_age: timedelta = ORPHAN_AGE,
        dry_run: bool = False,
        delta_vacuum: bool = False,
        clock: Clock = None,
        on_progress: Callable[[Disposal], object] | None = None,
        requested_by: str | None = None,
    ) -> VacuumReport:
        """Delete files that are no longer needed: of expired checkpoints, and of crashed attempts.

        Never touched: what a checkpoint that can be restored, a savepoint's checkpoint, an open branch or a row that is
        not published yet needs; what sinks show; what is younger than ``orphan_age``; files of others. Files of expired
        checkpoints leave the logs of the job's tables first, and are deleted by a collection ``orphan_age`` later.
        Local copies of the job's state on this machine are deleted, too; micro-batches make those that they need again.

        Args:
            job: give the ``StatefulJob`` itself to reach sinks that got files, and no checkpoint yet.
            orphan_age: how long a file stays after it was written, or needed last; at least 24 hours.
            dry_run: only report what would go.
            delta_vacuum: let Delta clean up the job's own tables, too: what it does not list and is older than a week.
            clock: gives the time, in milliseconds since 1970; None for the clock of the storage that holds the files:
                by that their ages are right whatever the clock of this machine says.
            on_progress: called for every file that is done, in a dry run for every file that would be.

        Raises:
            ConfigurationError: the job has no checkpoint yet, or ``orphan_age`` is too short.
        """
        report = self.context.collector(job, requested_by).collect(
            orphan_age=orphan_age,
            now_ms=None if clock is None else clock_of(clock)(),
            dry_run=dry_run,
            delta_vacuum=delta_vacuum,
            on_progress=on_progress or (lambda _: None),
        )
        if not dry_run:
            self.context.local_copies.drop(JobLayout(self.root, report.job))
        return report

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
            dry_run: only report what would happen.
            single_writer: see ``StateEngine``.

        Raises:
            RootError: there is no root, or it was written by a newer version, or its format is too old.
        """
        with cls(root, spark, single_writer=single_writer) as engine:
            return upgrade_root(
                engine.root,
                kernel=engine.kernel,
                spark=engine.context.spark,
                dry_run=dry_run,
                lock_timeout_s=engine.context.lock_timeout_s,
            )

    # -- parts ---------------------------------------------------------------------------------------------------------

    def published(self, job: StatefulJob | str) -> JobPublished:
        """The tables that show states of a job: ``engine.published(job).rebuild("balance")``."""
        return JobPublished(self.context, job)

    def savepoints(self, job: StatefulJob | str) -> JobSavepoints:
        """The savepoints of a job: ``create``, ``list``, ``verify``, ``delete``."""
        return JobSavepoints(self.context, job)

    def state_processor(self, job: StatefulJob | str) -> StateProcessor:
        """What makes and changes state without input: ``bootstrap``, ``transform_state``, ``erase_keys`` and others."""
        return StateProcessor(self.context, job)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _options(
        self,
        clock: Clock,
        parameters: Mapping[str, str] | None,
        requested_by: str | None,
        accept_clock: bool,
        *,
        drain: bool = False,
        backfill: str = "",
    ) -> RunOptions:
        return RunOptions(
            clock_of(clock),
            dict(parameters or {}),
            requested_by or requester(),
            accept_clock=accept_clock,
            drain=drain,
            backfill=backfill,
            local_copies=self.context.local_copies,
        )
