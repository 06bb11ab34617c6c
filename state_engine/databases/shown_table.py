"""A table of a database that shows a keyed state: made, checked, taken over, and brought to a checkpoint.

Each is one transaction, which begins with the table's row of the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from datetime import UTC, datetime
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from state_engine.core.errors import (
    CommitFailedError,
    SinkError,
    SinkIdentityError,
    TableChangedError,
)
from state_engine.core.types.beyond_python import shown
from state_engine.databases.columns import CHECKPOINT_ID, check_table, table_for
from state_engine.databases.ledger import OWNER, Ledger, LedgerRow, Published, add_column, create
from state_engine.databases.rows import BATCH_ROWS, RowWriter, driver_floats
from state_engine.databases.table import DatabaseTable
from state_engine.databases.trial import refused_by
from state_engine.state_tables.base import (
    KeysInTable,
    PublishedTable,
    ShownCheckpoint,
    TableChange,
    TableColumns,
    TableTarget,
)

_MARK = pa.field(CHECKPOINT_ID, pa.int64())


_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_Method = Callable[Concatenate["ShownTable", _Arguments], _Result]


def _connected(method: _Method[_Arguments, _Result]) -> _Method[_Arguments, _Result]:
    """Give each call of a method a connection of its own."""

    @wraps(method)
    def call(self: ShownTable, /, *args: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        with self.connected() as table:
            return method(table, *args, **options)

    return call


@dataclass(frozen=True)
class ShownTable(DatabaseTable, TableTarget):
    """One table; each call has a connection of its own, and ends with no transaction open, or raises."""

    _: KW_ONLY
    table: PublishedTable
    ways_out = "drop it, and the next run rebuilds it"

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.connection, self.target.schema, self.target.table, OWNER)

    # -- what it is ------------------------------------------------------------------------------------------------

    @_connected
    def shown(self, *, changed: bool = False) -> ShownCheckpoint | None:
        if not self.is_there():
            self.connection.rollback()
            return None
        row = self._mine()
        if not changed:
            self._refuse_changed(row)
        self.connection.rollback()
        return _shown(row)

    @_connected
    def check_columns(self, columns: TableColumns) -> str:
        """Refuse a table that cannot hold these columns; one that lacks some that no row is identified by gets them.

        They are added by the next write.
        """
        self._table(columns)
        if self.is_there():
            self._check(columns, is_ours=self._is_ours())
        self.connection.rollback()
        return ""

    @_connected
    def lacks(self, columns: TableColumns) -> str:
        there = self._names() if self.is_there() else set(columns.schema.names)
        self.connection.rollback()
        gone = [name for name in columns.schema.names if name not in there]
        return f"somebody dropped its columns {gone}" if gone else ""

    def content(self, columns: TableColumns) -> Iterator[pa.RecordBatch]:
        """The rows that the table holds now, from one statement; null in columns that it does not have yet.

        Read them all before the table is written to: SQLite lets nobody write while a query goes on.
        """
        with self.connected() as table:
            yield from table.content_here(columns)

    def held(self, rows: pa.Table) -> pa.Table:
        """With null in the place of NaN where the database is SQLite, which has none."""
        return driver_floats(rows) if self.target.url.startswith("sqlite") else rows

    def content_here(self, columns: TableColumns) -> Iterator[pa.RecordBatch]:
        self._check(columns, is_ours=self._is_ours())
        table, there = self._table(columns), self._names()
        query = sa.select(*(table.c[n] for n in columns.schema.names if n in there))
        try:
            with self.connection.execute(query, execution_options={"stream_results": True}) as result:
                for part in result.partitions(BATCH_ROWS):
                    values = dict(zip(result.keys(), zip(*part, strict=True), strict=True))
                    arrays = [_array(values.get(f.name, [None] * len(part)), f.type) for f in columns.schema]
                    yield pa.RecordBatch.from_arrays(arrays, schema=columns.schema)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise SinkError(
                f"{self._where} holds a value that the state cannot have: {error}. Nothing was changed. "
                f"{self.table.ways_out}"
            ) from error

    # -- what becomes of it ----------------------------------------------------------------------------------------

    @_connected
    def create(self, columns: TableColumns) -> None:
        table = self._table(columns)
        self.ledger.prepare()
        self._claim(ShownCheckpoint(0), datetime.now(UTC))
        if self.is_there():
            self.connection.rollback()
        else:
            create(self.connection, table)

    @_connected
    def apply(
        self, columns: TableColumns, change: TableChange, *, since: ShownCheckpoint, to: ShownCheckpoint
    ) -> None:
        """Bring the table from one checkpoint to another, see ``TableTarget.apply``.

        A row is only replaced or deleted where its ``_checkpoint_id`` is between 0 and that of ``since``.

        Raises:
            TableChangedError: a row has another one, or none; or the table was emptied.
            CommitFailedError: another publisher, or the connection, was in the way; nothing was written.
            CommitUnknownError: the connection broke while committing, and the ledger cannot be read.
        """
        table = self._table(columns)
        with self._bringing(since, to) as begun:
            if not begun:
                return
            self._add_columns(columns)
            rows = self._rows(table, columns, since.checkpoint_id, to.checkpoint_id)
            rows.delete(change.cleared)
            rows.delete(change.deleted)
            rows.put(change.rows)
            if to.checkpoint_id < since.checkpoint_id:
                rows.date_back()
            self.ledger.note_table(has_rows=bool(change.rows.num_rows) or self.has_rows())

    @_connected
    def replace(
        self,
        columns: TableColumns,
        rows: Iterable[pa.RecordBatch],
        *,
        to: ShownCheckpoint,
        since: ShownCheckpoint | None = None,
    ) -> None:
        table, is_ours = self._table(columns), self._is_ours()
        self.connection.rollback()
        with self._claiming(to) if since is None else self._bringing(since, to) as begun:
            if not begun:
                return
            self._make_room(columns, table, is_ours=is_ours)
            writer = self._rows(table, columns, 0, to.checkpoint_id)
            for batch in rows:
                writer.insert(pa.Table.from_batches([batch]))
            self.ledger.note_table(has_rows=self.has_rows())

    @_connected
    def adopt(self, columns: TableColumns) -> None:
        table = self._table(columns)
        self._refuse_texts(columns)
        with self._claiming(ShownCheckpoint(0)):
            self._refuse_gone()
            self._check(columns, is_ours=False)
            self._add_columns(columns)
            mark = table.c[CHECKPOINT_ID]
            self.connection.execute(
                sa.update(table).where(mark.is_distinct_from(0)).values({CHECKPOINT_ID: 0})
            )
            self.ledger.note_table(has_rows=self.has_rows())

    @_connected
    def accept(self) -> None:
        """Have rows that others wrote count as those of the checkpoint that the table shows."""
        shown = _shown(self._mine())
        self.connection.rollback()
        mark = sa.Column(CHECKPOINT_ID, sa.BigInteger())
        table = sa.Table(self.target.table, sa.MetaData(), mark, schema=self.target.schema)
        with self._claiming(shown):
            if CHECKPOINT_ID not in self._names():
                add_column(self.connection, table, mark)
            others = sa.or_(mark.is_(None), ~mark.between(0, shown.checkpoint_id))
            self.connection.execute(
                sa.update(table).where(others).values({CHECKPOINT_ID: shown.checkpoint_id})
            )
            self.ledger.note_table(has_rows=self.has_rows())

    @_connected
    def keys_in(self, columns: TableColumns, keys: pa.Table) -> KeysInTable:
        rows = self._rows(self._table(columns), columns, 0, 0).count(keys)
        self.connection.rollback()
        what = self.connection.dialect.identifier_preparer.format_table(self._table(columns))
        return KeysInTable(rows, 0, remedy="VACUUM" if self.dialect == "sqlite" else f"VACUUM FULL {what}")

    @_connected
    def erase(self, columns: TableColumns, keys: pa.Table) -> None:
        shown = _shown(self._mine())
        self.connection.rollback()
        with self._bringing(shown, shown) as begun:
            if not begun:
                raise CommitFailedError(
                    f"{self._where} no longer shows checkpoint {shown.checkpoint_id}: another runner published. "
                    "No row was deleted; run again"
                )
            self._rows(self._table(columns), columns, shown.checkpoint_id, shown.checkpoint_id).delete(keys)
            self.ledger.note_table(has_rows=self.has_rows())

    @contextmanager
    def _claiming(self, to: ShownCheckpoint) -> Iterator[bool]:
        """A transaction that takes over the table from its previous owner, and shows a checkpoint; always True."""
        at = datetime.now(UTC)
        self.ledger.prepare()
        with self.writing(to.checkpoint_id, lambda again: again.ledger.is_written(self.app, at)):
            self._claim(to, at)
            yield True

    def _claim(self, to: ShownCheckpoint, at: datetime) -> None:
        shown = _recorded(to)
        self.ledger.claim(self.app, at=at, checkpoint_id=shown.checkpoint_id, digest=shown.digest)

    @contextmanager
    def _bringing(self, since: ShownCheckpoint, to: ShownCheckpoint) -> Iterator[bool]:
        """A transaction that brings the table from one checkpoint to another; False where another runner did so."""
        at = datetime.now(UTC)
        self._mine()
        self.connection.rollback()

        def is_done(again: ShownTable) -> bool:
            row = again.ledger.row()
            if row is None or row.app != self.app:
                return False
            # a later one has what this one was to write, unless the table was to go back
            is_later = row.newest.checkpoint_id >= to.checkpoint_id > since.checkpoint_id
            return is_later or again.ledger.is_written(self.app, at)

        with self.writing(to.checkpoint_id, is_done):
            begun = self.ledger.advance(self.app, since=_recorded(since), to=_recorded(to), at=at)
            if begun:
                self._refuse_gone()
                self._refuse_changed(self._mine())
            else:
                self.connection.rollback()
                self._refuse_behind(since, to)
            yield begun

    # -- checks ----------------------------------------------------------------------------------------------------

    def _mine(self) -> LedgerRow:
        """The table's row of the ledger; raises SinkIdentityError where the table is not ours."""
        row = self.ledger.row()
        if row is None or row.app != self.app:
            owner = "nobody" if row is None else f"'{row.app}'"
            raise SinkIdentityError(
                f"{self._where} belongs to {owner}, and not to '{self.app}'. Nothing was changed. Name "
                "another table, which is then made; or take this one over with adopt=True: its rows are compared "
                "with the state, and become those of the state. If it was this job's, and its ledger is gone, "
                f"rebuild it from the state with {self.table.rebuild}"
            )
        return row

    def _refuse_behind(self, since: ShownCheckpoint, to: ShownCheckpoint) -> None:
        """Refuse a table that shows another checkpoint than expected, unless somebody was faster."""
        shown = _shown(self._mine())
        self.connection.rollback()
        if shown.checkpoint_id < to.checkpoint_id:
            raise CommitFailedError(
                f"{self._where} shows checkpoint {shown.checkpoint_id}, and no longer {since.checkpoint_id}: "
                "another runner published, or the database was put back from a backup. Nothing was written; run again, "
                "and it follows from there"
            )

    def _refuse_gone(self) -> None:
        if not self.is_there():
            raise CommitFailedError(
                f"{self._where} was dropped just now. Nothing was written; run again, which rebuilds it"
            )

    def _refuse_changed(self, row: LedgerRow) -> None:
        """Refuse a table that can be seen to be another than the ledger says, without a look at all of its rows."""
        if row.is_replaced:
            raise self._changed(
                "it was dropped and created again, or put back from a backup without its ledger"
            )
        if CHECKPOINT_ID not in self._names():
            raise self._changed(f"it has no column {CHECKPOINT_ID}, so it was rebuilt")
        has_rows = self.has_rows()
        if has_rows != row.has_rows:
            raise self._changed(
                "it has rows, and had none when it was last published to"
                if has_rows
                else "it is empty, and was not when it was last published to"
            )

    def _changed(self, what: str) -> TableChangedError:
        return TableChangedError(
            f"{self._where} was changed by somebody else: {what}. Nothing was written. {self.table.ways_out}"
        )

    def _check(self, columns: TableColumns, *, is_ours: bool) -> None:
        """Refuse a table whose columns do not fit; those that can be added may be missing."""
        there = self._names()
        fields = [*columns.schema, *([_MARK] if CHECKPOINT_ID in there else [])]
        wanted = pa.schema([f for f in fields if f.name in there or f.name in columns.identity])
        key = replace(self.target, key=columns.identity)
        way = "drop it, and the next run rebuilds it from the state"
        if is_ours:
            way = f"rebuild it from the state: {self.table.rebuild}"
        check_table(
            key,
            wanted,
            sa.inspect(self.connection),
            ways_out=f"Alter the table; or {way}; or name another one",
        )

    def _refuse_texts(self, columns: TableColumns) -> None:
        """Refuse to take over identities that SQLite holds as text, which others may have written in other words."""
        kinds = (pa.types.is_timestamp, pa.types.is_date, pa.types.is_decimal)
        names = [
            n for n in columns.identity if any(is_kind(columns.schema.field(n).type) for is_kind in kinds)
        ]
        if names and self.dialect == "sqlite":
            raise SinkError(
                f"{self._where} cannot be taken over: SQLite holds the key column '{names[0]}' as text, and one value "
                "can be written in several ways. Name another table, which is then built from the state"
            )

    # -- parts -----------------------------------------------------------------------------------------------------

    def _table(self, columns: TableColumns) -> sa.Table:
        """The table as it is made: with a primary key, or a unique constraint where part of the key may be null."""
        if CHECKPOINT_ID in columns.schema.names:
            raise SinkError(f"{self._where}: the state has a field {CHECKPOINT_ID} itself; rename it")
        nullable = len(columns.key) > 1
        made = table_for(
            replace(self.target, key=() if nullable else columns.identity),
            columns.schema.append(_MARK),
            self.dialect,
            ways_out="publish a state without it, or to a DeltaStateTable",
        )
        if nullable:
            made.append_constraint(sa.UniqueConstraint(*columns.identity))
        return made

    def _make_room(self, columns: TableColumns, table: sa.Table, *, is_ours: bool) -> None:
        """Empty the table; one of ours whose columns do not fit any more is made again."""
        if self.is_there():
            try:
                self._check(columns, is_ours=is_ours)
            except SinkError:
                if not is_ours:
                    raise
                table.drop(self.connection)
            else:
                self._add_columns(columns)
                self.connection.execute(sa.delete(table))
                return
        table.create(self.connection)

    def _add_columns(self, columns: TableColumns) -> None:
        """Add the columns that the table lacks; they are null in rows that are not written again."""
        table, there = self._table(columns), self._names()
        for column in table.c:
            if column.name not in there and column.name not in columns.identity:
                add_column(self.connection, table, column)

    def _rows(self, table: sa.Table, columns: TableColumns, since: int, checkpoint_id: int) -> RowWriter:
        def refused(error: DBAPIError, batch: pa.Table) -> Exception:
            self.connection.rollback()
            why, is_there = "", self.is_there()
            for row, what in refused_by(self.connection, self.target, batch).items() if is_there else ():
                names = ", ".join(f"{n}={shown(batch[n], row)!r}" for n in columns.identity)
                why = why or f"the row with {names}: {what}"
            return self.refused(checkpoint_id, error, why)

        return RowWriter(
            self.connection, table, columns.identity, since, checkpoint_id, self._changed, refused
        )

    def _is_ours(self) -> bool:
        row = self.ledger.row()
        return row is not None and row.app == self.app

    def _names(self) -> set[str]:
        columns = sa.inspect(self.connection).get_columns(self.target.table, self.target.schema)
        return {column["name"] for column in columns}

    @property
    def _where(self) -> str:
        return f"{self.who}: {self.target.shown}"


def _recorded(shown: ShownCheckpoint) -> Published:
    return Published(shown.checkpoint_id, str(shown.write_number))


def _shown(row: LedgerRow) -> ShownCheckpoint:
    return ShownCheckpoint(row.newest.checkpoint_id, int(row.newest.digest))


def _array(values: Iterable[Any], kind: pa.DataType) -> pa.Array:
    """Values as a database gives them, as Arrow has them; the reverse of ``driver_values``."""
    values = list(values)
    if pa.types.is_decimal(kind) and any(isinstance(v, str) for v in values):
        return pa.array(values, pa.string()).cast(kind)
    return pa.array(values, kind)
