"""``TableStatus``: what the published tables of a job show, looked up without Spark or Java."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.sink_kind import SinkKind
from state_engine.core.errors import SinkError, SinkIdentityError, TableChangedError
from state_engine.databases.state_table import sql_state_target
from state_engine.publishing.sink_places import SinkPlaces
from state_engine.state_tables.base import (
    READING_FAILS,
    PublishedTable,
    ShownCheckpoint,
    TableColumns,
    damaged_table,
)
from state_engine.state_tables.delta import shown_in_log
from state_engine.state_tables.states import PublishedState, state_of, way_to
from state_engine.state_tables.table_form import TableForm


def _in_database(
    table: PublishedTable, columns: TableColumns, *, changed: bool = False
) -> ShownCheckpoint | None:
    target = sql_state_target(table)
    shown = target.shown(changed=changed)
    if shown is not None and not changed:
        try:
            target.check_columns(columns)
        except SinkError as error:
            raise TableChangedError(str(error)) from error
    return shown


_SHOWN: Mapping[str, Callable[..., ShownCheckpoint | None]] = {
    SinkKind.DELTA_STATE: shown_in_log,
    SinkKind.SQL_STATE: _in_database,
}


@dataclass(frozen=True)
class TableStatus:
    """A published table, as it is now.

    Attributes:
        name: of the table among the sinks of the job.
        shown_id: the checkpoint that it shows; None where there is no table yet.
        missing: ids of the checkpoints that lie between that and the head, and change its state.
        changed: that somebody else changed its rows, that it is not the job's, or that it is damaged, with the ways
            out; empty where it is as it was published.
    """

    name: str
    place: str
    shown_id: int | None
    missing: tuple[int, ...] = ()
    changed: str = ""


def statuses(history: History, states: Iterable[PublishedState], places: SinkPlaces) -> list[TableStatus]:
    """The tables that follow the head of a job."""
    head = history.head
    if head is None:
        return []
    known = [(one, recorded) for one in states if (recorded := state_of(head, one.operator, one.state))]
    return [
        _status(history, one, TableForm.of(*recorded, map_key=one.map_key).columns, places)
        for one, recorded in known
    ]


def _status(
    history: History, state: PublishedState, columns: TableColumns, places: SinkPlaces
) -> TableStatus:
    assert history.head is not None
    table, head_id = state.table(places.app_of(state.name)), history.head.checkpoint_id
    look, changed = partial(_SHOWN[state.kind], table, columns), ""
    try:
        shown = look()
    except TableChangedError as error:
        shown, changed = look(changed=True), str(error)
    except SinkIdentityError as error:
        shown, changed = None, "" if state.options.get("adopt") else str(error)
    except READING_FAILS as error:
        shown, changed = None, str(damaged_table(table, error))
    shown_id = None if shown is None else shown.checkpoint_id
    return TableStatus(state.name, state.place, shown_id, _missing(history, shown, head_id, state), changed)


def _missing(
    history: History, shown: ShownCheckpoint | None, head_id: int, state: PublishedState
) -> tuple[int, ...]:
    """Checkpoints that a table has to follow; where their way is not known, the head."""
    if shown is None:
        return (head_id,)
    way = way_to(history, shown, head_id, state)
    if way.whole:
        return (head_id,)
    return tuple(sorted({row.checkpoint_id for row in (*way.back, *way.forth)}))
