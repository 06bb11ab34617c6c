"""Data files of a published Delta table that hold keys which are erased, whoever wrote them and whatever readers see.

A deletion vector hides rows and leaves them in the file; a file that left the table stays for readers of older
versions. Both are looked for in the files themselves: by the hashes in them, and by the key where there are none.
Decision 0059.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.fs as pafs
from pyroaring import BitMap64

from state_engine.core.errors import DamagedFileError
from state_engine.state_tables.base import TableColumns
from state_engine.state_tables.delta_files import FileHits, opened_file, vector_of
from state_engine.state_tables.key_columns import key_hashes, places_of, read_columns, same_rows
from state_engine.storage.delta.action_json import uri_of
from state_engine.storage.delta.kernel import TableFiles
from state_engine.storage.delta.log import DeltaLog
from state_engine.storage.state.listed_files import KeyHashes
from state_engine.storage.stores.files import join, parquet_files
from state_engine.storage.stores.parquet_reading import OpenParquet, open_parquet


@dataclass(frozen=True)
class WantedKeys:
    """Keys that are looked for in data files."""

    columns: TableColumns
    rows: pa.Table
    hashes: KeyHashes

    @classmethod
    def of(cls, columns: TableColumns, rows: pa.Table) -> WantedKeys:
        return cls(columns, rows, KeyHashes(key_hashes(rows, columns.key)))

    def places(self, file: OpenParquet) -> BitMap64:
        key, schema = self.columns.key, self.columns.schema
        places = places_of(file, self.hashes, key, schema)
        if not len(places):
            return BitMap64()
        rows = read_columns(file, key, schema).take(pa.array(places))
        return BitMap64(places[same_rows(rows, self.rows, key)].tolist())


def hits_of(files: TableFiles, keys: WantedKeys) -> Iterator[FileHits]:
    """The files of a version that hold any of the keys, with all rows that do, hidden ones included."""
    for add in files.adds:
        positions = keys.places(opened_file(uri_of(add, files.uri), add))
        if positions:
            yield FileHits(add, vector_of(files.uri, add), positions)


def older_files(files: TableFiles, keys: WantedKeys) -> dict[str, int]:
    """Files in the directory of a table that are not of this version, and hold any of the keys, or may.

    Returns:
        When each left the table, or was written where it was never in it, in milliseconds since 1970.
    """
    current = {uri_of(add, files.uri) for add in files.adds}
    removed = DeltaLog(files.uri).removals()
    held: dict[str, int] = {}
    for path, info in parquet_files(files.uri).items():
        uri = join(files.uri, path)
        if uri in current:
            continue
        with suppress(FileNotFoundError):  # VACUUM was faster
            if _may_hold(uri, keys):
                held[path] = _since_ms(path, info, removed)
    return held


def _may_hold(uri: str, keys: WantedKeys) -> bool:
    """Whether a file holds any of the keys; one that cannot be read, as a crash left it, may."""
    try:
        file = open_parquet(uri, of="a published table")
        return set(keys.columns.key) <= set(file.schema.names) and bool(keys.places(file))
    except (DamagedFileError, pa.ArrowException):
        return True


def _since_ms(path: str, info: pafs.FileInfo, removed: Mapping[str, int]) -> int:
    written_ms: int = info.mtime_ns // 1_000_000
    return max(removed.get(path, 0), written_ms)
