"""``KeysOfTables``: takes erased keys out of the tables that show states of a job.

Rows leave such a table with the publish of the checkpoint that has the keys no more. Files that still hold them then,
as a deletion vector only hides rows, are written again without them. Decision 0059.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.row_outputs import SinkKey
from state_engine.publishing.published_tables import ExistingTable, PublishedTables
from state_engine.publishing.sink_places import Declared
from state_engine.state_tables.base import KeysInTable
from state_engine.state_tables.states import PublishedState

StoredKeys = Mapping[str, pa.Table]
"""By operator, keys as they are stored, in a column ``key``."""


@dataclass(frozen=True)
class ErasedTable:
    """Rows erased from a state table (in a dry run, to be erased), and older versions that still hold them.

    Attributes:
        name: of the table in its job.
        place: where it is.
        rows: of the keys, that left it.
        files: data files of its newest version that held rows of the keys, shown or hidden, and were rewritten.
        older_files: files in its directory that hold them still: of older versions, and of writers that crashed.
        kept_until: until when ``VACUUM`` keeps the last of these; None where there are none, and for databases.
        remedy: what takes away what is left: a statement for the owner of the table; empty where nothing is.
    """

    name: str
    place: str
    rows: int
    files: int
    older_files: int = 0
    kept_until: datetime | None = None
    remedy: str = ""


@dataclass(frozen=True)
class KeysOfTables:
    """The tables of one job."""

    tables: PublishedTables
    declared: Declared

    def held(self, history: History, keys: StoredKeys) -> dict[SinkKey, KeysInTable]:
        """What the tables that show states of these operators hold of the keys, by name and place; looks only."""
        return {
            one.state.key: one.target.keys_in(one.form.columns, self._keys(one, keys))
            for one in self.tables.standing(history, self.declared)
            if one.state.operator in keys
        }

    def erase(self, history: History, keys: StoredKeys) -> None:
        for one in self.tables.standing(history, self.declared):
            if one.state.operator in keys:
                one.target.erase(one.form.columns, self._keys(one, keys))

    def following(self, history: History) -> dict[SinkKey, PublishedState]:
        return {state.key: state for state in self.tables.states(history, self.declared)}

    def _keys(self, one: ExistingTable, keys: StoredKeys) -> pa.Table:
        return one.form.identity_rows(keys[one.state.operator], key_only=True)


def erased_tables(
    before: Mapping[SinkKey, KeysInTable], after: Mapping[SinkKey, KeysInTable], *, dry_run: bool
) -> list[ErasedTable]:
    """What became of each table, from what it held before and after; in a dry run both are the same."""
    return [
        ErasedTable(
            name=name,
            place=place,
            rows=held.rows,
            files=held.files,
            older_files=(left := after.get((name, place), held)).older_files + dry_run * held.files,
            kept_until=left.kept_until,
            remedy=left.remedy,
        )
        for (name, place), held in before.items()
    ]
