"""A table that shows a keyed state, and the ways in which it gets from one checkpoint to another.

    StateTable       what a job says: which table, and how it is written
    TableColumns     its columns, and which of them identify a row
    TableChange      the difference between two checkpoints of the state, by key
    TableReport        how many rows that takes
    ShownCheckpoint  which checkpoint it shows
    TableTarget      applies a change to a table, in one transaction that also records the checkpoint

Flink has no counterpart: its upsert sinks see every change once and cannot go back.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import (
    MissingFilesError,
    RootError,
    SinkError,
    StatelakeError,
    StorageError,
)
from state_engine.sinks.row_rules import RowRule


@dataclass(frozen=True)
class TableColumns:
    """The columns of a table that shows a state.

    Attributes:
        schema: all of them, in order, with the types in which they are stored.
        entry: those that, with the key, identify a row: the key of a map's entry; none for other states.
    """

    schema: pa.Schema
    key: tuple[str, ...]
    entry: tuple[str, ...] = ()

    @property
    def identity(self) -> tuple[str, ...]:
        return (*self.key, *self.entry)


@dataclass(frozen=True)
class TableChange:
    """What brings a table from one checkpoint of a state to another; applied in the order of the attributes.

    A row to delete need not be there, and one that comes may be there already.

    Attributes:
        cleared: keys, as columns ``TableColumns.key``, all of whose rows go.
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
class ShownCheckpoint:
    """The checkpoint that a table shows.

    Attributes:
        checkpoint_id: its number; 0 where nothing was published yet.
        write_number: differs for another checkpoint of that number, which a root that was put back from a backup has.
        unseen: why it is not known whether others changed rows since; empty where it is known that nobody did.
    """

    checkpoint_id: int
    write_number: int = 0
    unseen: str = ""

    @staticmethod
    def of(row: CheckpointRow) -> ShownCheckpoint:
        digest = hashlib.sha256(row.write_id.encode()).digest()
        return ShownCheckpoint(row.checkpoint_id, int.from_bytes(digest[:8]) >> 1)

    def is_same(self, other: ShownCheckpoint) -> bool:
        return (self.checkpoint_id, self.write_number) == (other.checkpoint_id, other.write_number)


@dataclass(frozen=True)
class PublishedTable:
    """A table as checkpoints record it: all that following the head needs, without the job's code.

    Attributes:
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
            f"Rebuild it from the state with {self.rebuild}, or accept what it is with "
            f"`statelake accept-table {job} {self.name}`"
        )

    @property
    def rebuild(self) -> str:
        """The command that makes the table again from the state, for messages."""
        return f"`statelake rebuild-table {self.app.split('/')[1]} {self.name}`"


@dataclass(frozen=True)
class TableReport:
    """Rows written to a state table, or to be written in a dry run.

    Attributes:
        name: of the table.
        kind: ``delta_state`` or ``sql_state``.
        place: where it is.
        rows: that come, or replace others.
        deleted: rows that go, and keys all of whose rows go.
        whole: why the whole table was compared, or built again; empty where it was not.
        problem: why it stayed behind, and the ways out; empty where it did not.
    """

    name: str
    kind: str
    place: str
    rows: int
    deleted: int
    whole: str = ""
    problem: str = ""

    @property
    def difference(self) -> str:
        """How a table differs from its state, as part of a sentence.

        Example:
            >>> TableReport("last", "delta_state", "/tables/last", rows=1, deleted=2_000).difference
            '1 row is missing or different, 2,000 rows are too many'
        """
        missing = counted(self.rows, "row is missing or different", "rows are missing or different")
        return f"{missing}, {counted(self.deleted, 'row is too many', 'rows are too many')}"


@dataclass(frozen=True)
class KeysInTable:
    """What a table holds of some keys.

    Attributes:
        files: data files of its newest version that hold any row of the keys, also one that no reader sees.
        older_files: other files in its directory that hold any: of older versions, and of writers that crashed.
        kept_until: until when ``VACUUM`` keeps the last of all these files, once the newest version is without; None
            where there are none, or the table has no versions.
        remedy: what takes away what is left then; empty where nothing is left.
    """

    rows: int
    files: int
    older_files: int = 0
    kept_until: datetime | None = None
    remedy: str = ""


class StateTable(ABC):
    """Which table a state is published to; holds configuration only."""

    kind: str

    @property
    @abstractmethod
    def place(self) -> str:
        """Where the table is, as checkpoints record it; asks the catalog where the job has its name."""

    @property
    def shown(self) -> str:
        """Display name of the table, as the job names it; does not access storage."""
        return self.place

    @abstractmethod
    def check_names(self, columns: Sequence[pa.Field], *, what: str) -> None:
        """Refuse names of columns that no such table can have; looks at none.

        Args:
            what: has them, for messages.

        Raises:
            ConfigurationError: says which, and the way out.
        """

    def row_rules(self, schema: pa.Schema, offered: Callable[[], pa.Table]) -> Sequence[RowRule]:
        """Rules of the table, as it is now, for rows of a keyed sink; most tables have none.

        Args:
            schema: of the rows.
            offered: reads those of the micro-batch, for rules that only the table's own engine can judge.
        """
        return ()

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """What checkpoints record besides, as JSON can hold it; no secrets."""


class TableTarget(ABC):
    """Writes one table. Every write is one transaction, which also records the checkpoint that is shown.

    Attributes:
        table: the table.
    """

    table: PublishedTable

    @abstractmethod
    def shown(self, *, changed: bool = False) -> ShownCheckpoint | None:
        """The checkpoint that a table shows.

        Args:
            changed: give it even if another writer changed rows.

        Returns:
            None where there is no table.

        Raises:
            SinkIdentityError: it belongs to another root, job or state.
            TableChangedError: somebody else changed its rows since the last publish; names version and author where
                the table knows them, and the ways out.
        """

    @abstractmethod
    def create(self, columns: TableColumns) -> None:
        """Make an empty table that belongs to ``table.app``; does nothing where another runner was faster."""

    @abstractmethod
    def check_columns(self, columns: TableColumns) -> str:
        """Refuse a table that cannot hold these columns.

        Returns:
            What in its columns ``replace`` changes and ``apply`` cannot; empty where ``apply`` will do.

        Raises:
            SinkError: shows both sides, and the ways out.
        """

    @abstractmethod
    def apply(
        self, columns: TableColumns, change: TableChange, *, since: ShownCheckpoint, to: ShownCheckpoint
    ) -> None:
        """Bring a table that shows one checkpoint to another one; does nothing where it shows that or a later one.

        Args:
            since: what it shows, see ``shown``; it is left alone where it does not any more.
            to: what it shows afterwards. Where the root was put back from a backup, that may be an earlier number.

        Raises:
            TableChangedError: another writer changed its rows.
            SinkError: it cannot take the rows.
            CommitFailedError: it shows neither of the two; nothing was written, so look at it again.
        """

    @abstractmethod
    def replace(
        self,
        columns: TableColumns,
        rows: Iterable[pa.RecordBatch],
        *,
        to: ShownCheckpoint,
        since: ShownCheckpoint | None = None,
    ) -> None:
        """Put rows in the place of everything that a table holds, in one transaction.

        The table then belongs to ``table.app``, and is made where there is none. One that is its own already gets the
        columns of the state, too.

        Args:
            to: what it shows afterwards.
            since: what it shows; as in ``apply`` it is left alone where it does not any more, and what others changed
                is refused. None to replace it whatever it shows, and whoever wrote it.
        """

    @abstractmethod
    def content(self, columns: TableColumns) -> Iterator[pa.RecordBatch]:
        """The rows that a table holds now, whoever wrote them."""

    def held(self, rows: pa.Table) -> pa.Table:
        """Rows of the state as the table gives them back, for a comparison with ``content``.

        Most tables hold every value, so this is what is given.
        """
        return rows

    def lacks(self, columns: TableColumns) -> str:
        """Why all rows have to be compared although the state has the columns that it had: somebody dropped some.

        Empty where none is missing; most kinds refuse such a table in ``check_columns``.
        """
        return ""

    @abstractmethod
    def adopt(self, columns: TableColumns) -> None:
        """Take over a table that belongs to nobody or to another: it then belongs to ``table.app``.

        The caller compares its content next, and applies the difference.
        """

    def tidy(self, columns: TableColumns) -> int:
        """Rearrange a table where that pays, changing no row; how many files were rewritten: most kinds have none."""
        return 0

    @abstractmethod
    def keys_in(self, columns: TableColumns, keys: pa.Table) -> KeysInTable:
        """What a table still holds of some keys, as readers see them and physically; looks only."""

    @abstractmethod
    def erase(self, columns: TableColumns, keys: pa.Table) -> None:
        """Take all rows of some keys out of a table and out of its files; it shows the checkpoint that it showed.

        Raises:
            TableChangedError, SinkIdentityError: see ``shown``; nothing was written.
        """

    @abstractmethod
    def accept(self) -> None:
        """Leave what others changed in a table as it is, and go on from there."""


TableTargets = Mapping[str, Callable[[PublishedTable], TableTarget]]
"""What writes a table, by kind."""

READING_FAILS = (StatelakeError, OSError, pa.ArrowException)
"""What comes of a table that cannot be read or written."""


def is_damage(error: Exception) -> bool:
    """Whether a table cannot be read or written at all, rather than refused.

    Example:
        >>> is_damage(FileNotFoundError("a.parquet")), is_damage(SinkError("it has other columns"))
        (True, False)
    """
    if not isinstance(error, StatelakeError):
        return True
    return isinstance(error, MissingFilesError | RootError | StorageError) or type(error) is StatelakeError


def damaged_table(table: PublishedTable, error: Exception) -> SinkError:
    """The error for a table that cannot be read or written at all, with the ways out."""
    if isinstance(
        error, StorageError
    ):  # it names its own way out, and nothing shows that the table is damaged
        why = str(error).rstrip(".")
        return SinkError(
            f"table '{table.name}': {table.place} cannot be reached: {why}. That run brings it up to date."
        )
    return SinkError(
        f"table '{table.name}': {table.place} is damaged, or cannot be reached: {error}. Once it can be, rebuild it "
        f"from the state with {table.rebuild}; or delete the table, and the next run builds it."
    )
