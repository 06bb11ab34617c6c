"""A database with one table that shows a state, seen by its publisher and, over another connection, by its user."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.exc import OperationalError

from state_engine import SqlStateTable
from state_engine.databases.state_table import sql_state_target
from state_engine.state_tables.base import (
    PublishedTable,
    ShownCheckpoint,
    TableChange,
    TableColumns,
    TableTarget,
)
from tests.support.killed import Killed

APP = "0123/job/balance"

COLUMNS = TableColumns(pa.schema([("account", pa.int64()), ("total", pa.string())]), key=("account",))
"""One row an account."""


def rows_of(
    columns: TableColumns, rows: Iterable[tuple[Any, ...]], names: Iterable[str] | None = None
) -> pa.Table:
    """Rows as Arrow, of all columns or of some."""
    schema = columns.schema if names is None else pa.schema([columns.schema.field(n) for n in names])
    values = list(rows)
    arrays = [pa.array([row[i] for row in values], f.type) for i, f in enumerate(schema)]
    return pa.table(arrays, schema=schema)


class World:
    """One table of one database."""

    def __init__(self, url: str, password_env: str | None = None, password: str = "") -> None:
        self.url, self.password_env = url, password_env
        self.schema: str | None = None
        self.columns = COLUMNS
        user_url = sa.make_url(url).set(password=password) if password else sa.make_url(url)
        # a kept connection would have SQLite's files open
        self.engine = sa.create_engine(user_url, poolclass=sa.NullPool if self.is_sqlite else sa.QueuePool)

    @property
    def is_sqlite(self) -> bool:
        return self.url.startswith("sqlite")

    def published(self, app: str = APP) -> PublishedTable:
        table = SqlStateTable(
            self.url, "balances", schema=self.schema, password_env=self.password_env, adopt=False
        )
        return PublishedTable(app.rsplit("/", 1)[-1], table.kind, table.place, app, table.options())

    @property
    def target(self) -> TableTarget:
        """What writes the table."""
        return self.target_of(APP)

    def target_of(self, app: str) -> TableTarget:
        """The same, for an application."""
        return sql_state_target(self.published(app))

    # -- what the framework does -----------------------------------------------------------------------------------

    def shown(self, app: str = APP) -> int | None:
        shown = self.target_of(app).shown()
        return None if shown is None else shown.checkpoint_id

    def create(self, app: str = APP) -> None:
        self.target_of(app).create(self.columns)

    def change(
        self,
        rows: Iterable[tuple[Any, ...]] = (),
        *,
        deleted: Iterable[tuple[Any, ...]] = (),
        cleared: Iterable[tuple[Any, ...]] = (),
    ) -> TableChange:
        return TableChange(
            rows_of(self.columns, cleared, self.columns.key),
            rows_of(self.columns, deleted, self.columns.identity),
            rows_of(self.columns, rows),
        )

    def apply(
        self,
        since: int,
        checkpoint_id: int,
        rows: Iterable[tuple[Any, ...]] = (),
        *,
        app: str = APP,
        writes: tuple[int, int] = (0, 0),
        **change: Any,
    ) -> None:
        self.target_of(app).apply(
            self.columns,
            self.change(rows, **change),
            since=ShownCheckpoint(since, writes[0]),
            to=ShownCheckpoint(checkpoint_id, writes[1]),
        )

    def replace(self, checkpoint_id: int, rows: Iterable[tuple[Any, ...]], *, app: str = APP) -> None:
        batches = rows_of(self.columns, rows).to_batches(max_chunksize=3)
        self.target_of(app).replace(self.columns, batches, to=ShownCheckpoint(checkpoint_id))

    def adopt(self, app: str = APP) -> None:
        self.target_of(app).adopt(self.columns)

    def content(self) -> list[tuple[Any, ...]]:
        batches = list(self.target.content(self.columns))
        assert all(batch.schema == self.columns.schema for batch in batches)
        rows = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
        return sorted(rows, key=lambda row: [(v is not None, v) for v in row])

    # -- what the user does ----------------------------------------------------------------------------------------

    def run(self, statement: str | sa.TextClause) -> Any:
        with self.engine.connect() as connection:
            result = connection.execute(sa.text(statement) if isinstance(statement, str) else statement)
            rows = [tuple(row) for row in result.fetchall()] if result.returns_rows else None
            connection.commit()
            return rows

    def rows(
        self, query: str = "SELECT account, total, _checkpoint_id FROM balances ORDER BY account"
    ) -> Any:
        return self.run(query)


class Failing:
    """Breaks the n-th step of publishers: a statement, or a commit, counted from 0; None breaks none."""

    def __init__(self, step: int | None, *, killed: bool) -> None:
        self.step, self.killed, self.steps = step, killed, 0

    def _next(self, *_: Any) -> None:
        self.steps += 1
        if self.step is not None and self.steps > self.step:
            raise Killed if self.killed else OperationalError("", {}, Exception("the connection was closed"))

    def __enter__(self) -> Failing:
        sa.event.listen(Engine, "before_cursor_execute", self._next)
        sa.event.listen(Engine, "commit", self._next)
        return self

    def __exit__(self, *_: object) -> None:
        sa.event.remove(Engine, "before_cursor_execute", self._next)
        sa.event.remove(Engine, "commit", self._next)
