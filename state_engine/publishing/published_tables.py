"""``PublishedTables``: the tables that show states of a job, and how they follow its head.

Each is asked which checkpoint it shows, and gets what lies between that and the head in one transaction, however many
checkpoints that are. It pins nothing: where files of the way are gone, or the way is not known, the whole table is
compared with the state: so, too, where the root was put back from a backup, and the table shows a checkpoint that the
root does not have. Decision 0059.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.row_outputs import SinkKey
from state_engine.core.checkpoints.sink_kind import SinkKind
from state_engine.core.errors import (
    ConfigurationError,
    DamagedFileError,
    MissingFilesError,
    SinkError,
    SinkIdentityError,
)
from state_engine.databases.state_table import sql_state_target
from state_engine.job.job_tables import JobTables
from state_engine.publishing.sink_places import Declared, SinkPlaces
from state_engine.state_tables.base import (
    READING_FAILS,
    PublishedTable,
    ShownCheckpoint,
    TableChange,
    TableColumns,
    TableReport,
    TableTarget,
    TableTargets,
    damaged_table,
    is_damage,
)
from state_engine.state_tables.delta import DeltaStateTarget
from state_engine.state_tables.difference import StateReader, compared_by_portions
from state_engine.state_tables.states import (
    OTHER_FORM,
    PublishedState,
    StateWay,
    TablePolicy,
    is_known,
    last_knowing,
    moves_of,
    published_on,
    published_states,
    state_of,
    way_to,
)
from state_engine.state_tables.table_form import TableForm
from state_engine.storage.delta.kernel import DeltaKernel

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExistingTable:
    """A published table that exists."""

    state: PublishedState
    target: TableTarget
    form: TableForm


@dataclass(frozen=True)
class _Content:
    """All rows of a state, in the columns of its table; ``rows`` reads them anew, some key groups at a time."""

    columns: TableColumns
    rows: Callable[[], Iterator[pa.Table]]

    @classmethod
    def of(cls, reader: StateReader) -> _Content:
        return cls(reader.form.columns, reader.whole)


class PublishedTables:
    """Of one job.

    Args:
        targets: writes tables, by kind; None for what really writes them.
    """

    def __init__(
        self,
        kernel: DeltaKernel,
        tables: JobTables,
        places: SinkPlaces,
        targets: TableTargets | None = None,
    ) -> None:
        self._tables, self._places = tables, places
        self._targets: TableTargets = targets or {
            SinkKind.DELTA_STATE: partial(DeltaStateTarget, kernel),
            SinkKind.SQL_STATE: sql_state_target,
        }
        self._known: dict[str, TableTarget] = {}
        """By name: they remember what they saw of their tables."""
        self._shown: dict[str, int] = {}
        self.code: Mapping[SinkKey, PublishedState] | None = None
        """Tables as today's code has them, which may say more than the newest row; None where it is not known."""
        self._left: set[SinkKey] = set()
        self.moved: list[TableReport] = []
        """What the last ``follow`` changed, and the tables that it had to leave behind because they are damaged."""
        self.refusal: Exception | None = None
        """Why the last ``follow`` left a table behind that is not damaged; see ``check_followed``."""

    def follow(self, history: History, declared: Declared = None) -> list[TableReport]:
        """Bring every table to the head of ``main``; what changed.

        A table that cannot be brought there stays behind, and holds back no other: it jumps to the head as soon as it
        can. Decision 0059.

        Args:
            history: all rows of the job; outputs of the head are published.
            declared: the sinks of today's code; None where it is not known.
        """
        self.moved, self.refusal = [], None
        self._tell_left(history)
        for state in self.states(history, declared):
            try:
                self.moved += self._follow(history, state)
            except READING_FAILS as error:
                if is_damage(error):
                    self._leave_behind(state, damaged_table(self._table(state).table, error))
                else:
                    self.refusal = self.refusal or error
        return self.moved

    def check_followed(self) -> None:
        """Raise what the last ``follow`` could not do, but for damaged tables, which it reported.

        Raises:
            TableChangedError: somebody else changed a table.
        """
        if self.refusal is not None:
            raise self.refusal

    def _leave_behind(self, state: PublishedState, damage: SinkError) -> None:
        self.moved.append(TableReport(state.name, state.kind, state.place, 0, 0, problem=str(damage)))
        job = self._tables.layout.job
        _LOG.warning(
            "job '%s': %s It stays behind the head; everything else goes on", job, damage,
            extra={"job": job, "sink": state.name},
        )  # fmt: skip

    def planned(
        self,
        history: History,
        to_id: int,
        policy_of: Callable[[str], TablePolicy],
        declared: Declared,
    ) -> list[TableReport]:
        """What tables get where the head moves to another checkpoint; looks only."""
        states = [one for one in self.states(history, declared) if policy_of(one.name) != "keep"]
        known = [one for one in states if state_of(history[to_id], one.operator, one.state) is not None]
        moves = []
        for one in known:
            try:
                moves.append(self._planned(history, one, to_id))
            except READING_FAILS as error:
                if not is_damage(error):
                    raise
                moves.append(
                    TableReport(one.name, one.kind, one.place, 0, 0, "it is damaged and stays behind")
                )
        return [move for move in moves if move.rows or move.deleted or move.whole]

    def check_known(self, history: History, state: PublishedState, to_id: int, policy: TablePolicy) -> None:
        """Refuse to have a table follow to a checkpoint that does not know its state, which is no empty state."""
        if policy == "follow" and state_of(history[to_id], state.operator, state.state) is None:
            raise ConfigurationError(
                f"job '{self._tables.layout.job}': checkpoint {to_id} does not know the state '{state.state}' of "
                f"operator '{state.operator}', which the table '{state.name}' shows, so there is nothing to follow. "
                f'Leave the table as it is with outputs={{"{state.name}": "keep"}}, or empty it with "rebuild"'
            )

    def check_begins_empty(self, history: History, states: Sequence[PublishedState]) -> None:
        """Refuse states that the head does not know while their tables hold rows, or belong to somebody else.

        The state would begin empty, and the next comparison would delete these rows.

        Args:
            states: of keyed sinks.

        Raises:
            ConfigurationError: a table of the job holds rows; names the ways out.
            SinkIdentityError: a table belongs to another job, or to nobody, and is not to be adopted.
        """
        head = history.head
        for state in states:
            if state_of(head, state.operator, state.state) is not None or not self._is_ours(state):
                continue
            known = last_knowing(history, state)
            if head is not None and known is not None and self._holds_rows(history, state, known):
                raise ConfigurationError(
                    f"job '{self._tables.layout.job}', sink '{state.name}': the head, checkpoint "
                    f"{head.checkpoint_id}, does not know the state of the sink, and its table {state.place} "
                    f"still holds the rows of checkpoint {known.checkpoint_id}. The state would begin empty, and these "
                    "rows would be deleted. Give the sink another table; or empty this one with "
                    f"{self._table(state).table.rebuild}; or begin a job of another name from the rows of the table "
                    "(state_processor(job).bootstrap, with adopt=True in the sink)"
                )

    def _is_ours(self, state: PublishedState) -> bool:
        """Whether there is a table of the job; raises SinkIdentityError for another that it does not adopt."""
        try:
            return self.is_there(state)
        except SinkIdentityError:
            if state.options.get("adopt"):
                return False
            raise

    def _holds_rows(self, history: History, state: PublishedState, known: CheckpointRow) -> bool:
        """Whether a table holds any row, in the columns of the state as a checkpoint knows it."""
        target = self._table(state)
        columns = self._reader(history, known.checkpoint_id, state).form.columns
        return any(batch.num_rows for batch in target.content(columns))

    def rebuild(
        self, history: History, name: str, declared: Declared, *, dry_run: bool = False
    ) -> tuple[PublishedState, TableReport]:
        """Make a table again from the state as of the head, whoever wrote it; what it holds then.

        Where a restore led to a head that does not know the state, the table is empty, as with the policy ``rebuild``.
        A dry run compares instead: rows that would come, or come in the place of others, and rows that would go.
        """
        state, head = self._named(history, name, declared)
        content = self._content(history, state, head)
        if content is None:
            raise _unknown(state)
        if not dry_run:
            return state, self._made_anew(state, content, ShownCheckpoint.of(head))
        try:
            return state, self._rebuilt(state, content)
        except READING_FAILS as error:
            if not is_damage(error):
                raise
            return state, _new(state, content, "it is damaged")

    def _rebuilt(self, state: PublishedState, content: _Content) -> TableReport:
        target = self._table(state)
        try:
            is_there = self.is_there(state)
        except SinkIdentityError:
            is_there = True
        if not is_there:
            return _new(state, content)
        if differs := target.check_columns(content.columns):
            return _new(state, content, differs)
        return _move(state, self._difference(target, content), "it would be rebuilt")

    def verify(self, history: History, name: str, declared: Declared) -> TableReport:
        """Compare a table with the state as of the checkpoint that it shows; what would have to change."""
        state, head = self._named(history, name, declared)
        target = self._table(state)
        with _naming_damage(target.table):
            return self._compared(history, state, target.shown(), head)

    def _compared(
        self, history: History, state: PublishedState, shown: ShownCheckpoint | None, head: CheckpointRow
    ) -> TableReport:
        """How a table differs from the state as of the checkpoint that it shows; if that is not known, of the head."""
        target = self._table(state)
        is_at = history[shown.checkpoint_id] if shown is not None and is_known(history, shown) else head
        if state_of(is_at, state.operator, state.state) is None:  # the table was kept there
            is_at = head
        if state_of(is_at, state.operator, state.state) is None:
            raise _unknown(state)
        content = _Content.of(self._reader(history, is_at.checkpoint_id, state))
        _check_columns(target, content.columns)
        return _move(state, self._difference(target, content), "it was compared")

    def accept(
        self, history: History, name: str, declared: Declared, *, dry_run: bool = False
    ) -> tuple[PublishedState, TableReport]:
        """Leave what others changed in a table as it is, and go on from there; how it differs from the state.

        Where a restore led to a head that does not know the state, there is nothing to compare with.
        """
        state, head = self._named(history, name, declared)
        target = self._table(state)
        with _naming_damage(target.table):
            shown = target.shown(changed=True)
        if shown is None:
            raise SinkError(
                f"table '{name}': there is none at {state.place}, so there is nothing to accept; the next run "
                "builds it from the state"
            )
        if state_of(head, state.operator, state.state) is None:
            move = TableReport(state.name, state.kind, state.place, 0, 0, "the head does not know its state")
        else:
            move = self._compared(history, state, shown, head)
        if not dry_run:
            target.accept()
        return state, move

    def tidy(self, history: History, declared: Declared = None) -> int:
        """Have targets rearrange their tables where that pays; how many files were rewritten."""
        return sum(
            one.target.tidy(one.form.columns)
            for one in self.standing(history, declared)
            if not one.target.check_columns(one.form.columns)
        )

    def standing(self, history: History, declared: Declared = None) -> Iterator[ExistingTable]:
        """The tables that are there, and whose state the head knows."""
        head = history.head
        for state in self.states(history, declared) if head is not None else ():
            target = self._table(state)
            if state_of(head, state.operator, state.state) is None or target.shown() is None:
                continue
            assert head is not None
            yield ExistingTable(state, target, self._reader(history, head.checkpoint_id, state).form)

    def states(self, history: History, declared: Declared) -> list[PublishedState]:
        """The tables that follow the head; a job whose code has none is not looked through."""
        if self.code is None:
            return published_states(history, declared)
        wanted = None if declared is None else self.code.keys() & declared
        known = [] if wanted == set() else published_states(history, wanted)
        return [self.code.get(one.key, one) for one in known]

    def _tell_left(self, history: History) -> None:
        """Say once which tables the newest micro-batch published to and today's code does not."""
        if self.code is None:
            return
        for one in published_on(history.main_path):
            if one.key not in self.code and one.key not in self._left:
                self._left.add(one.key)
                _LOG.warning(
                    "job '%s': the code no longer publishes a state to the table '%s' at %s: it stays as it is and "
                    "stops following",
                    self._tables.layout.job,
                    one.name,
                    one.place,
                    extra={"job": self._tables.layout.job, "sink": one.name},
                )

    def is_there(self, state: PublishedState) -> bool:
        """Whether there is a table that belongs to the job, whoever changed its rows since."""
        target = self._table(state)
        return target.shown(changed=True) is not None

    # -- one table -------------------------------------------------------------------------------------------------

    def _follow(self, history: History, state: PublishedState) -> Iterator[TableReport]:
        head = history.head
        assert head is not None
        if self._shown.get(state.name) == head.checkpoint_id:
            return
        unknown = state_of(head, state.operator, state.state) is None
        if unknown and not moves_of(history, state.key, 0):
            return  # nothing is published to it, whatever somebody does to it meanwhile
        shown = self._looked_up(history, state)
        if shown is not None:
            for row, policy in moves_of(history, state.key, shown.checkpoint_id):
                yield from self._at_move(history, state, row, policy, shown)
                shown = ShownCheckpoint.of(row)
        move = self._bring(history, state, shown, head.checkpoint_id)
        if move is not None:
            yield move
        self._shown[state.name] = head.checkpoint_id

    def _looked_up(self, history: History, state: PublishedState) -> ShownCheckpoint | None:
        """What a table shows; one that it may take over becomes the job's, once the head knows the state."""
        target = self._table(state)
        try:
            return target.shown()
        except SinkIdentityError:
            head = history.head
            if not state.options.get("adopt") or head is None:
                raise
            if state_of(head, state.operator, state.state) is None:
                return None
            columns = self._reader(history, head.checkpoint_id, state).form.columns
            target.adopt(columns)
            return target.shown()

    def _at_move(
        self,
        history: History,
        state: PublishedState,
        row: CheckpointRow,
        policy: TablePolicy,
        shown: ShownCheckpoint,
    ) -> Iterator[TableReport]:
        """What a table does at a row that moved the head, where it does not follow."""
        target = self._table(state)
        replaced = None if row.replaced_id is None else history[row.replaced_id]
        is_behind = shown.unseen or not is_known(history, shown)
        if replaced is not None and (is_behind or replaced.checkpoint_id > shown.checkpoint_id):
            move = self._bring(history, state, shown, replaced.checkpoint_id)
            if move is not None:
                yield move
                shown = ShownCheckpoint.of(replaced)
        content = self._content(history, state, row)
        if content is None:
            return
        if policy == "rebuild":
            yield self._made_anew(state, content, ShownCheckpoint.of(row), since=shown)
        else:
            columns = content.columns
            target.apply(columns, _nothing(columns), since=shown, to=ShownCheckpoint.of(row))

    def _made_anew(
        self,
        state: PublishedState,
        content: _Content,
        to: ShownCheckpoint,
        *,
        since: ShownCheckpoint | None = None,
        whole: str = "it was rebuilt",
    ) -> TableReport:
        """Put rows in the place of all that a table holds; how many these are. See ``TableTarget.replace``."""
        target = self._table(state)
        count = 0

        def batches() -> Iterator[pa.RecordBatch]:
            nonlocal count
            for part in content.rows():
                count += part.num_rows
                yield from part.to_batches()

        target.replace(content.columns, batches(), to=to, since=since)
        return TableReport(state.name, state.kind, state.place, count, 0, whole)

    def _bring(
        self, history: History, state: PublishedState, shown: ShownCheckpoint | None, to_id: int
    ) -> TableReport | None:
        """Bring a table from the checkpoint that it shows to another one; None where nothing changed."""
        if state_of(history[to_id], state.operator, state.state) is None:
            return None
        target = self._table(state)
        reader = self._reader(history, to_id, state)
        columns = reader.form.columns
        if shown is None:
            target.create(columns)
            shown = ShownCheckpoint(0)
        way = way_to(history, shown, to_id, state)
        if not way.whole and (lacks := target.lacks(columns)):
            way = StateWay(whole=lacks)
        if way.is_nothing:
            return None
        to = ShownCheckpoint.of(history[to_id])
        if anew := _other_columns(target, columns, way):
            move = self._made_anew(state, _Content.of(reader), to, since=shown, whole=anew)
            self._tell_whole(move, to, "was rebuilt from")
            return move
        change, whole = self._change(history, target, reader, way, shown)
        if change.is_empty and not whole:
            return None
        if not way.whole:
            _check_columns(target, columns)
        target.apply(columns, change, since=shown, to=to)
        move = _move(state, change, whole if shown.checkpoint_id else "it is new")
        if whole and shown.checkpoint_id:
            self._tell_whole(move, to, "was compared as a whole with")
        return move

    def _tell_whole(self, move: TableReport, to: ShownCheckpoint, what: str) -> None:
        _LOG.warning(
            "table '%s': %s %s the state as of checkpoint %s, because %s: %s rows came, %s went",
            move.name,
            move.place,
            what,
            to.checkpoint_id,
            move.whole,
            move.rows,
            move.deleted,
            extra={"job": self._tables.layout.job, "checkpoint_id": to.checkpoint_id, "sink": move.name},
        )

    def _change(
        self,
        history: History,
        target: TableTarget,
        reader: StateReader,
        way: StateWay,
        shown: ShownCheckpoint,
    ) -> tuple[TableChange, str]:
        """What a table gets, and why the whole of it was compared for that."""
        why = way.whole
        if not why:
            try:
                return reader.change(way, history.path(shown.checkpoint_id)), ""
            except MissingFilesError as error:
                what = "damaged" if isinstance(error, DamagedFileError) else "gone"
                why = f"files of checkpoints since {shown.checkpoint_id} are {what}"
        return self._difference(target, _Content.of(reader)), why

    def _difference(self, target: TableTarget, content: _Content) -> TableChange:
        old = (pa.Table.from_batches([batch]) for batch in target.content(content.columns))
        return compared_by_portions(content.columns, old, (target.held(rows) for rows in content.rows()))

    def _planned(self, history: History, state: PublishedState, to_id: int) -> TableReport:
        target = self._table(state)
        shown = target.shown()
        reader = self._reader(history, to_id, state)
        if shown is None:
            return _new(state, _Content.of(reader))
        way = way_to(history, shown, to_id, state)
        if anew := _other_columns(target, reader.form.columns, way):
            return _new(state, _Content.of(reader), anew)
        change, whole = self._change(history, target, reader, way, shown)
        return _move(state, change, whole)

    # -- pieces ----------------------------------------------------------------------------------------------------

    def _table(self, state: PublishedState) -> TableTarget:
        table = state.table(self._places.app_of(state.name))
        known = self._known.get(state.name)
        if known is None or known.table != table:
            known = self._known[state.name] = self._targets[state.kind](table)
        return known

    def _content(self, history: History, state: PublishedState, row: CheckpointRow) -> _Content | None:
        """A state as of a checkpoint, which is empty where that does not know it; None where none of ``main`` does."""
        known = row if state_of(row, state.operator, state.state) else last_knowing(history, state)
        if known is None:
            return None
        content = _Content.of(self._reader(history, known.checkpoint_id, state))
        return content if known is row else replace(content, rows=lambda: iter(()))

    def _reader(self, history: History, checkpoint_id: int, state: PublishedState) -> StateReader:
        path = history.path(checkpoint_id)
        return StateReader(self._tables.layout, path, state.operator, state.state, map_key=state.map_key)

    def _named(self, history: History, name: str, declared: Declared) -> tuple[PublishedState, CheckpointRow]:
        known = self.states(history, declared)
        head = history.head
        for state in known:
            if state.name == name and head is not None:
                return state, head
        raise ConfigurationError(
            f"job '{self._tables.layout.job}' publishes no state to a table '{name}'; its tables: "
            f"{sorted(one.name for one in known)}"
        )


@contextmanager
def _naming_damage(table: PublishedTable) -> Iterator[None]:
    """Raise what shows that a table is damaged as the error of that table, with the ways out."""
    try:
        yield
    except READING_FAILS as error:
        if not is_damage(error):
            raise
        raise damaged_table(table, error) from error


def _unknown(state: PublishedState) -> SinkError:
    return SinkError(
        f"table '{state.name}': the head does not know the state '{state.state}' of operator '{state.operator}', so "
        "there is nothing to show; the next run that writes the state builds the table from it"
    )


def _new(state: PublishedState, content: _Content, why: str = "it is new") -> TableReport:
    count = sum(rows.num_rows for rows in content.rows())
    return TableReport(state.name, state.kind, state.place, count, 0, why)


def _move(state: PublishedState, change: TableChange, whole: str) -> TableReport:
    gone = change.deleted.num_rows + change.cleared.num_rows
    return TableReport(state.name, state.kind, state.place, change.rows.num_rows, gone, whole)


def _other_columns(target: TableTarget, columns: TableColumns, way: StateWay) -> str:
    """Why a table that is compared as a whole is made again instead: the state has other columns by now."""
    if way.whole == OTHER_FORM:
        return target.check_columns(columns)
    if way.whole:
        _check_columns(target, columns)
    return ""


def _check_columns(target: TableTarget, columns: TableColumns) -> None:
    """Refuse a table that has other columns than the state; raises SinkError."""
    if differs := target.check_columns(columns):
        raise SinkError(
            f"table '{target.table.name}': {target.table.place} has other columns: {differs}. Nothing was written. "
            f"Rebuild the table: {target.table.rebuild}; or publish to another one"
        )


def _nothing(columns: TableColumns) -> TableChange:
    empty = columns.schema.empty_table()
    return TableChange(empty.select(columns.key), empty.select(columns.identity), empty)
