"""Files of the ``checkpoints`` table: rows go in with their digests, and only intact ones come out.

No row lists these files, so the name of each ends with the checksum of its footer, which the log of the table thereby
holds. A file that something else wrote (``OPTIMIZE``, a tool of the user) has another name: its rows are still known by
their digests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from itertools import groupby
from typing import Any

import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import ROW_TYPE, CheckpointRow, DataFile
from state_engine.core.errors import DamagedFileError, MissingFilesError, RootError
from state_engine.storage.row_digest import DIGEST, is_intact, row_digest
from state_engine.storage.stores.files import WrittenFile, join
from state_engine.storage.stores.in_threads import in_threads
from state_engine.storage.stores.parquet_reading import damaged, read_parquet

_FOOTER = re.compile(r"\.([0-9a-f]{8})\.parquet$")
Write = Callable[[pa.Table, Callable[[int], str]], WrittenFile]
"""Writes a file whose name its footer decides: ``files.write_parquet``."""


def with_digests(rows: pa.Table) -> pa.Table:
    digests = pa.array([row_digest(row) for row in plain_rows(rows)], pa.string())
    return rows.set_column(rows.schema.get_field_index(DIGEST), rows.schema.field(DIGEST), digests)


def write_rows(rows: pa.Table, uri: str, name: str, *, write: Write) -> DataFile:
    """Write rows to a new file of the table, which no reader sees yet."""
    file = write(rows, lambda footer: join(uri, f"{name}.{footer:08x}.parquet"))
    return DataFile(file.uri.removeprefix(f"{uri}/"), file.bytes, rows.num_rows, 0, footer=file.footer)


def read_rows(uri: str, name: str) -> pa.Table:
    """The rows of one file. Raises MissingFilesError."""
    match, path = _FOOTER.search(name), join(uri, name)
    try:
        return read_parquet(path, footer=int(match[1], 16) if match else None, of="rows of checkpoints")
    except FileNotFoundError:
        raise MissingFilesError(
            f"rows of checkpoints: {path} is gone: somebody deleted it, or a power cut took it. Nothing was done. "
            "`statelake doctor --repair` leaves the newest one out, where no sink shows it; otherwise put the file "
            "back from a backup of the root, or restore a savepoint into another root"
        ) from None


def read_tables(uri: str, names: Iterable[str]) -> list[pa.Table]:
    """The rows of several files, one table for neighbours of one schema, in the order of the files.

    Files that others wrote may have other Arrow types, as the time stamps of ``OPTIMIZE``. Errors: see ``read_rows``.
    """
    tables = in_threads(partial(read_rows, uri), names)
    return [
        pa.concat_tables(same).combine_chunks() for _, same in groupby(tables, lambda table: table.schema)
    ]


def read_checkpoints(uri: str, names: Iterable[str]) -> list[CheckpointRow]:
    """The checkpoints of several files, in the order of the files.

    Rows are decoded together: most files hold one, and the costs are those of a column, not of a row.
    """
    return [row for table in read_tables(uri, names) for row in checkpoints_in(table, where=uri)]


def checkpoints_in(table: pa.Table, *, where: str) -> list[CheckpointRow]:
    rows: list[CheckpointRow] = []
    try:
        for batch in table.to_batches():
            rows += ROW_TYPE.from_arrow(batch.to_struct_array())
    except RootError:
        for plain in plain_rows(table):
            if not is_intact(plain):
                raise damaged_row(where, plain["checkpoint_id"], plain["job"]) from None
        raise
    for row in rows:
        if not is_intact(row):
            raise damaged_row(where, row.checkpoint_id, row.job)
    return rows


def plain_rows(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_pylist(maps_as_pydicts="strict")
    return rows


def damaged_row(where: str, checkpoint_id: int, job: str) -> DamagedFileError:
    """The error for a row that is not the one that was committed."""
    of = f"the row of checkpoint {checkpoint_id} of job '{job}'"
    return damaged(where, "its digest is not that of its content", of=of)
