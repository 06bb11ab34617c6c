"""What a table must change to show another checkpoint of its state.

Where only changes were made since the checkpoint that it shows, the changelogs of these say it, and nothing else is
read. Where changes are taken back, the entries of the touched keys are read as of both checkpoints and compared. Where
the way is not known, the whole table is compared with the whole state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.keys.entry_codes import entry_codes, last_rows
from state_engine.core.keys.key_groups import KeyGroupRange
from state_engine.core.state.state_schema import StateSchema
from state_engine.core.state.state_table import CLEAR, DELETE, PUT
from state_engine.core.types.columns import one_chunk
from state_engine.core.types.ddl import parse_ddl
from state_engine.state_tables.base import TableChange, TableColumns
from state_engine.state_tables.key_columns import key_hashes
from state_engine.state_tables.states import StateWay, state_of
from state_engine.state_tables.table_form import TableForm
from state_engine.storage.layout import JobLayout
from state_engine.storage.state.base import (
    NOTHING_EXPIRES_MS,
    BaseSpec,
    ChangeOps,
    entries_of,
    read_changes,
)
from state_engine.storage.state.listed_files import AllKeys, KeyGroups, KeyHashes, ListedFile, SomeKeys
from state_engine.storage.state.located_files import state_files
from state_engine.storage.stores.files import join

KEY_GROUPS_AT_ONCE = 8
"""So many key groups of a state that is read as a whole are in memory at a time."""


PORTIONS = 32
"""A table and a state that are compared as a whole are so in portions of their keys, of which one is in memory."""


class StateReader:
    """Entries of one state of a job, as rows of a table."""

    def __init__(
        self, layout: JobLayout, path: Sequence[CheckpointRow], uid: str, state: str, *, map_key: str | None
    ) -> None:
        known = state_of(path[-1], uid, state)
        assert known is not None
        self._operator, self._schema = known
        self.form = TableForm.of(self._operator, self._schema, map_key=map_key)
        self._layout, self._path, self._uid, self._state = layout, path, uid, state

    def whole(self) -> Iterator[pa.Table]:
        """All rows, some key groups at a time."""
        count = self._operator.max_parallelism
        for start in range(0, count, KEY_GROUPS_AT_ONCE):
            some = KeyGroupRange(start, min(start + KEY_GROUPS_AT_ONCE, count) - 1)
            rows = self._rows_of(self._path, KeyGroups(count, (some,)), within=some)
            if rows.num_rows:
                yield rows

    def change(self, way: StateWay, before: Sequence[CheckpointRow]) -> TableChange:
        """What a known way changes."""
        if way.back or self.form.shape == "list":
            return self._compared(way, before)
        form, newest = self.form, newest_of(self.form, self._changes(way))
        return TableChange(
            cleared=form.identity_rows(newest.cleared, key_only=True),
            deleted=form.identity_rows(newest.deleted),
            rows=form.rows(newest.written),
        )

    # -- inside ----------------------------------------------------------------------------------------------------

    def _compared(self, way: StateWay, before: Sequence[CheckpointRow]) -> TableChange:
        hashes = KeyHashes(self._changes(way)["key_hash"].to_numpy())
        shown = self._rows_of(before, hashes, expired=True)
        alive, new = (self._rows_of(path, hashes) for path in (before, self._path))
        columns = self.form.columns
        # what has expired may stand in the table, and need not
        return replace(compared(columns, alive, new), deleted=compared(columns, shown, new).deleted)

    def _spec(self, row: CheckpointRow, *, expired: bool = False) -> BaseSpec:
        return BaseSpec(
            key_type=parse_ddl(self._operator.key_schema).arrow,
            states=(self._schema,),
            max_parallelism=self._operator.max_parallelism,
            clock_ms=NOTHING_EXPIRES_MS if expired else row.clock_ms,
            watermark_ms=None if expired else row.watermark_of(self._operator.uid),
        )

    def _changes(self, way: StateWay) -> pa.Table:
        directory = self._layout.changelog(self._uid)
        changed = [(row.checkpoint_id, row, False) for row in (*way.back, *way.forth)]
        left_out = [(compacted_id, row, True) for compacted_id, row in way.expired]
        files = [
            ListedFile.recorded(join(directory, file.path), file, of=f"checkpoint {row.checkpoint_id}")
            for _, row, expired in sorted([*changed, *left_out], key=lambda one: (one[0], one[2]))
            if (operator := row.operator(self._uid)) is not None
            for file in (operator.expired if expired else operator.changelog)
        ]
        return changes_in(self._spec(self._path[-1]), self._schema, files)

    def _rows_of(
        self,
        path: Sequence[CheckpointRow],
        keys: SomeKeys,
        *,
        within: KeyGroupRange | None = None,
        expired: bool = False,
    ) -> pa.Table:
        """Rows of some keys at the end of a path; on request also what has expired, and was not left out yet."""
        files = [
            file.listed
            for file in state_files(self._layout, path, self._uid)
            if within is None or (file.key_group_min <= within.end and within.start <= file.key_group_max)
        ]
        spec = self._spec(path[-1], expired=expired) if path else None
        entries = None
        if spec is not None and state_of(path[-1], self._uid, self._state) is not None:
            entries = entries_of(spec, self._schema, read_changes(spec, files, keys))
        if entries is None:
            return self.form.columns.schema.empty_table()
        return self.form.rows(entries)


class NewestChanges(NamedTuple):
    """Changes of a state that follow each other, as what is left of them: one for each entry.

    Attributes:
        cleared: of keys that lose all entries from before.
        deleted: of entries that go.
        written: of entries that come, or have another value.
    """

    cleared: pa.Table
    deleted: pa.Table
    written: pa.Table


def changes_in(spec: BaseSpec, schema: StateSchema, files: Sequence[ListedFile]) -> pa.Table:
    changes = read_changes(spec, files, AllKeys())
    return changes.filter(pc.equal(changes["state"], schema.column_name)).combine_chunks()


def newest_of(form: TableForm, changes: pa.Table) -> NewestChanges:
    """What is left of changes of a value or a map."""
    keys = entry_codes([one_chunk(changes["key"])])
    done = ChangeOps(keys, one_chunk(changes["op"]))
    cleared = last_rows(keys, np.flatnonzero(done.are(CLEAR)))
    counting = np.flatnonzero(done.after_clear() & ~done.are(CLEAR))
    live = changes.take(pa.array(counting))
    codes = [pa.array(keys[counting])]
    if form.shape == "map":
        codes.append(one_chunk(live[form.column]).field("key"))
    last = np.sort(last_rows(entry_codes(codes)))
    deleted, written = (live.take(pa.array(last[done.are(op)[counting[last]]])) for op in (DELETE, PUT))
    return NewestChanges(changes.take(pa.array(np.sort(cleared[cleared >= 0]))), deleted, written)


def compared_by_portions(
    columns: TableColumns, old: Iterable[pa.Table], new: Iterable[pa.Table]
) -> TableChange:
    """As ``compared``, for rows of which not all are in memory: they wait on the disk, by the hash of their key."""
    with TemporaryDirectory() as directory:
        waiting = [
            _portions(columns, rows, Path(directory), name) for name, rows in (("old", old), ("new", new))
        ]
        parts = [compared(columns, *(_portion(columns, of[n]) for of in waiting)) for n in range(PORTIONS)]
    return TableChange(
        cleared=pa.concat_tables([part.cleared for part in parts]).combine_chunks(),
        deleted=pa.concat_tables([part.deleted for part in parts]).combine_chunks(),
        rows=pa.concat_tables([part.rows for part in parts]).combine_chunks(),
    )


def _portions(columns: TableColumns, rows: Iterable[pa.Table], directory: Path, name: str) -> list[Path]:
    paths = [directory / f"{name}-{n}.arrow" for n in range(PORTIONS)]
    with ExitStack() as files:
        writers: dict[int, pa.RecordBatchStreamWriter] = {}
        for part in rows:
            portion = key_hashes(part, columns.key).view(np.uint64) % PORTIONS
            for n in np.unique(portion).tolist():
                if n not in writers:
                    writers[n] = files.enter_context(pa.ipc.new_stream(str(paths[n]), columns.schema))
                writers[n].write_table(part.filter(pa.array(portion == n)))
    return paths


def _portion(columns: TableColumns, path: Path) -> pa.Table:
    if not path.exists():
        return columns.schema.empty_table()
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as reader:
        return reader.read_all().combine_chunks()


def compared(columns: TableColumns, old: pa.Table, new: pa.Table) -> TableChange:
    """What makes rows of a table others, where both are known.

    Example:
        >>> columns = TableColumns(pa.schema([("k", pa.int64()), ("v", pa.int64())]), ("k",))
        >>> old, new = ([{"k": 1, "v": 1}, {"k": 2, "v": 2}], [{"k": 2, "v": 2}, {"k": 3, "v": 3}])
        >>> change = compared(columns, *(pa.Table.from_pylist(rows, columns.schema) for rows in (old, new)))
        >>> change.deleted.to_pylist(), change.rows.to_pylist()
        ([{'k': 1}], [{'k': 3, 'v': 3}])
    """
    codes = entry_codes(
        [pa.concat_arrays([one_chunk(old[name]), one_chunk(new[name])]) for name in columns.identity]
    )
    place = np.full(int(codes.max()) + 1 if len(codes) else 0, -1)
    place[codes[: old.num_rows]] = np.arange(old.num_rows)
    several = np.bincount(codes[: old.num_rows], minlength=len(place)) > 1
    place[several] = -1  # somebody else may have put a row twice: one takes the place of all of them
    at = place[codes[old.num_rows :]]  # of each new row: that of the old one
    stays = np.zeros(len(place), bool)
    stays[codes[old.num_rows :]] = True
    known = np.flatnonzero(at >= 0)
    same = np.zeros(new.num_rows, bool)
    same[known] = _equal_rows(old.take(pa.array(at[known])), new.take(pa.array(known)))
    return TableChange(
        cleared=old.select(columns.key).slice(0, 0),
        deleted=old.select(columns.identity).filter(pa.array(~stays[codes[: old.num_rows]])),
        rows=new.filter(pa.array(~same)),
    )


def _equal_rows(old: pa.Table, new: pa.Table) -> np.ndarray[Any, Any]:
    same = np.ones(old.num_rows, bool)
    for name in new.schema.names:
        same &= _equal(one_chunk(old[name]), one_chunk(new[name]))
    return same


def _equal(old: pa.Array, new: pa.Array) -> np.ndarray[Any, Any]:
    if pa.types.is_nested(old.type) or pa.types.is_floating(old.type):  # also NaN, which equals itself here
        pairs = zip(old.to_pylist(), new.to_pylist(), strict=True)
        return np.fromiter((repr(a) == repr(b) for a, b in pairs), bool, len(old))
    both = pc.and_(pc.is_null(old), pc.is_null(new))
    equal: np.ndarray[Any, Any] = pc.or_(pc.fill_null(pc.equal(old, new), False), both).to_numpy(
        zero_copy_only=False
    )
    return equal
