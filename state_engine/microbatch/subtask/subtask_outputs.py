"""The files of what subtasks emit: staged for sinks, handed to a chained operator, and dead letters.

Outputs for a chained operator have their order beside them, in a file of its own: decision 0003 says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import DataFile
from state_engine.core.errors import CommitFailedError, StatelakeError
from state_engine.core.names import stored_name
from state_engine.core.operator.element_kinds import split
from state_engine.core.operator.outputs import (
    BroadcastOrigin,
    ElementOutputs,
    Refusal,
    TimerOrigin,
)
from state_engine.core.types.columns import to_table
from state_engine.microbatch.subtask.order_columns import order_of
from state_engine.microbatch.subtask.received_rows import ReceivedRows
from state_engine.microbatch.subtask.refusals import sink_letter
from state_engine.microbatch.subtask.subtask_spec import OutputSpec
from state_engine.microbatch.subtask.subtask_work import SubtaskWork
from state_engine.sinks.base import SinkTarget
from state_engine.sinks.row_rules import without_rows
from state_engine.sources.rows import TaskRows
from state_engine.sources.stream_columns import KIND_FIELD, kind_column
from state_engine.storage.layout import partition_path
from state_engine.storage.stores.files import PutFile, is_local, join, write_csv, write_parquet
from state_engine.storage.stores.parquet_reading import OpenParquet, open_recorded


class SubtaskOutputs:
    """Writes the outputs of one subtask.

    Args:
        rows: that the outputs came from.
    """

    def __init__(self, work: SubtaskWork, rows: ReceivedRows, put: PutFile) -> None:
        self._work, self._rows, self._spec, self._put = work, rows, work.spec, put

    def write(self, out: ElementOutputs) -> None:
        for output in self._spec.outputs:
            self._write_output(output, out)
        for refusal in out.refused:
            if refusal.broadcast and refusal.index is not None:
                self._work.report.broadcast_refused.append(self._rows.number_of_broadcast(refusal.index))
                if self._work.index:  # all subtasks had it: the first keeps its letter
                    continue
            self._work.refused.add(refusal, self._rows.that_hold(refusal))
        self._write_dead_letters()

    def _write_output(self, output: OutputSpec, out: ElementOutputs) -> None:
        part: Any = out if output.tag is None else out.side.get(output.name)
        if output.tag is None:
            self._work.report.rows_out = len(out.origins)
        if part is None or not len(part.origins) or not (output.sinks or output.exchange):
            return
        spec = self._spec
        table, kinds = _columns_of(part, output, has_kinds=spec.has_kinds)
        for sink in output.sinks:
            name = sink.file_name(spec.write_id, self._work.index, self._work.attempt_id)
            rows = table if kinds is None else table.append_column(KIND_FIELD, kinds)
            rows = self._taken(rows, sink, part.origins)
            if rows.num_rows:
                file = write_sink_file(rows, sink, name, self._work.index, self._put)
                self._work.report.sinks[sink.name] = [file]
        if not output.exchange:
            return
        order = order_of(part, self._rows.events, self._rows.broadcast, spec, merged=output.merged)
        # a file that shows rows' attempts, or their kinds, has a column that the chained step must not see
        names = (spec.uid, output.name)
        unmarked = (s for s in output.sinks if s.format == "parquet" and s.lineage is None and kinds is None)
        # what a sink refuses, now or when its checks are judged, the chained step gets all the same
        plain = (
            s for s in unmarked if not s.checks and self._work.report.rows_staged(s.name) == table.num_rows
        )
        shared = next(plain, None)
        written = None
        if shared is not None:
            file = self._work.report.sinks[shared.name][0]
            written = replace(file, path=join(shared.uri, file.path))
        self._work.report.exchange[output.name] = write_exchange_files(
            table,
            order if kinds is None else order.append_column(KIND_FIELD, kinds),
            directory=join(spec.layout.exchange, spec.write_id),
            name="-".join([*(stored_name(n, longest=62) for n in names if n), self._work.file_name]),
            subtask=self._work.index,
            written=written,
            put=self._put,
        )

    def _taken(self, rows: pa.Table, sink: SinkTarget, origins: Any) -> pa.Table:
        """Rows without those that a sink refuses, which become letters."""
        refused = sink.refused(rows)
        for index, error in refused.items():
            position = self._place_of(origins[index])
            letter = sink_letter(rows, index, sink=sink.name, error=error, position=position)
            if not self._spec.dead_letters:
                raise self._work.refused.raised(letter)
            self._work.refused.add_letter(letter)
        return without_rows(rows, refused) if refused else rows

    def _place_of(self, origin: Any) -> str:
        if isinstance(origin, TimerOrigin):
            return f"a timer at {origin.at} ms of key {origin.key!r}"
        broadcast = isinstance(origin, BroadcastOrigin)
        refusal = Refusal(origin.element if broadcast else int(origin), None, "", "", broadcast=broadcast)
        return str(self._work.refused.described(refusal, self._rows.that_hold(refusal))["position"])

    def _write_dead_letters(self) -> None:
        self._work.report.rows_refused = len(self._work.refused)
        if not len(self._work.refused):
            return
        path = partition_path(self._spec.write_id, self._work.file_name)
        table = self._work.refused.table()
        file = write_parquet(table, join(self._spec.layout.dead_letters, path), put=self._put)
        self._work.report.dead_letters = [
            DataFile(path, file.bytes, table.num_rows, self._work.index, footer=file.footer)
        ]


def _columns_of(part: Any, output: OutputSpec, *, has_kinds: bool) -> tuple[pa.Table, pa.Array | None]:
    if part.table is not None:
        return part.table, part.kinds if output.changing else None
    kinds, values = split(part.values) if has_kinds else (None, part.values)
    table = to_table(values, output.kind.columns, scalar=output.kind.scalar)
    return table, kind_column(kinds) if kinds is not None and output.changing else None


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
