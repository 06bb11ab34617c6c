"""Data files of a published Delta table: which rows a change takes away, and the actions by which they go."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from state_engine.state_tables.base import TableChange, TableColumns
from state_engine.state_tables.key_columns import key_hashes, places_of, read_columns, same_rows
from state_engine.storage.delta.action_json import Action, recorded_rows, uri_of
from state_engine.storage.delta.deletion_vectors import read_vector, written
from state_engine.storage.delta.kernel import TableFiles
from state_engine.storage.state.listed_files import KeyHashes
from state_engine.storage.stores.parquet_reading import OpenParquet, open_parquet

ROWS_OF_A_FILE = 200_000


@dataclass(frozen=True)
class FileHits:
    """Rows of one file that are to go.

    Attributes:
        gone: positions of rows that went before.
        positions: of the rows; of keys that are erased, also of those that went before.
    """

    add: Action
    gone: BitMap64
    positions: BitMap64

    @property
    def vector(self) -> BitMap64:
        """Positions of all rows that do not count afterwards."""
        return self.gone | self.positions

    @property
    def shown(self) -> BitMap64:
        """Positions of those rows that count now."""
        return self.positions - self.gone


def changed_rows(files: TableFiles, columns: TableColumns, change: TableChange) -> Iterator[FileHits]:
    """The rows that a change takes away or replaces, file by file."""
    parts = [change.cleared, change.deleted.select(columns.key), change.rows.select(columns.key)]
    wanted = KeyHashes(np.concatenate([key_hashes(part, columns.key) for part in parts]))
    replaced = change.rows.select(columns.identity)
    for add in files.adds:
        uri = uri_of(add, files.uri)
        file = opened_file(uri, add)
        places = places_of(file, wanted, columns.key, columns.schema)
        gone = vector_of(files.uri, add) if len(places) else BitMap64()
        places = np.array([p for p in places.tolist() if p not in gone], np.int64)
        if not len(places):
            continue
        rows = read_columns(file, columns.identity, columns.schema).take(pa.array(places))
        doomed = same_rows(rows, change.cleared, columns.key)
        doomed |= same_rows(rows, change.deleted, columns.identity)
        doomed |= same_rows(rows, replaced, columns.identity)
        if doomed.any():
            yield FileHits(add, gone, BitMap64(places[doomed].tolist()))


def marked(table: str, hits: Sequence[FileHits]) -> tuple[list[Action], list[str]]:
    """Actions that take rows away by deletion vectors, and the file of these: Spark's VACUUM takes none in the log."""
    actions = [remove_action(hit.add) for hit in hits]
    counts = [rows_in(table, hit.add) for hit in hits]
    left = [(hit.add, rows, hit.vector) for hit, rows in zip(hits, counts, strict=True)]
    left = [(add, rows, vector) for add, rows, vector in left if len(vector) < rows]
    if not left:
        return actions, []
    descriptors, path = written(table, [vector for _, _, vector in left])
    for (add, rows, _), descriptor in zip(left, descriptors, strict=True):
        actions.append(add_action(add, rows, descriptor))
    return actions, [path]


def rows_in(table: str, add: Action) -> int:
    left = recorded_rows(add)
    return (
        opened_file(uri_of(add, table), add).metadata.num_rows if left is None else left + deleted_rows(add)
    )


def deleted_rows(add: Action) -> int:
    """Rows of a file that its deletion vector takes away."""
    return int((add.get("deletionVector") or {}).get("cardinality", 0))


def remove_action(add: Action) -> Action:
    extra = {"deletionTimestamp": now_ms(), "dataChange": True, "extendedFileMetadata": True}
    return {"remove": _kept(add, "deletionVector") | extra}


def add_action(add: Action, rows: int, descriptor: Action) -> Action:
    """A file of so many rows, deleted ones included, with another deletion vector."""
    stats = f'{{"numRecords": {rows}, "tightBounds": false}}'
    extra = {"dataChange": True, "deletionVector": descriptor, "stats": stats}
    return {"add": _kept(add, "modificationTime") | extra}


def _kept(add: Action, more: str) -> Action:
    """What stays of an action on a file, whatever becomes of it, and one field more."""
    names = ("path", "partitionValues", "size", "tags", "baseRowId", "defaultRowCommitVersion", more)
    return {name: add[name] for name in names if add.get(name) is not None}


def vector_of(table: str, add: Action) -> BitMap64:
    descriptor = add.get("deletionVector")
    return read_vector(table, descriptor) if descriptor else BitMap64()


def rows_left(table: str, add: Action, schema: pa.Schema) -> pa.Table:
    return rows_but(table, add, schema, vector_of(table, add))


def rows_but(table: str, add: Action, schema: pa.Schema, gone: BitMap64) -> pa.Table:
    """The rows of a file without those at some positions."""
    rows = read_columns(opened_file(uri_of(add, table), add), schema.names, schema)
    if not gone:
        return rows
    mask = np.ones(rows.num_rows, bool)
    mask[np.fromiter(gone, np.int64, len(gone))] = False
    return rows.filter(pa.array(mask))


def opened_file(uri: str, add: Action) -> OpenParquet:
    """A file of a table, of the size that the log says."""
    return open_parquet(uri, size=int(add["size"]), of="a published table")


def deleted_share(add: Action) -> float:
    """The share of a file's rows that its deletion vector takes away; 0 where it is not known."""
    left = recorded_rows(add)
    return (
        deleted_rows(add) / (left + deleted_rows(add))
        if left is not None and left + deleted_rows(add)
        else 0.0
    )


def parts_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        waiting.append(batch)
        count += batch.num_rows
        if count >= ROWS_OF_A_FILE:
            yield pa.Table.from_batches(waiting)
            waiting, count = [], 0
    if count:
        yield pa.Table.from_batches(waiting)


def now_ms() -> int:
    """The time of this machine, in milliseconds since 1970."""
    return int(time.time() * 1000)
