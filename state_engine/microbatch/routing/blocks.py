"""Blocks: routed rows of one subtask as Arrow in bytes, which is how they go through Spark's shuffle and to its tasks.

A few large records instead of many rows. Every subtask gets one block without rows, which shows it the columns, for
there may be no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from state_engine.core.types.columns import from_bytes, in_one_chunk, to_bytes
from state_engine.microbatch.routing.routed import SUBTASK
from state_engine.sources.frames import HIDDEN

BLOCK = HIDDEN + "block"
_ROWS, _BYTES = 2**18, 2**24
"""Of what is made into blocks at a time: enough for large records, and little memory."""


def unpacked(blocks: Iterable[bytes]) -> pa.Table | None:
    """The rows of all blocks of one subtask, in which each column is one chunk; None without a block."""
    tables = [from_bytes(block) for block in blocks]
    return joined(tables) if tables else None


def rows_of_blocks(batches: Iterable[pa.RecordBatch]) -> pa.Table | None:
    return unpacked(block for batch in batches for block in batch[BLOCK].to_pylist())


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of tables, at least one, of which each may lack columns that others have; each column is one chunk."""
    filled = [table for table in tables if table.num_rows]
    rows = pa.concat_tables(filled or tables[:1], promote_options="default")
    known, absent = set(rows.column_names), dict[str, pa.DataType]()
    for table in tables:
        absent |= {field.name: field.type for field in table.schema if field.name not in known}
    for name, kind in absent.items():
        rows = rows.append_column(name, pa.nulls(rows.num_rows, kind))
    return in_one_chunk(rows)


def blocks_of(tables: Sequence[pa.Table]) -> pa.RecordBatch:
    """A record for each subtask that has rows, of one table a subtask."""
    filled = [(number, table) for number, table in enumerate(tables) if table.num_rows]
    numbers = pa.array([number for number, _ in filled], pa.int32())
    return pa.record_batch({SUBTASK: numbers, BLOCK: pa.array([to_bytes(t) for _, t in filled], pa.binary())})


def gathered(batches: Iterable[pa.RecordBatch], *, enough: int = _ROWS) -> Iterator[pa.Table]:
    """The rows of a task, many at a time: at least so many, unless they are large or the last ones."""
    held, rows, size = list[pa.RecordBatch](), 0, 0
    for batch in batches:
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= enough or size >= _BYTES:
            yield pa.Table.from_batches(held)
            held, rows, size = [], 0, 0
    if rows:
        yield pa.Table.from_batches(held)
