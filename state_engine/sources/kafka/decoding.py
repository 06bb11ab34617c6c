"""Records of Kafka as rows: by a schema in JSON or Avro, or as they are; and those that do not fit it.

A record that does not fit becomes a dead letter that holds all of it, so that it can be decoded again. Plays the part
of ``KafkaRecordDeserializationSchema``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import pyarrow as pa

from state_engine.core.errors import ConfigurationError
from state_engine.core.types.beyond_python import shown
from state_engine.core.types.ddl import quoted
from state_engine.core.types.row import RowKind
from state_engine.core.types.spark_types import spark_schema
from state_engine.sources.base import FILE_COLUMN, ROW_COLUMN, SourceFrame
from state_engine.sources.changes.decoded_source import REFUSED_ROWS
from state_engine.sources.records import REFUSED_TEXT, with_refused_text
from state_engine.sources.stream_columns import ROW_KIND
from state_engine.spark.kafka.cluster import Format
from state_engine.spark.spark_names import F, T

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

RECORD_FIELDS = (
    ("key", "binary"),
    ("value", "binary"),
    ("topic", "string"),
    ("partition", "int"),
    ("offset", "bigint"),
    ("timestamp", "timestamp"),
    ("headers", "array<struct<key:string,value:binary>>"),
)
"""Columns of a record, with their types; those of Spark's reader."""
METADATA = "kafka_"
"""Begins the names of columns that hold what a record has besides its value."""
_LETTER = b"\xffstatelake kafka\xff"
"""Begins a record that did not fit."""
_DECODED = "_statelake_decoded"
_OK = "_statelake_ok"
_SOURCE_ERROR = "\nstate_engine.core.errors.SourceError: "
"""As Python's tracebacks begin the line that names an error, which is where it is looked for."""


@dataclass(frozen=True)
class Decoding:
    """What the values of records are.

    Attributes:
        format: of the values.
        schema: DDL text; of Avro its schema, as JSON. Empty for raw records.
        key: columns that the key of a record gives where it has no value.
        key_format: how the key holds them: a JSON object, or the text of the only one.
        changes: whether rows are changes: a record without a value deletes the row of its key.
        with_metadata: whether rows also have what a record has besides its value.
    """

    format: Format
    schema: str = ""
    key: tuple[str, ...] = ()
    key_format: Literal["json", "raw"] = "json"
    changes: bool = False
    with_metadata: bool = False

    def decoded(self, records: DataFrame, *, keep_refused: bool) -> SourceFrame:
        """Rows of records, which have hidden columns, too.

        Args:
            records: with ``RECORD_FIELDS``.
            keep_refused: whether records that do not fit are kept; else the first one ends the micro-batch.
        """
        if self.format == "raw":
            columns = [F.col(name) for name, _ in RECORD_FIELDS]
            return SourceFrame(records.select(*columns, *self._hidden()))
        value = self._parsed().alias(_DECODED)
        frame = records.select("*", value).withColumn(REFUSED_TEXT, self._problem())
        problem = F.col(REFUSED_TEXT)
        if keep_refused:
            good, bad = frame.where(problem.isNull()), frame.where(problem.isNotNull())
            return SourceFrame(self._rows(good), _letters(bad.drop(_DECODED)))
        refusal = F.concat(
            F.lit(_SOURCE_ERROR), F.col("topic"), F.lit("/"), F.col("partition").cast("string"),
            F.lit(", offset "), F.col("offset").cast("string"), F.lit(": "), problem,
            F.lit(
                ". Nothing of this micro-batch was committed. Repair the schema, or set on_error='dead_letter' on the "
                "job to keep such records aside\n"
            ),
        )  # fmt: skip
        kept = F.when(problem.isNotNull(), F.raise_error(refusal).cast("boolean")).otherwise(F.lit(True))
        return SourceFrame(self._rows(frame.where(kept)))

    @property
    def declared(self) -> T.StructType:
        """The columns that values have.

        Raises:
            ConfigurationError: the schema says something else.
        """
        parsed = self._avro_type() if self.format == "avro" else T.StructType.fromDDL(self.schema)
        given = cast("T.StructType", parsed)
        if unknown := sorted(set(self.key) - set(given.names)):
            raise ConfigurationError(f"KafkaSource: key={list(self.key)}: the schema has no column {unknown}")
        taken = [name for name in given.names if name in self._metadata_names()]
        if taken:
            raise ConfigurationError(
                f"KafkaSource: the schema has columns {taken}, which with_metadata=True adds: rename these"
            )
        return given

    def _metadata_names(self) -> list[str]:
        names = [METADATA + name for name, _ in RECORD_FIELDS if name != "value"]
        return names if self.with_metadata else []

    def _hidden(self) -> list[Column]:
        deleted, put = RowKind.DELETE.value, RowKind.UPDATE_AFTER.value
        kind = F.when(F.col("value").isNull(), F.lit(deleted)).otherwise(F.lit(put)).cast("tinyint")
        places = [F.col(FILE_COLUMN), F.col(ROW_COLUMN)]
        return [*places, kind.alias(ROW_KIND)] if self.changes else places

    def _rows(self, frame: DataFrame) -> DataFrame:
        """The columns of records that fit."""
        keys = {name: self._key_column(name) for name in self.key}
        columns = []
        for field in self.declared.fields:
            column = F.col(f"{_DECODED}.{quoted(field.name)}")
            if field.name in keys:
                column = F.when(F.col("value").isNull(), keys[field.name]).otherwise(column)
            columns.append(column.alias(field.name))
        added = [F.col(n.removeprefix(METADATA)).alias(n) for n in self._metadata_names()]
        return frame.select(*columns, *added, *self._hidden())

    # -- what does not fit -----------------------------------------------------------------------------------------

    def _problem(self) -> Column:
        """Why a record does not fit; null where it does."""
        value, decoded = F.col("value"), F.col(_DECODED)
        fits = "its value does not fit the declared schema"
        without = (
            "it has no value, so it deletes the row of its key: read the topic with changes=True, or take such records "
            "out of it"
        )
        if self.changes:
            missing = [self._key_column(name).isNull() for name in self.key]
            absent = missing[0]
            for one in missing[1:]:
                absent = absent | one
            tombstone = F.when(absent, F.lit(f"it has no value, and its key does not hold {list(self.key)}"))
        else:
            tombstone = F.lit(without)
        if self.format == "avro":
            unfit = F.when(decoded.isNull() | decoded[_OK].isNull(), F.lit(fits))
        else:
            unfit = F.when(~F.is_valid_utf8(value.cast("string")), F.lit("its value is not UTF-8")).when(
                decoded.isNull() | decoded[REFUSED_TEXT].isNotNull(), F.lit(fits)
            )
        return F.when(value.isNull(), tombstone).otherwise(unfit)

    def _key_column(self, name: str) -> Column:
        """A column of a record's key; null where the key does not hold it."""
        key = F.col("key").cast("string")
        valid = F.when(F.is_valid_utf8(key), key)
        kinds = {field.name: field.dataType for field in self.declared.fields}
        if self.key_format == "raw":
            return valid.try_cast(kinds[name])
        ddl = ", ".join(f"{quoted(one)} {kinds[one].simpleString()}" for one in self.key)
        return F.from_json(valid, ddl)[name]

    # -- formats ---------------------------------------------------------------------------------------------------

    def _parsed(self) -> Column:
        if self.format == "avro":
            return self._from_avro()
        kept = with_refused_text(self.declared)
        ddl = ", ".join(f"{quoted(f.name)} {f.dataType.simpleString()}" for f in kept.fields)
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": REFUSED_TEXT}
        return F.from_json(F.col("value").cast("string"), ddl, options)

    def _from_avro(self) -> Column:
        """Values by a reader's schema with one more field, which has its default value where a record fits."""
        from pyspark.sql.avro.functions import from_avro  # of a jar that not every session has

        written = json.loads(self.schema)
        more = {"name": _OK, "type": "int", "default": 1}
        reader = json.dumps({**written, "fields": [*written["fields"], more]})
        return from_avro(F.col("value"), self.schema, {"mode": "PERMISSIVE", "avroSchema": reader})

    def _avro_type(self) -> T.StructType:
        from pyspark.sql import SparkSession

        spark = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
        values = spark.range(0).select(F.lit(None).cast("binary").alias("value"))
        frame = values.select(self._from_avro().alias(_DECODED))
        kind = frame.schema[_DECODED].dataType
        assert isinstance(kind, T.StructType)
        return T.StructType([field for field in kind.fields if field.name != _OK])


def record_schema() -> T.StructType:
    """Of records, with their hidden columns."""
    fields = [*RECORD_FIELDS, (FILE_COLUMN, "int"), (ROW_COLUMN, "bigint")]
    return cast(
        "T.StructType", T.StructType.fromDDL(", ".join(f"{quoted(name)} {kind}" for name, kind in fields))
    )


def records_again(spark: SparkSession, letters: Sequence[bytes]) -> DataFrame:
    """Records that did not fit, each as a partition of its own with one row."""
    tables = []
    for place, letter in enumerate(letters):
        one = pa.ipc.open_stream(letter[len(_LETTER) :]).read_all()
        one = one.append_column(FILE_COLUMN, pa.array([place], pa.int32()))
        tables.append(one.append_column(ROW_COLUMN, pa.array([0], pa.int64())))
    return spark.createDataFrame(pa.concat_tables(tables), schema=record_schema())


def _letters(bad: DataFrame) -> DataFrame:
    """Records that do not fit, as a source gives them."""

    def packed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            letters = [_letter(rows, row) for row in range(rows.num_rows)]
            if letters:
                yield pa.RecordBatch.from_pylist(letters, REFUSED_ROWS)

    return bad.mapInArrow(packed, T.StructType.fromJson(spark_schema(REFUSED_ROWS)))


def _letter(rows: pa.Table, row: int) -> dict[str, Any]:
    record = rows.select([name for name, _ in RECORD_FIELDS]).take(pa.array([row])).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, record.schema) as stream:
        stream.write_table(record)
    return {
        "record": _LETTER + bytes(sink.getvalue()),
        FILE_COLUMN: rows[FILE_COLUMN][row].as_py(),
        ROW_COLUMN: rows[ROW_COLUMN][row].as_py(),
        "reason": f"SourceError: {rows[REFUSED_TEXT][row].as_py()}",
        "shown": json.dumps({name: _plain(record, name) for name in record.column_names}, default=str),
    }


def _plain(record: pa.Table, name: str) -> Any:
    """A part of a record for people: its bytes as text, where they are."""
    if name in ("key", "value"):
        return shown(pa.chunked_array([record[name].chunk(0).view(pa.string())]), 0)
    return shown(record[name], 0)
