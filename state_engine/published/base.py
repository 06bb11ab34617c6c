"""A table that shows a keyed state, and the ways in which it gets from one checkpoint to another.

    StateTable    what a job says: which table, and how it is written
    TableColumns  its columns, and which of them identify a row
    TableChange   the difference between two checkpoints of the state, by key
    TableTarget   applies a change to a table of one kind, in one transaction that also records the checkpoint

Flink has no counterpart: its upsert sinks see every change once and cannot go back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa


@dataclass(frozen=True)
class TableColumns:
    """The columns of a table that shows a state.

    Attributes:
        schema: all of them, in order, with the types in which they are stored.
        key: those of the operator's key.
        entry: those that, with the key, identify a row: the key of a map's entry; none for other states.
    """

    schema: pa.Schema
    key: tuple[str, ...]
    entry: tuple[str, ...] = ()

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns that identify a row."""
        return (*self.key, *self.entry)


@dataclass(frozen=True)
class TableChange:
    """What brings a table from one checkpoint of a state to another; applied in the order of the attributes.

    A row to delete need not be there, and one that comes may be there already.

    Attributes:
        cleared: keys, as columns ``TableColumns.key``, all of whose rows go.
        deleted: rows that go, as columns ``TableColumns.identity``.
        rows: rows that come, each in the place of the one with its identity; no identity comes twice.
    """

    cleared: pa.Table
    deleted: pa.Table
    rows: pa.Table

    @property
    def is_empty(self) -> bool:
        """Whether nothing changes."""
        return not (self.cleared.num_rows or self.deleted.num_rows or self.rows.num_rows)


@dataclass(frozen=True)
class PublishedTable:
    """A table as checkpoints record it: all that following the head needs, without the job's code.

    Attributes:
        name: of the table in its job.
        kind: of the target, ``delta_state`` or ``sql_state``.
        place: where the table is; one text a table.
        app: application id of its transactions, ``<root id>/<job>/<name>``.
        options: of the target, without secrets.
    """

    name: str
    kind: str
    place: str
    app: str
    options: dict[str, Any]

    @property
    def ways_out(self) -> str:
        """What to do where somebody else changed the table, for the end of a message."""
        job = self.app.split("/")[1]
        return (
            f"Build it anew from the state with `statelake rebuild-table {job} {self.name}`, or accept what it is "
            f"with `statelake accept-table {job} {self.name}`"
        )


class StateTable(ABC):
    """Which table a state is published to; holds configuration only."""

    kind: str

    @property
    @abstractmethod
    def place(self) -> str:
        """Where the table is, as checkpoints record it; looks at nothing."""

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """What checkpoints record besides, as JSON can hold it; no secrets."""


class TableTarget(ABC):
    """Writes tables of one kind. Every write is one transaction, which also records the checkpoint that is shown."""

    @abstractmethod
    def shown(self, table: PublishedTable) -> int | None:
        """The checkpoint that a table shows; 0 where there is a table to which nothing was published yet.

        Returns:
            None where there is no table.

        Raises:
            SinkIdentityError: it belongs to another root, job or state.
            TableChangedError: somebody else changed its rows since the last publish; names version and author where
                the table knows them, and the ways out.
        """

    @abstractmethod
    def create(self, table: PublishedTable, columns: TableColumns) -> None:
        """Make an empty table that belongs to ``table.app``; does nothing where another runner was faster."""

    @abstractmethod
    def check_columns(self, table: PublishedTable, columns: TableColumns) -> None:
        """Refuse a table that cannot hold these columns.

        Raises:
            SinkError: shows both sides, and the ways out.
        """

    @abstractmethod
    def apply(
        self,
        table: PublishedTable,
        columns: TableColumns,
        change: TableChange,
        *,
        since: int,
        checkpoint_id: int,
    ) -> None:
        """Bring a table that shows one checkpoint to another one; does nothing where it shows that or a later one.

        Args:
            since: what it shows, see ``shown``; it is left alone where it does not any more.
            checkpoint_id: what it shows afterwards; greater than ``since``.

        Raises:
            TableChangedError: somebody else changed rows of it.
            SinkError: it cannot take the rows.
            CommitFailedError: it shows neither of the two; nothing was written, so look at it again.
        """

    @abstractmethod
    def replace(
        self,
        table: PublishedTable,
        columns: TableColumns,
        rows: Iterable[pa.RecordBatch],
        *,
        checkpoint_id: int,
    ) -> None:
        """Put rows in the place of everything that a table holds, whoever wrote it, in one transaction.

        The table then belongs to ``table.app``, and is made where there is none.
        """

    @abstractmethod
    def content(self, table: PublishedTable, columns: TableColumns) -> Iterator[pa.RecordBatch]:
        """The rows that a table holds now, whoever wrote them."""

    def held(self, table: PublishedTable, rows: pa.Table) -> pa.Table:
        """Rows of the state as the table gives them back, for a comparison with ``content``.

        Most tables hold every value, so this is what is given.
        """
        return rows

    @abstractmethod
    def adopt(self, table: PublishedTable, columns: TableColumns, *, own: bool = False) -> None:
        """Take over a table that belongs to nobody or to another: it then belongs to ``table.app``.

        The caller compares its content next, and applies the difference.

        Args:
            own: whether this very job wrote its rows, as a sink of an earlier version.
        """

    def tidy(self, table: PublishedTable, columns: TableColumns) -> int:
        """Rearrange a table where that pays, changing no row; how many files were rewritten: most kinds have none."""
        return 0

    @abstractmethod
    def accept(self, table: PublishedTable) -> None:
        """Leave what others changed in a table as it is, and go on from there."""
