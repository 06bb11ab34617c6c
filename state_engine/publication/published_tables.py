"""``PublishedTables``: the tables that show states of a job, and how they follow its head.

Each is asked which checkpoint it shows, and gets what lies between that and the head in one transaction, however many
checkpoints that are. It pins nothing: where files of the way are gone, or the way is not known, the whole table is
compared with the state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import MAIN, CheckpointRow
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.row_outputs import SinkKey
from state_engine.core.checkpoints.sink_kind import SinkKind
from state_engine.core.errors import (
    ConfigurationError,
    MissingFilesError,
    SinkError,
    SinkIdentityError,
    TableChangedError,
)
from state_engine.job.job_tables import JobTables
from state_engine.publication.sink_places import Declared, SinkPlaces
from state_engine.published.base import PublishedTable, TableChange, TableColumns, TableTarget
from state_engine.published.delta import DeltaStateTarget
from state_engine.published.difference import StateReader, compared
from state_engine.published.sql import SqlStateTarget
from state_engine.published.states import (
    PublishedState,
    StateWay,
    TablePolicy,
    is_taken_over,
    moves_of,
    published_states,
    state_of,
    state_way,
)
from state_engine.storage.delta.kernel import DeltaKernel

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class TableMove:
    """What a table gets, or would get.

    Attributes:
        name: of the table.
        place: where it is.
        rows: that come, or come in the place of others.
        deleted: rows that go, and keys all of whose rows go.
        whole: why the whole table was compared; empty where it was not.
    """

    name: str
    place: str
    rows: int
    deleted: int
    whole: str = ""


class PublishedTables:
    """Of one job.

    Args:
        kernel: commits.
        tables: the job's tables.
        places: of its sinks.
    """

    def __init__(self, kernel: DeltaKernel, tables: JobTables, places: SinkPlaces) -> None:
        self._tables, self._places = tables, places
        self._targets: dict[str, TableTarget] = {
            SinkKind.DELTA_STATE: DeltaStateTarget(kernel),
            SinkKind.SQL_STATE: SqlStateTarget(),
        }
        self._shown: dict[str, int] = {}
        self.code: Mapping[SinkKey, PublishedState] | None = None
        """Tables as today's code has them, which may say more than the newest row; None where it is not known."""
        self.moved: list[TableMove] = []
        """What the last ``follow`` changed."""

    def follow(self, history: History, declared: Declared = None) -> list[TableMove]:
        """Bring every table to the head of ``main``; what changed.

        Args:
            history: all rows of the job; outputs of the head are published.
            declared: the sinks of today's code; None where it is not known.

        Raises:
            TableChangedError: somebody else changed a table.
            SinkIdentityError: a table belongs to another job.
            SinkError: a table cannot take the rows.
        """
        self.moved = []
        for state in self.states(history, declared):
            self.moved += self._follow(history, state)
        return self.moved

    def planned(
        self,
        history: History,
        to_id: int,
        policy_of: Callable[[str], TablePolicy],
        declared: Declared,
    ) -> list[TableMove]:
        """What tables get where the head moves to another checkpoint; looks only."""
        states = [one for one in self.states(history, declared) if policy_of(one.name) != "keep"]
        return [
            self._planned(history, one, to_id)
            for one in states
            if state_of(history[to_id], one.operator, one.state) is not None
        ]

    def check_known(self, history: History, state: PublishedState, to_id: int, policy: TablePolicy) -> None:
        """Refuse to have a table follow to a checkpoint that does not know its state, which is no empty state."""
        if policy == "follow" and state_of(history[to_id], state.operator, state.state) is None:
            raise ConfigurationError(
                f"job '{self._tables.layout.job}': checkpoint {to_id} does not know the state '{state.state}' of "
                f"operator '{state.operator}', which the table '{state.name}' shows, so there is nothing to follow. "
                f'Leave the table as it is with outputs={{"{state.name}": "keep"}}, or empty it with "rebuild"'
            )

    def rebuild(self, history: History, name: str, declared: Declared) -> TableMove:
        """Make a table anew from the state as of the head, whoever wrote it; what it holds then."""
        state, head = self._named(history, name, declared)
        reader = self._reader(history, head.checkpoint_id, state)
        return self._made_anew(state, reader.form.columns, reader.whole(), head.checkpoint_id)

    def verify(self, history: History, name: str, declared: Declared) -> TableMove:
        """Compare a table with the state as of the checkpoint that it shows; what would have to change."""
        state, head = self._named(history, name, declared)
        target, table = self._table(state)
        shown = target.shown(table) or head.checkpoint_id
        reader = self._reader(history, shown if shown in history else head.checkpoint_id, state)
        change = self._difference(target, table, reader)
        return _move(state, change, "it was compared")

    def accept(self, history: History, name: str, declared: Declared) -> None:
        """Leave what others changed in a table as it is, and go on from there."""
        state, _ = self._named(history, name, declared)
        target, table = self._table(state)
        target.accept(table)

    def tidy(self, history: History, declared: Declared = None) -> int:
        """Have targets rearrange their tables where that pays; how many files were rewritten."""
        rewritten = 0
        for state in self.states(history, declared):
            target, table = self._table(state)
            head = history.head
            if head is None or state_of(head, state.operator, state.state) is None:
                continue
            if target.shown(table):
                rewritten += target.tidy(table, self._reader(history, head.checkpoint_id, state).form.columns)
        return rewritten

    def states(self, history: History, declared: Declared) -> list[PublishedState]:
        """The tables that follow the head; a job whose code has none is not looked through.

        Args:
            history, declared: see ``follow``.
        """
        if self.code is None:
            return published_states(history, declared)
        wanted = None if declared is None else self.code.keys() & declared
        known = [] if wanted == set() else published_states(history, wanted)
        return [self.code.get(one.key, one) for one in known]

    def content(self, state: PublishedState, columns: TableColumns) -> Iterator[pa.RecordBatch]:
        """What a table holds now, whoever wrote it."""
        target, table = self._table(state)
        yield from target.content(table, columns)

    def is_there(self, state: PublishedState) -> bool:
        """Whether there is a table that belongs to the job, whoever changed its rows since.

        Raises:
            SinkIdentityError: it belongs to another, or to nobody.
        """
        target, table = self._table(state)
        try:
            return target.shown(table) is not None
        except TableChangedError:
            return True

    # -- one table -------------------------------------------------------------------------------------------------

    def _follow(self, history: History, state: PublishedState) -> Iterator[TableMove]:
        head = history.head
        assert head is not None
        if self._shown.get(state.name) == head.checkpoint_id:
            return
        unknown = state_of(head, state.operator, state.state) is None
        if unknown and not moves_of(history, state.key, 0):
            return  # nothing is published to it, whatever somebody does to it meanwhile
        shown = self._looked_up(history, state)
        if shown is not None:
            for row, policy in moves_of(history, state.key, shown):
                yield from self._at_move(history, state, row, policy, shown)
                shown = row.checkpoint_id
        move = self._bring(history, state, shown, head.checkpoint_id)
        if move is not None:
            yield move
        self._shown[state.name] = head.checkpoint_id

    def _looked_up(self, history: History, state: PublishedState) -> int | None:
        """What a table shows; one that it may take over becomes the job's, once the head knows the state."""
        target, table = self._table(state)
        try:
            return target.shown(table)
        except SinkIdentityError:
            head, own = history.head, is_taken_over(history.main_path, state.key)
            if not (state.options.get("adopt") or own) or head is None:
                raise
            if state_of(head, state.operator, state.state) is None:
                return None
            columns = self._reader(history, head.checkpoint_id, state).form.columns
            target.adopt(table, columns, own=own)
            return target.shown(table)

    def _at_move(
        self, history: History, state: PublishedState, row: CheckpointRow, policy: TablePolicy, shown: int
    ) -> Iterator[TableMove]:
        """What a table does at a row that moved the head, where it does not follow."""
        target, table = self._table(state)
        if row.replaced_id is not None and row.replaced_id > shown:
            move = self._bring(history, state, shown, row.replaced_id)
            if move is not None:
                yield move
                shown = row.replaced_id
        known = row if state_of(row, state.operator, state.state) else self._last_knowing(history, state)
        if known is None:
            return
        reader = self._reader(history, known.checkpoint_id, state)
        columns = reader.form.columns
        if policy == "rebuild":
            rows = reader.whole() if known is row else iter(())
            yield self._made_anew(state, columns, rows, row.checkpoint_id)
        else:
            target.apply(table, columns, _nothing(columns), since=shown, checkpoint_id=row.checkpoint_id)

    def _made_anew(
        self, state: PublishedState, columns: TableColumns, rows: Iterable[pa.Table], checkpoint_id: int
    ) -> TableMove:
        """Put rows in the place of all that a table holds, whoever wrote it; how many these are."""
        target, table = self._table(state)
        count = 0

        def batches() -> Iterator[pa.RecordBatch]:
            nonlocal count
            for part in rows:
                count += part.num_rows
                yield from part.to_batches()

        target.replace(table, columns, batches(), checkpoint_id=checkpoint_id)
        return TableMove(state.name, state.place, count, 0, "it was made anew")

    def _bring(
        self, history: History, state: PublishedState, shown: int | None, to_id: int
    ) -> TableMove | None:
        """Bring a table from the checkpoint that it shows to another one; None where nothing changed."""
        if state_of(history[to_id], state.operator, state.state) is None:
            return None
        target, table = self._table(state)
        reader = self._reader(history, to_id, state)
        columns = reader.form.columns
        if shown is None:
            target.create(table, columns)
            shown = 0
        elif shown > history.newest_id:
            raise SinkError(
                f"table '{state.name}': {state.place} shows checkpoint {shown}, and the newest of this root is "
                f"{history.newest_id}: the root was put back from a backup. Nothing was written. Put the table back, "
                "too, or publish to another one"
            )
        way = self._way(history, state, shown, to_id)
        if way.is_nothing:
            return None
        change, whole = self._change(history, target, table, reader, way, shown)
        if change.is_empty and not whole:
            return None
        target.check_columns(table, columns)
        target.apply(table, columns, change, since=shown, checkpoint_id=to_id)
        if whole and shown:
            _LOG.warning(
                "table '%s': %s was compared as a whole with the state as of checkpoint %s, because %s: %s rows came, "
                "%s went",
                state.name,
                state.place,
                to_id,
                whole,
                change.rows.num_rows,
                change.deleted.num_rows,
                extra={"job": self._tables.layout.job, "checkpoint_id": to_id, "sink": state.name},
            )
        return _move(state, change, whole)

    def _change(
        self,
        history: History,
        target: TableTarget,
        table: PublishedTable,
        reader: StateReader,
        way: StateWay,
        shown: int,
    ) -> tuple[TableChange, str]:
        """What a table gets, and why the whole of it was compared for that."""
        why = way.whole
        if not why:
            try:
                return reader.change(way, history.path(shown)), ""
            except MissingFilesError:
                why = f"files of checkpoints since {shown} are gone"
        return self._difference(target, table, reader), why

    def _difference(self, target: TableTarget, table: PublishedTable, reader: StateReader) -> TableChange:
        """What makes the content of a table that of the state."""
        columns = reader.form.columns
        empty = columns.schema.empty_table()
        old = pa.concat_tables([empty, *(pa.Table.from_batches([b]) for b in target.content(table, columns))])
        new = target.held(table, pa.concat_tables([empty, *reader.whole()]))
        return compared(columns, old.combine_chunks(), new.combine_chunks())

    def _planned(self, history: History, state: PublishedState, to_id: int) -> TableMove:
        target, table = self._table(state)
        shown = target.shown(table)
        reader = self._reader(history, to_id, state)
        if shown is None:
            return TableMove(state.name, state.place, sum(r.num_rows for r in reader.whole()), 0, "it is new")
        way = self._way(history, state, shown, to_id)
        change, whole = self._change(history, target, table, reader, way, shown)
        return _move(state, change, whole)

    def _way(self, history: History, state: PublishedState, shown: int, to_id: int) -> StateWay:
        """How a table gets from the checkpoint that it shows to another one."""
        row = history.get(shown)
        if row is not None and state_of(row, state.operator, state.state) is None:
            kept = [moved.checkpoint_id for moved, _ in moves_of(history, state.key, shown - 1)]
            if shown not in kept:  # outputs were appended to it, and it was adopted
                return StateWay(whole=f"checkpoint {shown} does not know the state")
        return state_way(history, shown, to_id, state.operator, state.state)

    # -- pieces ----------------------------------------------------------------------------------------------------

    def _table(self, state: PublishedState) -> tuple[TableTarget, PublishedTable]:
        app = self._places.app_of(state.name)
        return self._targets[state.kind], PublishedTable(
            state.name, state.kind, state.place, app, dict(state.options)
        )

    def _reader(self, history: History, checkpoint_id: int, state: PublishedState) -> StateReader:
        path = history.path(checkpoint_id)
        return StateReader(self._tables.layout, path, state.operator, state.state, map_key=state.map_key)

    def _last_knowing(self, history: History, state: PublishedState) -> CheckpointRow | None:
        rows = (row for row in reversed(list(history.values())) if row.branch == MAIN)
        return next((row for row in rows if state_of(row, state.operator, state.state)), None)

    def _named(self, history: History, name: str, declared: Declared) -> tuple[PublishedState, CheckpointRow]:
        known = self.states(history, declared)
        head = history.head
        for state in known:
            if state.name == name and head is not None:
                if state_of(head, state.operator, state.state) is None:
                    raise SinkError(
                        f"table '{name}': the head does not know the state '{state.state}' of operator "
                        f"'{state.operator}' yet, so there is nothing to show"
                    )
                return state, head
        raise ConfigurationError(
            f"job '{self._tables.layout.job}' publishes no state to a table '{name}'; its tables: "
            f"{sorted(one.name for one in known)}"
        )


def _move(state: PublishedState, change: TableChange, whole: str) -> TableMove:
    gone = change.deleted.num_rows + change.cleared.num_rows
    return TableMove(state.name, state.place, change.rows.num_rows, gone, whole)


def _nothing(columns: TableColumns) -> TableChange:
    empty = columns.schema.empty_table()
    return TableChange(empty.select(columns.key), empty.select(columns.identity), empty)
