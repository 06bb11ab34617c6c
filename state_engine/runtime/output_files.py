"""Files of outputs: staged for sinks, and handed to a chained operator with their order beside them.

See docs/decisions/0003-order-files.md for why the order has a file of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from state_engine.backends.files import join, open_location, write_csv, write_parquet
from state_engine.core.checkpoint import DataFile
from state_engine.core.errors import StatelakeError
from state_engine.runtime.sinks.base import SinkTarget


def write_sink_file(table: pa.Table, sink: SinkTarget, name: str, subtask: int) -> DataFile:
    """Stage one file of a sink; its path is relative to the sink."""
    uri = join(sink.directory, name)
    table = sink.stamped(table).select(sink.schema.names).cast(sink.schema)
    size = write_csv(table, uri) if sink.format == "csv" else write_parquet(table, uri)
    return DataFile(path=uri.removeprefix(sink.uri + "/"), bytes=size, rows=table.num_rows, subtask=subtask)


def write_exchange_files(
    table: pa.Table, order: pa.Table, *, directory: str, name: str, subtask: int, written: str | None
) -> list[DataFile]:
    """The output file and its order file, by full URI.

    Args:
        table, order: outputs and their order columns, row for row.
        written: URI of a file that holds the outputs already; they are not written twice then.
    """
    if written is None:
        written = join(directory, name)
        write_parquet(table, written)
    order_uri = join(directory, f"order-{name}")
    size = write_parquet(order, order_uri)
    rows = table.num_rows
    return [
        DataFile(path=written, bytes=0, rows=rows, subtask=subtask),
        DataFile(path=order_uri, bytes=size, rows=rows, subtask=subtask),
    ]


def order_fields(pairs: list[tuple[str, ...]], names: list[str]) -> list[pa.Field]:
    """Types of the order columns, from the first order file; any type will do where there is none."""
    if not pairs:
        return [pa.field(n, pa.int64()) for n in names]
    at = open_location(pairs[0][1])
    found = pq.read_schema(at.path, filesystem=at.fs)
    return [pa.field(n, found.field(n).type) for n in names]


def read_exchange(pair: tuple[str, ...]) -> pa.Table:
    """An output file and its order file, side by side."""
    files = [open_location(uri) for uri in pair]
    rows, order = (pq.ParquetFile(f.path, filesystem=f.fs).read() for f in files)
    if rows.num_rows != order.num_rows:
        raise StatelakeError(f"{pair} have different numbers of rows")
    for name in order.column_names:
        rows = rows.append_column(order.schema.field(name), order[name])
    return rows


def exchange_reader(
    pairs: list[tuple[str, ...]],
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For ``mapInArrow`` over numbers: each stands for a pair of files, read side by side."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield from read_exchange(pairs[index]).to_batches(max_chunksize=100_000)

    return read
