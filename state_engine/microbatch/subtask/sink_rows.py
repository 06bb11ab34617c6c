"""Rows that go to a sink without an operator in between: what a Spark task does with them.

It writes them as one file of the sink. Rows that could not be parsed, or that hold text which is not UTF-8, become dead
letters or end the batch, as in front of an operator.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import DataFile
from state_engine.core.types.invalid_text import invalid_text
from state_engine.microbatch.subtask.output_files import write_sink_file
from state_engine.microbatch.subtask.refusals import (
    Letter,
    letters_table,
    place_of,
    row_text,
    sink_letter,
    unparsable,
)
from state_engine.sinks.base import SinkTarget
from state_engine.sinks.row_rules import without_rows
from state_engine.sources.base import FILE_COLUMN, ROW_COLUMN
from state_engine.sources.frames import HIDDEN, REFUSED
from state_engine.sources.row_kinds import KIND_FIELD, column_of_kinds
from state_engine.sources.stream_columns import ROW_KIND
from state_engine.spark.execution import ArrowFunction
from state_engine.spark.task_attempts import TaskAttempt, this_task
from state_engine.storage.files import join, write_parquet
from state_engine.storage.layout import file_name, partition_path


@dataclass(frozen=True)
class SinkRows:
    """What a task is given.

    Attributes:
        source: that the rows come straight from; None where that is not known.
        labels: by source, names of its files by place.
        keep_refused: whether bad rows are set aside; else the first one ends the batch.
        fresh: whether nobody else set the bad rows of these sources aside.
        sent_again: where each row came from first, by ``ROW_COLUMN``, of dead letters that are sent again.
    """

    target: SinkTarget
    write_id: str
    letters_uri: str
    source: str | None
    labels: dict[str, tuple[str, ...]]
    keep_refused: bool
    fresh: bool
    sent_again: tuple[str, ...] = ()


@dataclass
class SinkReport:
    """What a task did.

    Attributes:
        refused: number of refused rows that nobody else counted.
        error: what ended the batch: position, cause and row.
    """

    file: DataFile | None = None
    letters: DataFile | None = None
    refused: int = 0
    error: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, text: str) -> SinkReport:
        fields = json.loads(text)
        for name in ("file", "letters"):
            fields[name] = None if fields[name] is None else DataFile(**fields[name])
        return cls(**fields)


def sink_writer(spec: SinkRows) -> ArrowFunction:
    """Every task writes its rows as one file of the sink."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        filled = [b for b in batches if b.num_rows]
        if filled:
            yield _report(write_sink_rows(spec, pa.Table.from_batches(filled), this_task()))

    return write


def letter_writer(spec: SinkRows) -> ArrowFunction:
    """Every task writes its rows that could not be parsed as one file of dead letters."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        packed = pa.chunked_array([batch[REFUSED] for batch in batches], pa.string())
        for report in write_letters(spec, pa.table({REFUSED: packed}), this_task()):
            yield _report(report)

    return write


def write_letters(spec: SinkRows, packed: pa.Table, attempt: TaskAttempt) -> list[SinkReport]:
    """Write rows that could not be parsed, the one column REFUSED, as one file of dead letters, if there are any."""
    letters = [unparsable(text, spec.labels)[1] for text in packed[REFUSED].to_pylist()]
    if not letters:
        return []
    return [SinkReport(letters=_write_letters(spec, letters, attempt), refused=len(letters))]


def write_sink_rows(spec: SinkRows, table: pa.Table, attempt: TaskAttempt) -> SinkReport:
    """Write rows as one file of the sink, and bad ones as dead letters."""
    names = [c for c in table.column_names if not c.startswith(HIDDEN)]
    rows, report = table.select(names), SinkReport()
    bad = invalid_text({c: rows[c] for c in names})
    if bad and not spec.keep_refused:
        index = next(iter(bad))
        report.error = _described(spec, table, names, index, bad[index])
        return report
    letters: list[Letter] = []
    if bad and spec.fresh:
        letters = [
            {
                **_described(spec, table, names, i, column),
                "subtask": 0,
                "traceback": "",
                "source": spec.source,
            }
            for i, column in bad.items()
        ]
        report.refused = len(bad)
    if ROW_KIND in spec.target.schema.names:
        rows = rows.append_column(KIND_FIELD, column_of_kinds(table))
    if bad:
        rows, table = without_rows(rows, bad), without_rows(table, bad)
    refused = spec.target.refused(rows)
    if refused:
        own = [
            sink_letter(rows, i, sink=spec.target.name, error=error, position=_position(spec, table, i))
            | {"source": spec.source}
            for i, error in refused.items()
        ]
        if not spec.keep_refused:
            report.error = {name: own[0][name] for name in ("position", "error", "row")}
            return report
        letters += own
        report.refused += len(own)
        rows = without_rows(rows, refused)
    if letters:
        report.letters = _write_letters(spec, letters, attempt)
    if rows.num_rows:
        name = spec.target.file_name(spec.write_id, attempt.task, attempt.attempt_id)
        report.file = write_sink_file(rows, spec.target, name, attempt.task)
    return report


def _described(spec: SinkRows, table: pa.Table, names: list[str], index: int, column: str) -> dict[str, str]:
    return {
        "position": _position(spec, table, index),
        "error": f"SourceError: the column '{column}' holds text that is not UTF-8",
        "row": row_text(table.select(names), index),
    }


def _position(spec: SinkRows, table: pa.Table, index: int) -> str:
    """Where a row came from, as far as that is known."""
    if spec.sent_again:
        return spec.sent_again[int(table[ROW_COLUMN][index].as_py())]
    if spec.source is None:
        return f"a row for sink '{spec.target.name}'"
    if FILE_COLUMN not in table.column_names:
        return f"source '{spec.source}'"
    file, row = (table[c][index].as_py() for c in (FILE_COLUMN, ROW_COLUMN))
    return f"source '{spec.source}', {place_of(spec.labels, spec.source, file, row)}"


def _write_letters(spec: SinkRows, letters: list[Letter], attempt: TaskAttempt) -> DataFile:
    path = partition_path(spec.write_id, file_name(spec.write_id, attempt.task, attempt.attempt_id))
    table = letters_table(letters)
    file = write_parquet(table, join(spec.letters_uri, path))
    return DataFile(path, file.bytes, table.num_rows, attempt.task, footer=file.footer)


def _report(report: SinkReport) -> Any:
    return pa.record_batch({"report": pa.array([json.dumps(asdict(report))])})
