"""``PythonDataSource``: any PySpark Python data source with a stream reader, as a source.

Its offsets are the position: each micro-batch reads from the last committed offset to the latest one, as Spark's own
micro-batches do. A partition is read by one task; its rows keep their order. ``commit(offset)`` of the reader is called
when a later run begins at that offset, so never before our own commit. Mirrors Spark's ``PythonMicroBatchStream``.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkNotImplementedError
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType as SparkStruct

from state_engine.core.choices import check_bound, check_mapping
from state_engine.core.errors import ConfigurationError, SourceError
from state_engine.core.types.every_type import StructType
from state_engine.core.types.spark_types import spark_schema
from state_engine.core.types.type_parsing import to_type
from state_engine.sources.base import (
    FILE_COLUMN,
    ROW_COLUMN,
    Element,
    Slice,
    Source,
    SourceFrame,
    summary,
)
from state_engine.sources.local_rows import local_frame
from state_engine.sources.output_type import OutputType
from state_engine.sources.rows import TaskRows, batched
from state_engine.spark.shipped_code import ShippedCode, shipped

_ROWS_AT_ONCE = 10_000


@dataclass(frozen=True)
class PythonDataSource(Source):
    """Rows of one of Spark's Python data sources.

    Args:
        data_source: the class.
        options: given to it.
        max_rows_per_batch: limit for readers that know limits; others give everything.

    Raises:
        ConfigurationError: the class has no stream reader.

    Example::

        job.source("readings", PythonDataSource(SensorDataSource, {"host": "localhost"}))
    """

    data_source: type[DataSource]
    options: Mapping[str, str] = field(default_factory=dict)
    max_rows_per_batch: int | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.data_source, type) and issubclass(self.data_source, DataSource)):
            raise ConfigurationError(
                f"PythonDataSource takes a class of DataSource, not {self.data_source!r}"
            )
        check_mapping(self.options, what="PythonDataSource")
        check_bound(self.max_rows_per_batch, what="max_rows_per_batch")

    @property
    def name(self) -> str:
        """Of the data source."""
        return self.data_source.name()

    def plan(self, spark: SparkSession, elements: Sequence[Element]) -> Slice | None:
        with _named_failures(self.name):
            reader, simple = self._reader()
            start = elements[-1]["position"] if elements else reader.initialOffset()
            if elements:
                reader.commit(start)
            if simple:
                rows, end = reader.read(start)
                detail: Any = ("rows", list(rows))
            else:
                end = self._latest(reader, start)
                detail = ("partitions", reader, list(reader.partitions(start, end)) if end != start else [])
        if end == start:
            return None
        # what a reader leaves behind a limit only the next batch shows
        return replace(self._slice(elements, end, detail), more=self.max_rows_per_batch is not None)

    def replan(self, spark: SparkSession, before: Sequence[Element], appended: Sequence[Element]) -> Slice:
        end = appended[-1]["position"]
        with _named_failures(self.name):
            reader, simple = self._reader()
            start = before[-1]["position"] if before else reader.initialOffset()
            detail: Any = (
                ("rows", list(reader.readBetweenOffsets(start, end)))
                if simple
                else ("partitions", reader, list(reader.partitions(start, end)))
            )
        return self._slice(before, end, detail)

    def rebatch(
        self, spark: SparkSession, before: Sequence[Element], recorded: Sequence[Element]
    ) -> Slice | None:
        """All that is left, in one: which offsets lie in between is only known to the reader."""
        if before and before[-1]["position"] == recorded[-1]["position"]:
            return None
        return self.replan(spark, before, recorded)

    def _slice(self, before: Sequence[Element], end: Any, detail: Any) -> Slice:
        new: list[Element] = [{"split": "0", "position": end}]
        labels = [repr(p) for p in detail[2]] if detail[0] == "partitions" else [self.name]
        return Slice(new, self._summary(before), self._summary([*before, *new]), labels, detail)

    def read(self, spark: SparkSession, part: Slice, *, keep_refused: bool) -> SourceFrame:
        kind = self._kind()
        if part.detail[0] == "rows":
            normalise = kind.columns.normalise
            return local_frame([normalise(tuple(row)) for row in part.detail[1]], kind, first=0)
        _, reader, partitions = part.detail
        fields = [*kind.columns.arrow, pa.field(FILE_COLUMN, pa.int32()), pa.field(ROW_COLUMN, pa.int64())]
        schema = pa.schema(fields)
        sent = shipped((reader, partitions), reader, what="the reader of a Python data source")
        return SourceFrame(
            TaskRows(schema, len(partitions), partial(_read_partition, sent, kind.columns, schema))
        )

    def empty_position(self) -> str:
        return self._summary([])

    def _summary(self, elements: Sequence[Element]) -> str:
        return summary(elements, offset=elements[-1]["position"] if elements else None)

    def _made(self) -> DataSource:
        return self.data_source(dict(self.options))

    def _kind(self) -> OutputType:
        declared = to_type(self._made().schema(), parameter=f"schema of data source '{self.name}'")
        if not isinstance(declared, StructType):
            raise ConfigurationError(
                f"the schema of data source '{self.name}' must name columns, not be {declared}"
            )
        return OutputType.of(declared)

    def _reader(self) -> tuple[Any, bool]:
        """The stream reader, and whether it is a simple one."""
        made = self._made()
        schema = SparkStruct.fromJson(spark_schema(pa.schema(list(self._kind().columns.arrow))))
        for method, simple in (("streamReader", False), ("simpleStreamReader", True)):
            if getattr(type(made), method) is not getattr(DataSource, method):
                return getattr(made, method)(schema), simple
        raise ConfigurationError(
            f"data source '{self.name}' has no stream reader: define streamReader or simpleStreamReader"
        )

    def _latest(self, reader: Any, start: dict[str, Any]) -> dict[str, Any]:
        if not inspect.signature(reader.latestOffset).parameters:  # as it was before Spark 4.2
            offset: dict[str, Any] = reader.latestOffset()
            return offset
        try:
            from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
        except ImportError:
            raise ConfigurationError(
                f"data source '{self.name}': latestOffset of its reader takes a limit, which readers have from Spark "
                "4.2 on, and this is an older one: define latestOffset(self), or install pyspark==4.2.*"
            ) from None
        limit = (
            ReadAllAvailable() if self.max_rows_per_batch is None else ReadMaxRows(self.max_rows_per_batch)
        )
        latest: dict[str, Any] = reader.latestOffset(start, limit)
        return latest


class _named_failures:
    """Turns what a reader raises on the driver into a SourceError."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, ConfigurationError) or not isinstance(error, Exception):
            return
        what = (
            "does not define a method that it needs"
            if isinstance(error, PySparkNotImplementedError)
            else "failed"
        )
        raise SourceError(
            f"the reader of data source '{self._name}' {what} ({type(error).__name__}: {error}). "
            "Nothing of this micro-batch was committed"
        ) from error


def _read_partition(
    sent: ShippedCode, kind: StructType, schema: pa.Schema, task: int, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    reader, partitions = sent.unpacked()
    first = 0
    for read, count in _column_batches(reader.read(partitions[task]), kind):
        file = pa.repeat(pa.scalar(task, pa.int32()), count)
        rows = pa.array(range(first, first + count), pa.int64())
        yield pa.RecordBatch.from_arrays([*read, file, rows], schema=schema).select(list(columns))
        first += count


def _column_batches(rows_or_batches: Iterable[Any], kind: StructType) -> Iterator[tuple[list[pa.Array], int]]:
    """What a reader gives, tuples or record batches, as columns."""
    for block in batched(rows_or_batches, _ROWS_AT_ONCE):
        tuples = []
        for row in block:
            if isinstance(row, pa.RecordBatch):
                named = row.select([f.name for f in kind.arrow])
                yield [c.cast(f.type) for c, f in zip(named.columns, kind.arrow, strict=True)], row.num_rows
            else:
                tuples.append(kind.normalise(tuple(row)))
        if tuples:
            yield kind.to_arrow(tuples, storage=False).flatten(), len(tuples)
