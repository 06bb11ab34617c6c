"""What a job remembers, as DataFrames and with SQL, now and in the past.

Reads only: nothing here waits for a micro-batch or keeps one waiting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType as SparkStruct

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.time_travel import path_as_of, why_missing
from state_engine.core.errors import MissingFilesError
from state_engine.core.types.spark_types import spark_schema
from state_engine.engine.arguments import job_name
from state_engine.engine.context import EngineContext
from state_engine.job.job import StatefulJob
from state_engine.microbatch.executor import GraphExecutor
from state_engine.publishing.output_reader import OutputReader
from state_engine.queries.spark_sql import query
from state_engine.queries.state_reader import read_state as read_state_of
from state_engine.queries.state_views import SqlView, ViewedJob, views_of
from state_engine.replay.differences import StateDiff, diff_states
from state_engine.replay.key_debug import KeyDebugger
from state_engine.replay.key_history import KeyExplainer
from state_engine.replay.key_inputs import KeyInputs
from state_engine.replay.key_recording import KeyRecorder
from state_engine.sinks.base import verify_files
from state_engine.spark.engine_session import handed_out, moved
from state_engine.storage.layout import DEAD_LETTERS_SCHEMA, WRITE_ID, JobLayout

Moment = datetime | str
"""A time, or its ISO 8601 text, UTC where no zone is given."""


class PastOf:
    """A job as of a checkpoint.

    Args:
        checkpoint_id: any that is retained; None for the head.
        as_of: instead of a checkpoint, the newest one on the head's path that was made by then.
    """

    def __init__(
        self,
        context: EngineContext,
        name: str,
        *,
        checkpoint_id: int | None = None,
        as_of: Moment | None = None,
    ) -> None:
        self._context, self._layout = context, JobLayout(context.root, name)
        self._history: History = context.history(name)
        self.path: list[CheckpointRow] = path_as_of(
            self._history, job=name, root=context.root, checkpoint_id=checkpoint_id, as_of=as_of
        )

    def read_state(self, operator: str, state: str, *, include_expired: bool, metadata: bool) -> DataFrame:
        try:
            rows = read_state_of(
                self._context.spark,
                self._layout,
                self.path,
                operator,
                state,
                include_expired=include_expired,
                metadata=metadata,
            )
            return handed_out(rows)
        except MissingFilesError as error:
            raise why_missing(error, self._history, self.path) from error

    def sql(self, text: str, *, unrestricted: bool) -> DataFrame:
        try:
            user = self._context.user_session
            return moved(query(_own_session(user), self.views(), text, unrestricted=unrestricted), user)
        except MissingFilesError as error:
            raise why_missing(error, self._history, self.path) from error

    def views(self) -> Sequence[SqlView]:
        name = self._layout.job
        viewed = ViewedJob(
            self._layout, self._history, self.path, lambda session: dead_letters(self._context, name, session)
        )
        return [self._independent(view) for view in views_of(viewed)]

    def _independent(self, view: SqlView) -> SqlView:
        """A view whose rows do not depend on the options of the session that it is made in."""
        return replace(view, frame=lambda session: moved(view.frame(self._context.spark), session))


def diff(
    context: EngineContext,
    name: str,
    before: int | Moment,
    after: int | Moment,
    *,
    operator: str | None,
    state: str | None,
) -> list[StateDiff]:
    paths = [
        PastOf(context, name, **({"checkpoint_id": at} if isinstance(at, int) else {"as_of": at})).path
        for at in (before, after)
    ]
    layout = JobLayout(context.root, name)
    return diff_states(context.spark, layout, *paths, operator=operator, state=state)


def explainer(context: EngineContext, job: StatefulJob | str, limit: int) -> KeyExplainer:
    """Gives the history of keys; without a job's code, inputs are not in it.

    Args:
        limit: so many rows of each input and output are given.
    """
    tables = context.ran(job_name(job))
    inputs = None
    if isinstance(job, StatefulJob):
        planner = context.planner(job, lambda path, now: None, lambda: 0)
        executor = GraphExecutor(context.spark, job, layout=tables.layout, router=context.router(job))
        inputs = KeyInputs(job, planner, executor)
    outputs = OutputReader(context.spark, tables.layout)
    return KeyExplainer(context.spark, tables.layout, tables.log.load(), outputs, inputs, limit)


def debugger(context: EngineContext, job: StatefulJob, parameters: Mapping[str, str]) -> KeyDebugger:
    """Debugs keys of a job; starts Spark only for what nothing else reads."""
    layout, history = JobLayout(context.root, job.name), context.recorded(job.name)

    def session() -> SparkSession:
        return context.spark

    return KeyDebugger(KeyRecorder(job, layout, history, session, parameters))


def dead_letters(context: EngineContext, name: str, session: SparkSession) -> DataFrame:
    """All rows of a job that were set aside; empty where there are none."""
    layout = JobLayout(context.root, name)
    if context.existing(name) is None or not context.kernel.exists(layout.dead_letters):
        schema = SparkStruct.fromJson(spark_schema(DEAD_LETTERS_SCHEMA.append(WRITE_ID)))
        return session.createDataFrame([], schema)
    there = set(context.kernel.active_files(layout.dead_letters))
    listed = [f for row in context.history(name).values() for f in row.dead_letters if f.path in there]
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
