"""A table of a database that shows a keyed state: made, checked, taken over, and brought to a checkpoint.

Each is one transaction. Its first statement writes the table's row of the ledger, which lets one publisher in at a time
and says whether the table is what the caller takes it for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

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
from state_engine.sinks.sql_columns import CHECKPOINT_ID, check_table, table_for
from state_engine.sinks.sql_connection import SqlWrite, connected
from state_engine.sinks.sql_ledger import add_column, create
from state_engine.sinks.sql_rows import BATCH_ROWS
from state_engine.sinks.sql_target import SqlTarget
from state_engine.sinks.sql_trial import refused_by
from state_engine.state_tables.base import (
    KeysInTable,
    PublishedTable,
    ShownCheckpoint,
    TableChange,
    TableColumns,
)
from state_engine.state_tables.sql_ledger import PublishedLedger, ShownState
from state_engine.state_tables.sql_rows import RowWriter

_MARK = pa.field(CHECKPOINT_ID, pa.int64())


@contextmanager
def opened(target: SqlTarget, published: PublishedTable) -> Iterator[ShownTable]:
    """The table, over a connection to its database; raises as ``connected`` does."""
    with connected(target, _who(published)) as connection:
        yield ShownTable(connection, target, published)


@dataclass(frozen=True)
class ShownTable:
    """One table, over one connection; each method ends with no transaction open, or raises."""

    connection: sa.Connection
    target: SqlTarget
    published: PublishedTable

    # -- what it is ------------------------------------------------------------------------------------------------

    def shown(self, *, changed: bool = False) -> ShownCheckpoint | None:
        """The checkpoint that the table shows, see ``TableTarget.shown``."""
        if not self._is_there():
            self.connection.rollback()
            return None
        shown = self._mine(self._ledger.read())
        if not changed:
            self._refuse_changed(shown)
        self.connection.rollback()
        return shown.checkpoint

    def check(self, columns: TableColumns) -> None:
        """Refuse a table that cannot hold the columns, see ``TableTarget.check_columns``."""
        self._table(columns)
        if self._is_there():
            self._check(columns, is_ours=self._is_ours())
        self.connection.rollback()

    def lacks(self, columns: TableColumns) -> list[str]:
        """Columns of the state that the table does not have; none where there is no table."""
        there = self._names() if self._is_there() else set(columns.schema.names)
        self.connection.rollback()
        return [name for name in columns.schema.names if name not in there]

    def content(self, columns: TableColumns) -> Iterator[pa.RecordBatch]:
        """The rows that the table holds; null in columns that it does not have yet."""
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
                f"{self.published.ways_out}"
            ) from error

    # -- what becomes of it ----------------------------------------------------------------------------------------

    def create(self, columns: TableColumns) -> None:
        """Make the table, and its row of the ledger; nothing where there is one."""
        table = self._table(columns)
        self._ledger.prepare()
        self._ledger.claim(self.published.app, to=ShownCheckpoint(0), at=datetime.now(UTC))
        if self._is_there():
            self.connection.rollback()
        else:
            create(self.connection, table)

    def apply(
        self, columns: TableColumns, change: TableChange, *, since: ShownCheckpoint, to: ShownCheckpoint
    ) -> None:
        """Bring the table from one checkpoint to another, see ``TableTarget.apply``."""
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
            self._ledger.note_table(has_rows=bool(change.rows.num_rows) or self._has_rows())

    def replace(
        self,
        columns: TableColumns,
        batches: Iterable[pa.RecordBatch],
        *,
        to: ShownCheckpoint,
        since: ShownCheckpoint | None = None,
    ) -> None:
        """Put rows in the place of all, see ``TableTarget.replace``."""
        table, now = self._table(columns), datetime.now(UTC)
        is_ours = self._is_ours()
        self.connection.rollback()
        with self._claiming(to, now) if since is None else self._bringing(since, to) as begun:
            if not begun:
                return
            self._make_room(columns, table, is_ours=is_ours)
            rows = self._rows(table, columns, 0, to.checkpoint_id)
            for batch in batches:
                rows.insert(pa.Table.from_batches([batch]))
            self._ledger.note_table(has_rows=self._has_rows())

    def adopt(self, columns: TableColumns) -> None:
        """Take the table over with the rows that it holds, see ``TableTarget.adopt``."""
        table, at = self._table(columns), datetime.now(UTC)
        self._refuse_texts(columns)
        with self._claiming(ShownCheckpoint(0), at):
            self._refuse_gone()
            self._check(columns, is_ours=False)
            self._add_columns(columns)
            mark = table.c[CHECKPOINT_ID]
            self.connection.execute(
                sa.update(table).where(mark.is_distinct_from(0)).values({CHECKPOINT_ID: 0})
            )
            self._ledger.note_table(has_rows=self._has_rows())

    def accept(self) -> None:
        """Have rows that others wrote count as those of the checkpoint that the table shows."""
        at, shown = datetime.now(UTC), self._mine(self._ledger.read()).checkpoint
        self.connection.rollback()
        mark = sa.Column(CHECKPOINT_ID, sa.BigInteger())
        table = sa.Table(self.target.table, sa.MetaData(), mark, schema=self.target.schema)
        with self._claiming(shown, at):
            if CHECKPOINT_ID not in self._names():
                add_column(self.connection, table, mark)
            others = sa.or_(mark.is_(None), ~mark.between(0, shown.checkpoint_id))
            self.connection.execute(
                sa.update(table).where(others).values({CHECKPOINT_ID: shown.checkpoint_id})
            )
            self._ledger.note_table(has_rows=self._has_rows())

    def keys_in(self, columns: TableColumns, keys: pa.Table) -> KeysInTable:
        """What the table holds of some keys, see ``TableTarget.keys_in``."""
        rows = self._rows(self._table(columns), columns, 0, 0).count(keys)
        self.connection.rollback()
        what = self.connection.dialect.identifier_preparer.format_table(self._table(columns))
        return KeysInTable(rows, 0, remedy="VACUUM" if self._dialect == "sqlite" else f"VACUUM FULL {what}")

    def erase(self, columns: TableColumns, keys: pa.Table) -> None:
        """Delete the rows of some keys, see ``TableTarget.erase``."""
        shown = self._mine(self._ledger.read()).checkpoint
        self.connection.rollback()
        with self._bringing(shown, shown) as begun:
            if not begun:
                raise CommitFailedError(
                    f"{self._where} no longer shows checkpoint {shown.checkpoint_id}: another runner published. "
                    "No row was deleted; run again"
                )
            self._rows(self._table(columns), columns, shown.checkpoint_id, shown.checkpoint_id).delete(keys)
            self._ledger.note_table(has_rows=self._has_rows())

    @contextmanager
    def _claiming(self, to: ShownCheckpoint, at: datetime) -> Iterator[bool]:
        """A transaction that takes over the table from its previous owner, and shows a checkpoint; always True."""

        def is_done(again: sa.Connection) -> bool:
            return self._again(again).is_written(self.published.app, at)

        with self._writing(to, is_done):
            self._ledger.claim(self.published.app, to=to, at=at)
            yield True

    @contextmanager
    def _bringing(self, since: ShownCheckpoint, to: ShownCheckpoint) -> Iterator[bool]:
        """A transaction that brings the table from one checkpoint to another; False where another runner did so."""
        at = datetime.now(UTC)
        self._mine(self._ledger.read())
        self.connection.rollback()

        def is_done(again: sa.Connection) -> bool:
            ledger = self._again(again)
            shown, app = ledger.read(), self.published.app
            if shown is None or shown.app != app:
                return False
            # a later one has what this one was to write, unless the table was to go back
            is_later = shown.checkpoint.checkpoint_id >= to.checkpoint_id > since.checkpoint_id
            return is_later or ledger.is_written(app, at)

        with self._writing(to, is_done):
            begun = self._ledger.advance(self.published.app, since=since, to=to, at=at)
            if begun:
                self._refuse_gone()
                self._refuse_changed(self._mine(self._ledger.read()))
            else:
                self.connection.rollback()
                self._refuse_behind(since, to)
            yield begun

    @contextmanager
    def _writing(self, to: ShownCheckpoint, is_done: Callable[[sa.Connection], bool]) -> Iterator[None]:
        """A transaction, committed in the end; where the answer to that is lost, the ledger says what happened."""
        write = self._write(to.checkpoint_id)
        try:
            self._ledger.prepare()
            yield
        except DBAPIError as error:
            raise write.refused(error) from error
        write.commit(self.connection, is_done)

    def _write(self, checkpoint_id: int) -> SqlWrite:
        ways_out = "drop it, and the next run rebuilds it"
        return SqlWrite(self.target, _who(self.published), checkpoint_id, ways_out)

    def _again(self, connection: sa.Connection) -> PublishedLedger:
        return PublishedLedger(connection, self.target.schema, self.target.table)

    # -- checks ----------------------------------------------------------------------------------------------------

    def _mine(self, shown: ShownState | None) -> ShownState:
        """The table's row of the ledger; raises SinkIdentityError where the table is not ours."""
        if shown is None or shown.app != self.published.app:
            owner = "nobody" if shown is None else f"'{shown.app}'"
            raise SinkIdentityError(
                f"{self._where} belongs to {owner}, and not to '{self.published.app}'. Nothing was changed. Name "
                "another table, which is then made; or take this one over with adopt=True: its rows are compared "
                "with the state, and become those of the state. If it was this job's, and its ledger is gone, "
                f"rebuild it from the state with {self.published.rebuild}"
            )
        return shown

    def _refuse_behind(self, since: ShownCheckpoint, to: ShownCheckpoint) -> None:
        """Refuse a table that shows another checkpoint than expected, unless somebody was faster."""
        shown = self._mine(self._ledger.read()).checkpoint
        self.connection.rollback()
        if shown.checkpoint_id < to.checkpoint_id:
            raise CommitFailedError(
                f"{self._where} shows checkpoint {shown.checkpoint_id}, and no longer {since.checkpoint_id}: "
                "another runner published, or the database was put back from a backup. Nothing was written; run again, "
                "and it follows from there"
            )

    def _refuse_gone(self) -> None:
        if not self._is_there():
            raise CommitFailedError(
                f"{self._where} was dropped just now. Nothing was written; run again, which rebuilds it"
            )

    def _refuse_changed(self, shown: ShownState) -> None:
        """Refuse a table that can be seen to be another than the ledger says, without a look at all of its rows."""
        if shown.is_replaced:
            raise self._changed(
                "it was dropped and created again, or put back from a backup without its ledger"
            )
        if CHECKPOINT_ID not in self._names():
            raise self._changed(f"it has no column {CHECKPOINT_ID}, so it was rebuilt")
        has_rows = self._has_rows()
        if has_rows != shown.has_rows:
            raise self._changed(
                "it has rows, and had none when it was last published to"
                if has_rows
                else "it is empty, and was not when it was last published to"
            )

    def _changed(self, what: str) -> TableChangedError:
        return TableChangedError(
            f"{self._where} was changed by somebody else: {what}. Nothing was written. {self.published.ways_out}"
        )

    def _check(self, columns: TableColumns, *, is_ours: bool) -> None:
        """Refuse a table whose columns do not fit; those that can be added may be missing."""
        there = self._names()
        fields = [*columns.schema, *([_MARK] if CHECKPOINT_ID in there else [])]
        wanted = pa.schema([f for f in fields if f.name in there or f.name in columns.identity])
        key = replace(self.target, key=columns.identity)
        way = "drop it, and the next run rebuilds it from the state"
        if is_ours:
            way = f"rebuild it from the state: {self.published.rebuild}"
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
        if names and self._dialect == "sqlite":
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
            self._dialect,
            ways_out="publish a state without it, or to a DeltaStateTable",
        )
        if nullable:
            made.append_constraint(sa.UniqueConstraint(*columns.identity))
        return made

    def _make_room(self, columns: TableColumns, table: sa.Table, *, is_ours: bool) -> None:
        """Empty the table; one of ours whose columns do not fit any more is made again."""
        if self._is_there():
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
            why, is_there = "", self._is_there()
            for row, what in refused_by(self.connection, self.target, batch).items() if is_there else ():
                names = ", ".join(f"{n}={shown(batch[n], row)!r}" for n in columns.identity)
                why = why or f"the row with {names}: {what}"
            return self._write(checkpoint_id).refused(error, why)

        return RowWriter(
            self.connection, table, columns.identity, since, checkpoint_id, self._changed, refused
        )

    def _is_ours(self) -> bool:
        shown = self._ledger.read()
        return shown is not None and shown.app == self.published.app

    def _is_there(self) -> bool:
        return sa.inspect(self.connection).has_table(self.target.table, self.target.schema)

    def _names(self) -> set[str]:
        columns = sa.inspect(self.connection).get_columns(self.target.table, self.target.schema)
        return {column["name"] for column in columns}

    def _has_rows(self) -> bool:
        table = sa.table(self.target.table, schema=self.target.schema)
        return (
            self.connection.execute(sa.select(sa.literal(1)).select_from(table).limit(1)).first() is not None
        )

    @cached_property
    def _ledger(self) -> PublishedLedger:
        return self._again(self.connection)

    @property
    def _dialect(self) -> str:
        return self.connection.dialect.name

    @property
    def _where(self) -> str:
        return f"{_who(self.published)}: {self.target.shown}"


def _who(published: PublishedTable) -> str:
    return f"state table '{published.name}'"


def _array(values: Iterable[Any], kind: pa.DataType) -> pa.Array:
    """Values as a database gives them, as Arrow has them; the reverse of ``driver_values``."""
    values = list(values)
    if pa.types.is_decimal(kind) and any(isinstance(v, str) for v in values):
        return pa.array(values, pa.string()).cast(kind)
    return pa.array(values, kind)
