"""``EngineQueries``: what a job remembers, as DataFrames and with SQL, now and in the past.

Reads only: nothing here waits for a micro-batch or keeps one waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType as SparkStruct

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.lineage import Rows
from state_engine.core.checkpoints.time_travel import path_as_of, why_missing
from state_engine.core.errors import MissingFilesError
from state_engine.core.types.spark_types import spark_schema
from state_engine.engine.engine_base import EngineBase, job_name
from state_engine.job.job import StatefulJob
from state_engine.queries.state_reader import read_state
from state_engine.queries.state_views import SqlView, ViewedJob, query, views_of
from state_engine.replay.differences import StateDiff, diff_states
from state_engine.sinks.base import verify_files
from state_engine.storage.layout import DEAD_LETTERS_SCHEMA, WRITE_ID, JobLayout
from state_engine.storage.storage_failures import kept_in_job


class EngineQueries(EngineBase):
    """See ``StateEngine``."""

    @kept_in_job
    def checkpoints(self, job: StatefulJob | str) -> list[CheckpointRow]:
        """All checkpoints of a job, newest last; empty where it never ran."""
        return [row for _, row in sorted(self._rows(job_name(job)).items())]

    @kept_in_job
    def read_state(
        self,
        job: StatefulJob | str,
        operator: str,
        state: str,
        checkpoint_id: int | None = None,
        *,
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
        name = job_name(job)
        rows = self._rows(name)
        path = self._path_as_of(name, rows, checkpoint_id, as_of)
        try:
            return read_state(
                self.spark,
                JobLayout(self.root, name),
                path,
                operator,
                state,
                include_expired=include_expired,
                metadata=metadata,
            )
        except MissingFilesError as error:
            raise why_missing(error, rows, path) from error

    def sql(
        self,
        job: StatefulJob | str,
        text: str,
        checkpoint_id: int | None = None,
        *,
        as_of: datetime | str | None = None,
        unrestricted: bool = False,
    ) -> DataFrame:
        """The answer to a SQL query over what a job remembers, as of a checkpoint (the head by default).

        There is a view for every keyed state: ``<state>`` where that is unique in the job, and always
        ``<operator>__<state>``; and ``checkpoints``, ``sources``, ``sinks``, ``operator_state``, ``dead_letters`` and
        ``key_groups``. ``list_views`` lists them. They lie in a session of their own, and only those that the query
        names are made. Tables of the session's catalog can be joined; nothing but queries is run. Functions are those
        that come with Spark, without those that call Java methods or read files; files are no tables.

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
        viewed = self._viewed(job, checkpoint_id, as_of)
        try:
            return query(_own_session(self.spark), views_of(viewed), text, unrestricted=unrestricted)
        except MissingFilesError as error:
            raise why_missing(error, viewed.rows, viewed.path) from error

    def list_views(
        self,
        job: StatefulJob | str,
        checkpoint_id: int | None = None,
        *,
        as_of: datetime | str | None = None,
    ) -> Sequence[SqlView]:
        """The views that ``sql`` has for a job, with their columns; reads no state."""
        return views_of(self._viewed(job, checkpoint_id, as_of))

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
        name = job_name(job)
        rows = self._rows(name)
        paths = [
            self._path_as_of(name, rows, *((at, None) if isinstance(at, int) else (None, at)))
            for at in (before, after)
        ]
        return diff_states(self.spark, JobLayout(self.root, name), *paths, operator=operator, state=state)

    def dead_letters(self, job: StatefulJob | str) -> DataFrame:
        """All rows that were set aside, with position and error; empty where there are none.

        Raises:
            MissingFilesError: files that hold them are gone or changed.
        """
        return self._dead_letters(job_name(job), self.spark)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _rows(self, name: str) -> Rows:
        tables = self._existing(name)
        return tables.store.load() if tables else {}

    def _path_as_of(
        self, name: str, rows: Rows, checkpoint_id: int | None, as_of: datetime | str | None
    ) -> list[CheckpointRow]:
        return path_as_of(rows, job=name, root=self.root, checkpoint_id=checkpoint_id, as_of=as_of)

    def _viewed(
        self, job: StatefulJob | str, checkpoint_id: int | None, as_of: datetime | str | None
    ) -> ViewedJob:
        name = job_name(job)
        rows = self._rows(name)
        path = self._path_as_of(name, rows, checkpoint_id, as_of)
        layout = JobLayout(self.root, name)
        return ViewedJob(layout, rows, path, lambda session: self._dead_letters(name, session))

    def _dead_letters(self, name: str, session: SparkSession) -> DataFrame:
        layout = JobLayout(self.root, name)
        if self._existing(name) is None or not self.kernel.exists(layout.dead_letters):
            schema = SparkStruct.fromJson(spark_schema(DEAD_LETTERS_SCHEMA.append(WRITE_ID)))
            return session.createDataFrame([], schema)
        there = set(self.kernel.active_files(layout.dead_letters))
        listed = [f for row in self._rows(name).values() for f in row.dead_letters if f.path in there]
        verify_files(layout.dead_letters, listed, what=f"dead letters of job '{name}'", footers=True)
        return session.read.format("delta").load(layout.dead_letters)


def _own_session(spark: SparkSession) -> SparkSession:
    """A session beside the user's, with the same settings and without the same views."""
    own = spark.newSession()
    known = own.conf.getAll
    for key, value in spark.conf.getAll.items():
        if key.startswith("spark.sql.") and known.get(key) != value and own.conf.isModifiable(key):
            own.conf.set(key, value)
    return own
