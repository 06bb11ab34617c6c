"""``MemoryTables``: published tables of a job that runs in memory, in the place of Delta tables and databases.

They follow the head as real ones do, by the same differences and policies. Nobody else writes to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from state_engine.core.checkpoints.sink_kind import SinkKind
from state_engine.core.types.columns import one_chunk
from state_engine.core.types.spark_types import spark_schema
from state_engine.state_tables.base import (
    KeysInTable,
    PublishedTable,
    ShownCheckpoint,
    TableChange,
    TableColumns,
    TableTarget,
)
from state_engine.state_tables.delta import changed_columns
from state_engine.state_tables.key_columns import same_rows
from state_engine.state_tables.table_form import rows_by_identity


@dataclass(frozen=True)
class _Shown:
    columns: TableColumns
    rows: pa.Table
    checkpoint: ShownCheckpoint


class MemoryTables:
    """See the module docstring."""

    def __init__(self) -> None:
        self._tables: dict[str, _Shown] = {}

    def rows(self, place: str) -> list[Any]:
        """The rows of a table, by what identifies them; none where nothing was published to it yet."""
        shown = self._tables.get(place)
        return [] if shown is None else rows_by_identity(shown.columns, shown.rows)

    def target(self, table: PublishedTable) -> TableTarget:
        return _MemoryTarget(self._tables, table)


@dataclass
class _MemoryTarget(TableTarget):
    tables: dict[str, _Shown]
    table: PublishedTable

    def shown(self, *, changed: bool = False) -> ShownCheckpoint | None:
        shown = self.tables.get(self.table.place)
        return None if shown is None else shown.checkpoint

    def create(self, columns: TableColumns) -> None:
        self.tables.setdefault(
            self.table.place, _Shown(columns, columns.schema.empty_table(), ShownCheckpoint(0))
        )

    def check_columns(self, columns: TableColumns) -> str:
        shown = self.tables.get(self.table.place)
        if shown is None or self.table.kind != SinkKind.DELTA_STATE:  # a database's table gets new columns
            return ""
        return changed_columns(self.table, spark_schema(shown.columns.schema), columns, is_ours=True)

    def apply(
        self, columns: TableColumns, change: TableChange, *, since: ShownCheckpoint, to: ShownCheckpoint
    ) -> None:
        old = self._content(columns)
        goes = same_rows(old, change.cleared, columns.key)
        goes |= same_rows(old, change.deleted, columns.identity)
        goes |= same_rows(old, change.rows, columns.identity)
        rows = pa.concat_tables([old.filter(pa.array(~goes)), change.rows.select(columns.schema.names)])
        self.tables[self.table.place] = _Shown(columns, rows.combine_chunks(), to)

    def replace(
        self,
        columns: TableColumns,
        rows: Iterable[pa.RecordBatch],
        *,
        to: ShownCheckpoint,
        since: ShownCheckpoint | None = None,
    ) -> None:
        made = pa.Table.from_batches(list(rows), columns.schema)
        self.tables[self.table.place] = _Shown(columns, made.combine_chunks(), to)

    def content(self, columns: TableColumns) -> Iterator[pa.RecordBatch]:
        yield from self._content(columns).to_batches()

    def adopt(self, columns: TableColumns) -> None:
        """No table belongs to anybody else."""

    def keys_in(self, columns: TableColumns, keys: pa.Table) -> KeysInTable:
        return KeysInTable(int(same_rows(self._content(columns), keys, columns.key).sum()), 0)

    def erase(self, columns: TableColumns, keys: pa.Table) -> None:
        old = self._content(columns)
        left = old.filter(pa.array(~same_rows(old, keys, columns.key)))
        self.tables[self.table.place] = replace(self.tables[self.table.place], columns=columns, rows=left)

    def accept(self) -> None:
        """Nobody else changed anything."""

    def _content(self, columns: TableColumns) -> pa.Table:
        """What a table holds, with columns that the state has got since, which are null there."""
        rows, schema = self.tables[self.table.place].rows, columns.schema
        parts = [
            one_chunk(rows[f.name]).cast(f.type)
            if f.name in rows.schema.names
            else pa.nulls(len(rows), f.type)
            for f in schema
        ]
        return pa.table(parts, schema)
