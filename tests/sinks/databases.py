"""A database with one sink table, for tests of ``SqlSink``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from state_engine import SqlSink
from state_engine.core.checkpoints.checkpoint import StagedSink
from state_engine.databases.sink import SqlPublisher
from tests.sinks.requests import APP, asked, staged_files

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


KERNEL: Any = None
"""The sink needs none."""


class Database:
    """A database with one sink table, seen by the sink and, over a connection of its own, by its user."""

    def __init__(
        self, directory: Path, url: str, password_env: str | None = None, password: str = ""
    ) -> None:
        self.directory, self.url, self.password_env = directory, url, password_env
        self.password = password
        self.schema: str | None = None
        self.publisher = SqlPublisher()
        self._user_url = sa.make_url(url).set(password=password) if password else sa.make_url(url)

    def sink(self, **options: Any) -> SqlSink:
        return SqlSink(self.url, "delays", schema=self.schema, password_env=self.password_env, **options)

    def staged(
        self, write_id: str, *parts: Any, schema: pa.Schema = SCHEMA, app: str = APP, **options: Any
    ) -> StagedSink:
        """The staged outputs of one attempt, a file for each part: ids, or whole rows."""
        request = asked(KERNEL, schema, write_id, app=app, root=f"file://{self.directory}/root")
        subtasks = []
        for part in parts:
            rows = [(i, f"t{i}") if isinstance(i, int) else i for i in part]
            columns = list(zip(*rows, strict=True))
            arrays = [pa.array(c, t) for c, t in zip(columns, schema.types, strict=True)]
            subtasks.append(pa.table(arrays, schema.names))
        return staged_files(self.sink(**options), request, *subtasks)

    def rows(self, query: str = "SELECT id, text FROM delays ORDER BY id, text") -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.run(query) or []]

    def ids(self) -> list[int]:
        return [row[0] for row in self.rows()]

    def run(self, statement: str) -> Any:
        with self.connected() as connection:
            result = connection.execute(sa.text(statement))
            rows = result.fetchall() if result.returns_rows else None
            connection.commit()
            return rows

    def connected(self) -> sa.Connection:
        return sa.create_engine(self._user_url, poolclass=sa.NullPool).connect()
