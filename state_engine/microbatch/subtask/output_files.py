"""Files of outputs: staged for sinks, and handed to a chained operator with their order beside them.

Decision 0003 says why the order has a file of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import DataFile
from state_engine.core.errors import CommitFailedError, StatelakeError
from state_engine.sinks.base import SinkTarget
from state_engine.sources.rows import TaskRows
from state_engine.storage.stores.files import PutFile, is_local, join, write_csv, write_parquet
from state_engine.storage.stores.parquet_reading import OpenParquet, open_recorded

_EXCHANGE = "outputs on their way to a chained operator"


def write_sink_file(
    table: pa.Table, sink: SinkTarget, name: str, subtask: int, put: PutFile | None = None
) -> DataFile:
    """Stage one file of a sink, see ``write_parquet``; its path is relative to the sink."""
    uri = join(sink.directory, name)
    table = sink.stamped(table).select(sink.schema.names).cast(sink.schema)
    write = write_csv if sink.format == "csv" else write_parquet
    file = write(table, uri, put=put)
    path = uri.removeprefix(sink.uri + "/")
    return DataFile(path, file.bytes, table.num_rows, subtask, footer=file.footer)


def write_exchange_files(
    table: pa.Table,
    order: pa.Table,
    *,
    directory: str,
    name: str,
    subtask: int,
    written: DataFile | None,
    put: PutFile | None = None,
) -> list[DataFile]:
    """The output file and its order file, by full URI.

    Args:
        table, order: outputs and their order columns, row for row.
        written: a file that holds the outputs already, by full URI; they are not written twice then.
        put: see ``write_parquet``.
    """

    def written_to(uri: str, rows: pa.Table) -> DataFile:
        file = write_parquet(rows, uri, short_lived=True, put=put)
        return DataFile(uri, file.bytes, rows.num_rows, subtask, footer=file.footer)

    outputs = written or written_to(join(directory, name), table)
    return [outputs, written_to(join(directory, f"order-{name}"), order)]


def order_fields(pairs: list[list[DataFile]], names: list[str]) -> list[pa.Field]:
    """Types of the order columns, from the first order file; any type will do where there is none."""
    if not pairs:
        return [pa.field(n, pa.int64()) for n in names]
    order = pairs[0][1]
    schema = _opened(order).schema
    return [pa.field(n, schema.field(n).type) for n in names]


def _opened(file: DataFile) -> OpenParquet:
    try:
        return open_recorded(file.path, file, of=_EXCHANGE)
    except FileNotFoundError:
        raise CommitFailedError(
            f"{file.path}, which one operator hands to another, is gone: this runner stood still until a "
            "vacuum took its attempt for an abandoned one, or somebody deleted the file. Nothing of this micro-batch "
            "was committed; run again"
        ) from None


def read_exchange(pair: Sequence[DataFile], schema: pa.Schema | None = None) -> pa.Table:
    """An output file and its order file, side by side.

    Args:
        schema: the columns that are wanted; None for all, as they are stored.
    """
    files = [_opened(file) for file in pair]
    if len({file.metadata.num_rows for file in files}) > 1:
        raise StatelakeError(f"{[file.path for file in pair]} have different numbers of rows")
    stored = pa.unify_schemas([file.schema for file in files])
    wanted = stored if schema is None else schema
    columns: dict[str, pa.ChunkedArray] = {}
    for file in files:
        part = file.read([name for name in wanted.names if name in file.schema.names])
        columns |= dict(zip(part.column_names, part.columns, strict=True))
    return pa.table([columns[name] for name in wanted.names], wanted.names).cast(wanted)


def exchange_rows(pairs: Sequence[Sequence[DataFile]], schema: pa.Schema) -> TaskRows:
    """Pairs of files that tasks read, one each."""
    near = all(is_local(file.path) for pair in pairs for file in pair)
    return TaskRows(schema, len(pairs), partial(_read_pair, pairs, schema), near=near)


def _read_pair(
    pairs: Sequence[Sequence[DataFile]], schema: pa.Schema, task: int, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    wanted = pa.schema([schema.field(name) for name in columns])
    yield from read_exchange(pairs[task], wanted).to_batches(max_chunksize=100_000)
