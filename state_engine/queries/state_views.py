"""The views of a job for SQL: one a keyed state, and one each of what all jobs have: checkpoints, sources, sinks, ….

A view is made when a query names it, so that a state which is not asked for costs nothing, and it lives in a session of
its own. A keyed state is called ``<state>`` where that is unique in the job, in backticks if it is not an identifier,
and always ``<operator>__<state>``, both as their names are stored. Flink's counterpart is the State Processor API's
table connector.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.time_travel import DeclaredState, declared_states
from state_engine.core.names import stored_name
from state_engine.core.state.descriptors import TIMERS
from state_engine.core.types.ddl import ddl_text, quoted
from state_engine.queries import history_views as history
from state_engine.queries.state_table import read_state_table
from state_engine.storage.layout import DEAD_LETTERS_SCHEMA, OPERATOR_STATE_SCHEMA, WRITE_ID, JobLayout
from state_engine.storage.state.located_files import state_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHECKPOINT_ID = pa.field("checkpoint_id", pa.int64())
_IDENTIFIER = re.compile(r"[a-z_]\w*\Z", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class SqlView:
    """One view.

    Attributes:
        name: in SQL; with anything but letters, digits and underscores it stands in backticks there, see ``sql_name``.
        columns: name and SQL type of each.
        about: what a row is.
        frame: makes its DataFrame in a session.
        table: gives the same rows without Spark; None where only Spark can.
        bytes: of the files that these rows are in.
    """

    name: str
    columns: tuple[tuple[str, str], ...]
    about: str
    frame: Callable[[SparkSession], DataFrame]
    table: Callable[[], pa.Table] | None = None
    bytes: Callable[[], int] = int  # none

    @property
    def sql_name(self) -> str:
        """The name as a query has it, in backticks where it needs them."""
        return self.name if _IDENTIFIER.match(self.name) else quoted(self.name)


@dataclass(frozen=True)
class ViewedJob:
    """What the views of a job are made of."""

    layout: JobLayout
    history: History
    path: Sequence[CheckpointRow]
    dead_letters: Callable[[SparkSession], DataFrame]


def views_of(job: ViewedJob) -> list[SqlView]:
    """All views of a job: first what is the same for all jobs, then states."""
    common = _common(job)
    states = declared_states(job.path)
    full = full_names(states)
    # Spark's views have no case
    taken = Counter(s.schema.name.lower() for s in states)
    taken.update([*(v.name for v in common), *full])
    views = []
    for state, full_name in zip(states, full, strict=True):
        names = [state.schema.name] if taken[state.schema.name.lower()] == 1 else []
        views += [_state_view(job, state, name) for name in [*names, full_name]]
    return [*common, *views]


# -- states ------------------------------------------------------------------------------------------------------------


def full_names(states: Sequence[DeclaredState]) -> list[str]:
    """``<operator>__<state>``, as both are stored; with a digest where that would be the name of two states."""
    names = [f"{stored_name(s.operator.uid)}__{_as_stored(s.schema.name)}" for s in states]
    twice = Counter(names)
    return [
        name if twice[name] == 1 else stored_name(f"{name} {len(s.operator.uid)}")
        for name, s in zip(names, states, strict=True)
    ]


def _as_stored(state: str) -> str:
    return state if state == TIMERS else stored_name(state)


def _state_view(job: ViewedJob, state: DeclaredState, name: str) -> SqlView:
    uid, own_name = state.operator.uid, state.schema.name
    return SqlView(
        name,
        tuple((column, ddl_text(kind)) for column, kind in state.columns()),
        f"{state.schema.kind} state '{own_name}' of operator '{uid}'",
        partial(_state, job, uid, own_name),
        lambda: read_state_table(job.layout, job.path, uid, own_name, metadata=True),
        lambda: sum(file.listed.bytes or 0 for file in state_files(job.layout, job.path, uid)),
    )


# -- what is the same for all jobs -------------------------------------------------------------------------------------


def _common(job: ViewedJob) -> list[SqlView]:
    letters = pa.schema([CHECKPOINT_ID, *DEAD_LETTERS_SCHEMA])
    return [
        _local_view(
            "checkpoints",
            history.CHECKPOINTS,
            "a checkpoint, of any branch",
            lambda: history.checkpoints_table(job.history, job.path),
        ),
        _local_view(
            "sources",
            history.SOURCES,
            "what a checkpoint consumed of a source",
            lambda: history.sources_table(job.history, job.path),
        ),
        _local_view(
            "sinks",
            history.SINKS,
            "what a checkpoint brought to a sink",
            lambda: history.sinks_table(job.history, job.path),
        ),
        _local_view(
            "expectations",
            history.EXPECTATIONS,
            "what a checkpoint counted of a rule by row",
            lambda: history.expectations_table(job.history, job.path),
        ),
        _local_view(
            "gates",
            history.GATES,
            "what a gate said of a checkpoint",
            lambda: history.gates_table(job.history, job.path),
        ),
        _local_view(
            "states",
            history.STATES,
            "a state, and when the code asks for it",
            lambda: history.states_table(job.path),
        ),
        _view(
            "operator_state",
            OPERATOR_STATE_SCHEMA,
            "an element of operator state, as JSON; raw state in bytes",
            partial(_operator_state, job),
        ),
        _view("dead_letters", letters, "an input row that was refused", partial(_dead_letters, job)),
        _view(
            "key_groups",
            history.KEY_GROUPS,
            "a key group of an operator, and what lies in it",
            partial(_key_groups, job),
        ),
    ]


def _view(name: str, schema: pa.Schema, about: str, frame: Callable[[SparkSession], DataFrame]) -> SqlView:
    return SqlView(name, tuple((f.name, ddl_text(f.type)) for f in schema), about, frame)


def _local_view(name: str, schema: pa.Schema, about: str, table: Callable[[], pa.Table]) -> SqlView:
    view = _view(name, schema, about, lambda session: session.createDataFrame(table()))
    return replace(view, table=table)


# Spark's side is imported where Spark is asked: its packages take as long as an answer without it.


def _state(job: ViewedJob, uid: str, name: str, session: SparkSession) -> DataFrame:
    from state_engine.queries.state_reader import read_state

    return read_state(session, job.layout, job.path, uid, name, metadata=True)


def _operator_state(job: ViewedJob, session: SparkSession) -> DataFrame:
    from state_engine.queries.spark_views import operator_state_frame

    return operator_state_frame(session, job.layout, job.path)


def _key_groups(job: ViewedJob, session: SparkSession) -> DataFrame:
    from state_engine.queries.spark_views import key_group_load

    return key_group_load(session, job.layout, job.path)


def _dead_letters(job: ViewedJob, session: SparkSession) -> DataFrame:
    """Those that are in the table and were set aside on the path, each with its checkpoint."""
    path = {CHECKPOINT_ID.name: [], WRITE_ID.name: []}  # type: dict[str, list[object]]
    for row in job.path:
        if row.dead_letters:
            path[CHECKPOINT_ID.name].append(row.checkpoint_id)
            path[WRITE_ID.name].append(row.write_id)
    known = session.createDataFrame(pa.table(path, schema=pa.schema([CHECKPOINT_ID, WRITE_ID])))
    letters = job.dead_letters(session).join(known, WRITE_ID.name)
    return letters.select(CHECKPOINT_ID.name, *DEAD_LETTERS_SCHEMA.names)
