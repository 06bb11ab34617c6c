"""Which rows of a table have certain keys: by the hash of the key first, and then by the whole key.

Data files of a published table hold the hash of each row's key in a column that is not in the table's schema, so
readers of the table never see it, and are sorted by it. A file without it, because somebody rewrote the table, is
hashed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from state_engine.core.keys.entry_codes import entry_codes
from state_engine.core.keys.key_arrays import canonical_array, hash_columns
from state_engine.core.types.columns import one_chunk
from state_engine.storage.state.listed_files import KeyHashes
from state_engine.storage.stores.parquet_reading import OpenParquet

KEY_HASH = "_key_hash"
"""The column of hashes in data files."""
Mask = np.ndarray[Any, Any]


def key_hashes(rows: pa.Table, key: Sequence[str]) -> np.ndarray[Any, Any]:
    if not rows.num_rows:
        return np.zeros(0, np.int64)
    return hash_columns([canonical_array(one_chunk(rows[name])) for name in key])


def sorted_with_hashes(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Rows as a data file holds them."""
    hashes = key_hashes(rows, key)
    order = pa.array(np.argsort(hashes, kind="stable"))
    return rows.append_column(KEY_HASH, pa.array(hashes)).take(order)


def read_columns(file: OpenParquet, names: Sequence[str], schema: pa.Schema) -> pa.Table:
    """Some columns of a data file in the types of the table: other writers may store theirs otherwise."""
    return file.read(list(names)).cast(pa.schema([schema.field(name) for name in names]))


def hashes_in(file: OpenParquet, key: Sequence[str], schema: pa.Schema) -> np.ndarray[Any, Any]:
    """The hash of each row's key in a data file."""
    if KEY_HASH in file.schema.names:
        hashes: np.ndarray[Any, Any] = file.read([KEY_HASH])[KEY_HASH].to_numpy()
        return hashes
    return key_hashes(read_columns(file, key, schema), key)


def may_hold(file: OpenParquet, keys: KeyHashes) -> bool:
    """Whether a data file may hold one of some keys, by the statistics in its footer."""
    if KEY_HASH not in file.schema.names:
        return True
    last = file.metadata.num_columns - 1  # of the columns inside of records, too
    for number in range(file.row_groups):
        column = file.metadata.row_group(number).column(last)
        statistics = column.statistics if column.path_in_schema == KEY_HASH else None
        if statistics is None or not statistics.has_min_max:
            return True
        first, after = np.searchsorted(keys.ordered, [statistics.min, statistics.max + 1])
        if first < after:
            return True
    return False


def places_of(
    file: OpenParquet, keys: KeyHashes, key: Sequence[str], schema: pa.Schema
) -> np.ndarray[Any, Any]:
    """Positions of the rows of a data file that may have one of some keys, in order."""
    if not may_hold(file, keys):
        return np.zeros(0, np.int64)
    return np.flatnonzero(keys.hold(hashes_in(file, key, schema)))


def same_rows(rows: pa.Table, wanted: pa.Table, names: Sequence[str]) -> Mask:
    """Which rows equal, in some columns, one of the wanted ones.

    Example:
        >>> same_rows(pa.table({"k": [1, 2], "v": [0, 0]}), pa.table({"k": [2, 3]}), ["k"]).tolist()
        [False, True]
    """
    if not rows.num_rows or not wanted.num_rows:
        return np.zeros(rows.num_rows, bool)
    columns = [
        pa.concat_arrays(
            [one_chunk(wanted[name]), one_chunk(rows[name]).cast(wanted.schema.field(name).type)]
        )
        for name in names
    ]
    codes = entry_codes(columns)
    known = np.zeros(int(codes.max()) + 1, bool)
    known[codes[: wanted.num_rows]] = True
    same: Mask = known[codes[wanted.num_rows :]]
    return same
