"""Rows of the data files of a Delta table that shows a state: which of them a change takes away, and how they go."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from state_engine.published.base import TableChange, TableColumns
from state_engine.published.key_columns import hashes_in, key_hashes, may_hold, read_columns, same_rows
from state_engine.storage.delta.action_json import Action, recorded_rows, uri_of
from state_engine.storage.delta.deletion_vectors import INLINE_BYTES, inline, read_vector, written
from state_engine.storage.delta.kernel import TableFiles
from state_engine.storage.parquet_reading import OpenParquet, open_parquet
from state_engine.storage.state.changelog import KeyHashes


@dataclass(frozen=True)
class Hits:
    """Rows of one file that go.

    Attributes:
        add: what the log says of the file.
        gone: positions of rows that went before.
        positions: of the rows.
    """

    add: Action
    gone: BitMap64
    positions: BitMap64

    @property
    def vector(self) -> BitMap64:
        """Positions of all rows that do not count afterwards."""
        return self.gone | self.positions


def hits_of(files: TableFiles, columns: TableColumns, change: TableChange) -> Iterator[Hits]:
    """The rows that a change takes away or replaces, file by file."""
    parts = [change.cleared, change.deleted.select(columns.key), change.rows.select(columns.key)]
    wanted = KeyHashes.of(np.concatenate([key_hashes(part, columns.key) for part in parts]))
    replaced = change.rows.select(columns.identity)
    for add in files.adds:
        uri = uri_of(add, files.uri)
        file = _opened(uri, add)
        if not may_hold(file, wanted):
            continue
        places = np.flatnonzero(wanted.hold(hashes_in(file, columns.key, columns.schema)))
        gone = _vector(files.uri, add) if len(places) else BitMap64()
        places = np.array([p for p in places.tolist() if p not in gone], np.int64)
        if not len(places):
            continue
        rows = read_columns(file, columns.identity, columns.schema).take(pa.array(places))
        doomed = same_rows(rows, change.cleared, columns.key)
        doomed |= same_rows(rows, change.deleted, columns.identity)
        doomed |= same_rows(rows, replaced, columns.identity)
        if doomed.any():
            yield Hits(add, gone, BitMap64(places[doomed].tolist()))


def marked(table: str, hits: Sequence[Hits]) -> tuple[list[Action], list[str]]:
    """Actions that take rows away by deletion vectors, and the file of these if they do not stand in the log."""
    actions = [removed(hit.add) for hit in hits]
    counts = [_rows_in(table, hit.add) for hit in hits]
    left = [(hit.add, rows, hit.vector) for hit, rows in zip(hits, counts, strict=True)]
    left = [(add, rows, vector) for add, rows, vector in left if len(vector) < rows]
    vectors = [vector for _, _, vector in left]
    descriptors = [inline(vector) for vector in vectors]
    files: list[str] = []
    if sum(one["sizeInBytes"] for one in descriptors) > INLINE_BYTES:
        descriptors, path = written(table, vectors)
        files = [path]
    for (add, rows, _), descriptor in zip(left, descriptors, strict=True):
        actions.append(_added_again(add, rows, descriptor))
    return actions, files


def _rows_in(table: str, add: Action) -> int:
    """Rows of a file, deleted ones included."""
    left = recorded_rows(add)
    return _opened(uri_of(add, table), add).metadata.num_rows if left is None else left + _deleted(add)


def _deleted(add: Action) -> int:
    return int((add.get("deletionVector") or {}).get("cardinality", 0))


def removed(add: Action) -> Action:
    """The action that takes a file out of the table."""
    extra = {"deletionTimestamp": now_ms(), "dataChange": True, "extendedFileMetadata": True}
    return {"remove": _kept(add, "deletionVector") | extra}


def _added_again(add: Action, rows: int, descriptor: Action) -> Action:
    """A file of so many rows, deleted ones included, with another deletion vector."""
    stats = f'{{"numRecords": {rows}, "tightBounds": false}}'
    extra = {"dataChange": True, "deletionVector": descriptor, "stats": stats}
    return {"add": _kept(add, "modificationTime") | extra}


def _kept(add: Action, more: str) -> Action:
    """What stays of an action on a file, whatever becomes of it, and one field more."""
    names = ("path", "partitionValues", "size", "tags", "baseRowId", "defaultRowCommitVersion", more)
    return {name: add[name] for name in names if add.get(name) is not None}


def _vector(table: str, add: Action) -> BitMap64:
    """Positions of the rows of a file that do not count."""
    descriptor = add.get("deletionVector")
    return read_vector(table, descriptor) if descriptor else BitMap64()


def rows_left(table: str, add: Action, schema: pa.Schema) -> pa.Table:
    """The rows of a file that count."""
    return rows_but(table, add, schema, _vector(table, add))


def rows_but(table: str, add: Action, schema: pa.Schema, gone: BitMap64) -> pa.Table:
    """The rows of a file without those at some positions."""
    rows = read_columns(_opened(uri_of(add, table), add), schema.names, schema)
    if not gone:
        return rows
    mask = np.ones(rows.num_rows, bool)
    mask[np.fromiter(gone, np.int64, len(gone))] = False
    return rows.filter(pa.array(mask))


def _opened(uri: str, add: Action) -> OpenParquet:
    return open_parquet(uri, size=int(add["size"]), of="a published table")


def deleted_share(add: Action) -> float:
    """Of the rows of a file, the share that is deleted; 0 where that is not known."""
    left = recorded_rows(add)
    return _deleted(add) / (left + _deleted(add)) if left is not None and left + _deleted(add) else 0.0


def now_ms() -> int:
    """The time that actions of the log bear."""
    return int(time.time() * 1000)
