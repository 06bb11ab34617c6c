"""``DecodedSource``: any source whose rows are operations, decoded into inserts, updates and deletes.

The source itself keeps its positions, cuts and replays; only what it reads is decoded, by a ``ChangeFormat``: by the
driver where it has the rows, else by the tasks that read them. A row that cannot be decoded becomes a dead letter with
the reason, and is decoded again when it is sent again. Plays the part of ``DecodingFormat`` in Flink's connectors.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from state_engine.core.errors import ConfigurationError, SourceError
from state_engine.core.types.beyond_python import shown
from state_engine.core.types.spark_types import spark_schema
from state_engine.core.types.type_information import TypeLike
from state_engine.core.types.type_parsing import to_type
from state_engine.sources.base import (
    FILE_COLUMN,
    PLACES,
    REFUSED_ROWS,
    BadFile,
    Element,
    Slice,
    Source,
    SourceFrame,
)
from state_engine.sources.changes.change_format import ChangeFormat
from state_engine.sources.frames import HIDDEN
from state_engine.sources.partition_rows import as_frame
from state_engine.sources.rows import Given, all_tables, either
from state_engine.sources.stream_columns import ROW_KIND
from state_engine.spark.spark_names import F, T
from state_engine.spark.tasks import mapped_in_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_RECORD = b"\xffstatelake row\xff"
"""Begins the record of a row that could not be decoded; no text that a source parses begins so."""
_KIND = pa.field(ROW_KIND, pa.int8())
Decode = Callable[[pa.Table], pa.Table]


@dataclass(frozen=True)
class DecodedSource(Source):
    """A source of operations."""

    name: str
    source: Source
    format: ChangeFormat

    @property
    def changing(self) -> bool:
        return True

    @property
    def schema_in_code(self) -> TypeLike | None:
        schema = self.source.schema_in_code
        if schema is None:
            return None
        given = to_type(schema, parameter=f"schema of source '{self.name}'")
        return self.format.decoded(pa.schema(list(given.arrow)))

    @property
    def inner(self) -> Source:
        return self.source.inner

    def for_run(self) -> DecodedSource:
        return replace(self, source=self.source.for_run())

    def plan(self, spark: SparkSession, elements: Sequence[Element]) -> Slice | None:
        return self.source.plan(spark, elements)

    def replan(self, spark: SparkSession, before: Sequence[Element], appended: Sequence[Element]) -> Slice:
        return self.source.replan(spark, before, appended)

    def rebatch(
        self, spark: SparkSession, before: Sequence[Element], recorded: Sequence[Element]
    ) -> Slice | None:
        return self.source.rebatch(spark, before, recorded)

    def read(self, spark: SparkSession, part: Slice, *, keep_refused: bool) -> SourceFrame:
        return self._decoded(spark, self.source.read(spark, part, keep_refused=keep_refused), keep_refused)

    def parse(self, spark: SparkSession, records: Sequence[bytes], *, keep_refused: bool) -> SourceFrame:
        whole = [place for place, record in enumerate(records) if record.startswith(_RECORD)]
        texts = [place for place in range(len(records)) if place not in set(whole)]
        rows = [_row_of(records[place], place) for place in whole]
        own = pa.concat_tables(rows, promote_options="permissive").combine_chunks() if rows else None
        if own is not None and not texts:
            return self._decoded(spark, SourceFrame(own), keep_refused)
        parsed = self.source.parse(spark, [records[p] for p in texts], keep_refused=keep_refused)
        good, bad = (
            None if rows is None else _moved(spark, rows, texts) for rows in (parsed.rows, parsed.refused)
        )
        return self._decoded(spark, SourceFrame(_together(spark, good, own), bad), keep_refused)

    def set_aside(self, part: Slice, bad: BadFile) -> Slice | None:
        return self.source.set_aside(part, bad)

    def confirm(self, part: Slice) -> None:
        self.source.confirm(part)

    def consumed(self, spark: SparkSession, given: Any) -> list[Element]:
        return self.source.consumed(spark, given)

    def waiting(self, elements: Sequence[Element]) -> list[str]:
        return self.source.waiting(elements)

    def is_element(self, element: Element) -> bool:
        return self.source.is_element(element)

    def position_text(self, elements: Sequence[Element]) -> str:
        return self.source.position_text(elements)

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _decoded(self, spark: SparkSession, read: SourceFrame, keep_refused: bool) -> SourceFrame:
        good, bad = partial(_good, self, keep_refused), partial(_bad, self)

        def here(rows: pa.Table) -> SourceFrame:
            self.format.decoded(_feed(rows).schema)
            refused_rows = bad(rows) if keep_refused else REFUSED_ROWS.empty_table()
            more = refused_rows if refused_rows.num_rows else None
            return SourceFrame(good(rows), _together(spark, read.refused, more))

        def there(rows: DataFrame) -> SourceFrame:
            fields = [
                pa.field(f.name, to_type(f.dataType, parameter=f"column '{f.name}'").arrow)
                for f in rows.schema.fields
                if not f.name.startswith(HIDDEN)
            ]
            given = pa.schema([*self.format.decoded(pa.schema(fields)), *PLACES, _KIND])
            refused = _in_tasks(rows, bad, REFUSED_ROWS) if keep_refused else None
            return SourceFrame(_in_tasks(rows, good, given), _together(spark, read.refused, refused))

        return either(spark, read.rows, table=here, frame=there)


def decoded(name: str, source: Source, format_: ChangeFormat) -> DecodedSource:
    if not isinstance(format_, ChangeFormat):
        raise ConfigurationError(
            f"source '{name}': {format_!r} is not a format; use ChangeFormat.debezium(…), ChangeFormat.columns(…) or "
            "SnapshotFormat(…)"
        )
    if source.changing:
        raise ConfigurationError(
            f"source '{name}': its {type(source).__name__} gives inserts, updates and deletes already, so there is "
            "nothing to decode: leave out format, or read the table without changes=True"
        )
    return DecodedSource(name, source, format_)


def _in_tasks(rows: DataFrame, decode: Decode, given: pa.Schema) -> DataFrame:
    def decode_there(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield from decode(pa.Table.from_batches([batch])).cast(given).to_batches()

    return mapped_in_arrow(rows, decode_there, T.StructType.fromJson(spark_schema(given)))


def _good(source: DecodedSource, keep_refused: bool, rows: pa.Table) -> pa.Table:
    """The changes in rows. Raises SourceError where one cannot be decoded, unless they are kept."""
    changes = source.format.decode(_feed(rows))
    if changes.problems and not keep_refused:
        row, why = min(changes.problems.items())
        raise SourceError(
            f"source '{source.name}': {why} (row {_shown(_feed(rows), row)}). Nothing of this micro-batch was "
            "committed. Repair the feed, or set on_error='dead_letter' on the job to keep such rows aside"
        )
    decoded = changes.rows
    for field in PLACES:
        decoded = decoded.append_column(field, rows[field.name].take(pa.array(changes.origins)))
    return decoded.append_column(_KIND, pa.array(changes.kinds, pa.int8())).combine_chunks()


def _bad(source: DecodedSource, rows: pa.Table) -> pa.Table:
    feed, letters = _feed(rows), []
    for row, why in sorted(source.format.decode(feed).problems.items()):
        places = [rows[name][row].as_py() for name in PLACES.names]
        error = f"SourceError: {why}"
        letters.append((_record_of(feed, row), *places, error, _shown(feed, row)))
    named = [dict(zip(REFUSED_ROWS.names, letter, strict=True)) for letter in letters]
    return pa.Table.from_pylist(named, REFUSED_ROWS)


def _moved(spark: SparkSession, rows: Given, places: Sequence[int]) -> Given:
    """The rows of some records as those of all of them, among which these have the given places."""

    def in_table(rows: pa.Table) -> Given:
        moved = pa.array(places, pa.int32()).take(rows[FILE_COLUMN].combine_chunks())
        return rows.set_column(rows.schema.get_field_index(FILE_COLUMN), FILE_COLUMN, moved)

    def in_frame(rows: DataFrame) -> Given:
        moved = F.element_at(F.lit(list(places)), F.col(FILE_COLUMN) + 1).cast("int")
        return rows.withColumn(FILE_COLUMN, moved)

    return either(spark, rows, table=in_table, frame=in_frame)


def _together(spark: SparkSession, above: Given | None, below: Given | None) -> Any:
    """The rows of both; a table where both are, and None where neither is there."""
    if above is None or below is None:
        return below if above is None else above
    if (tables := all_tables([above, below])) is not None:
        return pa.concat_tables(tables, promote_options="permissive").combine_chunks()
    return as_frame(spark, above).unionByName(as_frame(spark, below), allowMissingColumns=True)


def _feed(rows: pa.Table) -> pa.Table:
    return rows.select([name for name in rows.column_names if not name.startswith(HIDDEN)])


def _shown(feed: pa.Table, row: int) -> str:
    return json.dumps({name: shown(feed[name], row) for name in feed.column_names}, default=str)


def _record_of(feed: pa.Table, row: int) -> bytes:
    sink = pa.BufferOutputStream()
    one = feed.take(pa.array([row])).combine_chunks()
    with pa.ipc.new_stream(sink, one.schema) as stream:
        stream.write_table(one)
    return _RECORD + bytes(sink.getvalue())


def _row_of(record: bytes, place: int) -> pa.Table:
    one = pa.ipc.open_stream(record[len(_RECORD) :]).read_all()
    values = (place, 0)
    for field, value in zip(PLACES, values, strict=True):
        one = one.append_column(field, pa.array([value], field.type))
    return one
