"""A database with one sink table, for tests of ``SqlSink``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from state_engine import SqlSink
from state_engine.core.checkpoints.checkpoint import StagedSink
from state_engine.microbatch.subtask.output_files import write_sink_file
from state_engine.sinks.sql import SqlPublisher
from tests.sinks.requests import APP, asked

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


KERNEL: Any = None
"""The sink needs none."""


class Database:
    """A database with one sink table, seen by the sink and, over a connection of its own, by its user."""

    def __init__(
        self, directory: Path, url: str, password_env: str | None = None, password: str = ""
    ) -> None:
        self.directory, self.url, self.password_env = directory, url, password_env
        self.schema: str | None = None
        self.publisher = SqlPublisher()
        self._user_url = sa.make_url(url).set(password=password) if password else sa.make_url(url)

    def sink(self, **options: Any) -> SqlSink:
        return SqlSink(self.url, "delays", schema=self.schema, password_env=self.password_env, **options)

    def staged(
        self, write_id: str, *parts: Any, schema: pa.Schema = SCHEMA, app: str = APP, **options: Any
    ) -> StagedSink:
        """What one attempt stages, a file for each part: ids, or whole rows."""
        target = self.sink(**options).prepare(
            asked(KERNEL, schema, write_id, app=app, root=f"file://{self.directory}/root")
        )
        files = []
        for subtask, part in enumerate(parts):
            rows = [(i, f"t{i}") if isinstance(i, int) else i for i in part]
            columns = list(zip(*rows, strict=True))
            table = pa.table(
                [pa.array(c, t) for c, t in zip(columns, schema.types, strict=True)], schema.names
            )
            files.append(write_sink_file(table, target, target.file_name(write_id, subtask, 0), subtask))
        return target.staged(files)

    def rows(self, query: str = "SELECT id, text FROM delays ORDER BY id, text") -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.run(query) or []]

    def ids(self) -> list[int]:
        return [row[0] for row in self.rows()]

    def run(self, statement: str) -> Any:
        engine = sa.create_engine(self._user_url, poolclass=sa.NullPool)
        with engine.begin() as connection:
            result = connection.execute(sa.text(statement))
            return result.fetchall() if result.returns_rows else None


def move(one: StagedSink, *, add: list[StagedSink], withdraw: list[StagedSink]) -> StagedSink:
    """What a row records that leaves some outputs and brings others."""
    return replace(
        one, files=[f for s in add for f in s.files], withdrawn=[f for s in withdraw for f in s.files]
    )
