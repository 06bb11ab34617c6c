"""Files of sorted rows in blocks that need no decoding: a few rows are found by binary search, and only they are read.

    blocks                   Arrow record batches of up to 128 rows, as they lie in memory, one run after the other
    index                    an Arrow table with a row for each run: its schema, and for each block the first value of
                             the column that the run is sorted by, where the block ends, and its CRC-32
    length, CRC-32, mark     of the index; 20 bytes

Everything that is read is compared with its checksum before it is parsed. Plays the part of the block-based tables
under Flink's RocksDB backend, with their data blocks and their index block.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4
from zlib import crc32

import numpy as np
import pyarrow as pa

Values = np.ndarray[Any, Any]

_MARK = b"STLBLK01"
"""Ends every file; another version of the form has another one."""
_TAIL = struct.Struct("<QI8s")
_INDEX = pa.schema(
    [
        ("run", pa.string()),
        ("schema", pa.binary()),
        ("firsts", pa.list_(pa.int64())),
        ("ends", pa.list_(pa.int64())),
        ("checksums", pa.list_(pa.uint32())),
    ]
)
_OF = b"of"


class UnreadableBlocksError(Exception):
    """A file of blocks is not what was written, or is of something else."""


@dataclass(frozen=True)
class SortedRun:
    """Rows that are sorted by a column of whole numbers.

    Attributes:
        rows: a table; the order of its columns is free.
    """

    rows: pa.Table
    by: str


@dataclass(frozen=True)
class _Run:
    """What the index says of a run.

    Attributes:
        ends: where each block ends in the file, after where the first one starts.
    """

    schema: pa.Schema
    firsts: Values
    ends: Values
    checksums: Values


class BlockFile:
    """A file of blocks, of which the index was read; it is opened again for each read.

    Args:
        of: what it must say that it is of.

    Raises:
        OSError: it is not there, or cannot be read.
        UnreadableBlocksError: it is not what was written, or of something else.
    """

    def __init__(self, path: Path, *, of: str) -> None:
        self._path = path
        with pa.OSFile(str(path)) as file:
            size = file.size()
            tail = file.read_at(_TAIL.size, max(size - _TAIL.size, 0))
            length, checksum, mark = _TAIL.unpack(tail) if len(tail) == _TAIL.size else (0, 0, b"")
            if mark != _MARK or length > size - _TAIL.size:
                raise UnreadableBlocksError(f"{path} does not end as a file of blocks does")
            index = file.read_at(length, size - _TAIL.size - length)
        if crc32(index) != checksum:
            raise UnreadableBlocksError(f"{path} has a damaged index")
        with pa.ipc.open_stream(index) as stream:
            table = stream.read_all()
        if (table.schema.metadata or {}).get(_OF) != of.encode():
            raise UnreadableBlocksError(f"{path} is of something else")
        self._runs = dict(_runs_in(table))

    @property
    def runs(self) -> Sequence[str]:
        return list(self._runs)

    def firsts(self, run: str) -> Values:
        return self._runs[run].firsts

    def with_any(self, run: str, values: Values) -> pa.Table:
        """The blocks of a run that may hold any of some values, given smallest first.

        Raises:
            OSError, UnreadableBlocksError: they cannot be read, or are not what was written.
        """
        return self._read(run, values, values)

    def between(self, run: str, first: int, last: int) -> pa.Table:
        """The blocks of a run that may hold values from the first to the last, both inclusive; see ``with_any``."""
        return self._read(run, np.array([first]), np.array([last]))

    def _read(self, name: str, from_values: Values, to_values: Values) -> pa.Table:
        run = self._runs[name]
        # a value may stand at the end of a block, before the first one that begins with it
        start = np.maximum(np.searchsorted(run.firsts, from_values, side="left") - 1, 0)
        end = np.searchsorted(run.firsts, to_values, side="right")
        covered = np.zeros(len(run.firsts) + 1, np.int64)
        np.add.at(covered, start, 1)
        np.add.at(covered, np.maximum(end, start), -1)
        numbers = np.flatnonzero(np.cumsum(covered)[:-1]).tolist()
        blocks = []
        with pa.OSFile(str(self._path)) as file:
            for number in numbers:
                at, until = int(run.ends[number]), int(run.ends[number + 1])
                block = file.read_at(until - at, at)
                if crc32(block) != run.checksums[number]:
                    raise UnreadableBlocksError(f"{self._path} has a damaged block")
                blocks.append(pa.ipc.read_record_batch(pa.py_buffer(block), run.schema))
        return pa.Table.from_batches(blocks, run.schema).combine_chunks()


def _runs_in(index: pa.Table) -> list[tuple[str, _Run]]:
    runs = []
    for row in range(index.num_rows):
        firsts, ends, checksums = (
            index[name][row].values.to_numpy() for name in ("firsts", "ends", "checksums")
        )
        schema = pa.ipc.read_schema(pa.py_buffer(index["schema"][row].as_py()))
        runs.append((index["run"][row].as_py(), _Run(schema, firsts, ends, checksums)))
    return runs


def write_blocks(runs: Mapping[str, SortedRun], path: Path, *, of: str, rows: int) -> int:
    """Write a file of blocks, whole or not at all, that only its owner can read; the number of its bytes.

    Args:
        of: what it is of, which readers must know.
        rows: of each block.

    Raises:
        OSError: it cannot be written; nothing of it is left.
    """
    aside = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with os.fdopen(os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            entries = [_write_run(file, name, run, rows) for name, run in runs.items()]
            index = pa.Table.from_pylist(entries, _INDEX.with_metadata({_OF: of.encode()}))
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, index.schema) as stream:
                stream.write_table(index)
            content = sink.getvalue()
            file.write(content)
            file.write(_TAIL.pack(content.size, crc32(content), _MARK))
            size = file.tell()
        os.replace(aside, path)
    except BaseException:
        with suppress(OSError):
            aside.unlink()
        raise
    return size


def _write_run(file: Any, name: str, run: SortedRun, rows: int) -> dict[str, Any]:
    """Write the blocks of a run; its row of the index."""
    firsts, ends, checksums = [], [file.tell()], []
    for batch in run.rows.combine_chunks().to_batches(max_chunksize=rows):
        block = batch.serialize()
        firsts.append(batch[run.by][0].as_py())
        file.write(block)
        ends.append(ends[-1] + block.size)
        checksums.append(crc32(block))
    return {
        "run": name,
        "schema": run.rows.schema.serialize().to_pybytes(),
        "firsts": firsts,
        "ends": ends,
        "checksums": checksums,
    }
