"""Records of Kafka as rows: by a schema in JSON or Avro, or as they are; and those that do not fit it.

A record that does not fit becomes a dead letter that holds all of it, so that it can be decoded again. Plays the part
of ``KafkaRecordDeserializationSchema``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.errors import ConfigurationError, ValueTypeError
from state_engine.core.types.beyond_python import shown
from state_engine.core.types.ddl import quoted
from state_engine.core.types.every_type import StructType
from state_engine.core.types.row import RowKind
from state_engine.core.types.spark_types import spark_schema
from state_engine.core.types.type_information import TypeLike
from state_engine.core.types.type_parsing import to_type
from state_engine.sources.base import FILE_COLUMN, REFUSED_ROWS, ROW_COLUMN, SourceFrame
from state_engine.sources.stream_columns import ROW_KIND
from state_engine.sources.text.json_records import JsonDialect
from state_engine.sources.text.options import TextOptions
from state_engine.sources.text.text_columns import ColumnReader, columns_of, csv_column, json_column
from state_engine.sources.text.text_values import FieldNames, NameRules, TextRules
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
REFUSED_TEXT = "_statelake_problem"
"""Column with the reason why a record does not fit."""
_RULES = TextRules()
_UNFIT = "its value does not fit the declared schema"
_NO_VALUE = (
    "it has no value, so it deletes the row of its key: read the topic with changes=True, or take such records "
    "out of it"
)
_SOURCE_ERROR = "\nstate_engine.core.errors.SourceError: "
"""As Python's tracebacks begin the line that names an error, which is where it is looked for."""


@dataclass(frozen=True)
class Decoding:
    """What the values of records are.

    Attributes:
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
            keep_refused: whether records that do not fit are kept; else the first one ends the micro-batch.
        """
        if self.format == "raw":
            columns = [F.col(name) for name, _ in RECORD_FIELDS]
            return SourceFrame(records.select(*columns, *self._hidden()))
        frame = self._with_rows(records)
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
        parsed = self._avro_type() if self.format == "avro" else T.StructType.fromDDL(self.schema)
        given = cast("T.StructType", parsed)
        if unknown := sorted(set(self.key) - set(given.names)):
            raise ConfigurationError(f"KafkaSource: key={list(self.key)}: the schema has no column {unknown}")
        taken = [name for name, _ in self._metadata if name in given.names]
        if taken:
            raise ConfigurationError(
                f"KafkaSource: the schema has columns {taken}, which with_metadata=True adds: rename these"
            )
        return given

    @property
    def schema_in_code(self) -> TypeLike | None:
        """Columns of rows, but for Avro, whose types Spark knows."""
        if self.format == "avro":
            return None
        beside = RECORD_FIELDS if self.format == "raw" else self._metadata
        return ", ".join([*filter(None, [self.schema]), *(f"{name} {kind}" for name, kind in beside)])

    @property
    def _metadata(self) -> list[tuple[str, str]]:
        fields = [(METADATA + name, kind) for name, kind in RECORD_FIELDS if name != "value"]
        return fields if self.with_metadata else []

    def _hidden(self) -> list[Column]:
        deleted, put = RowKind.DELETE.value, RowKind.UPDATE_AFTER.value
        kind = F.when(F.col("value").isNull(), F.lit(deleted)).otherwise(F.lit(put)).cast("tinyint")
        places = [F.col(FILE_COLUMN), F.col(ROW_COLUMN)]
        return [*places, kind.alias(ROW_KIND)] if self.changes else places

    def _rows(self, frame: DataFrame) -> DataFrame:
        columns = [F.col(f"{_DECODED}.{quoted(name)}").alias(name) for name in self.declared.names]
        added = [F.col(name.removeprefix(METADATA)).alias(name) for name, _ in self._metadata]
        return frame.select(*columns, *added, *self._hidden())

    def _with_rows(self, records: DataFrame) -> DataFrame:
        """Records with the row of each, and why it does not fit; null where it does."""
        columns = to_type(self.declared, parameter="schema")
        assert isinstance(columns, StructType)
        reader = _RecordReader(self, StructType(columns.names, columns.types))
        given = records.select("*", self._from_avro().alias(_DECODED)) if self.format == "avro" else records
        row = T.StructType.fromJson(
            spark_schema(pa.schema([(_DECODED, columns.arrow), (REFUSED_TEXT, pa.string())]))
        )
        return given.mapInArrow(reader.batches, T.StructType([*records.schema.fields, *row.fields]))

    # -- formats ---------------------------------------------------------------------------------------------------

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


class _RecordReader:
    def __init__(self, decoding: Decoding, columns: StructType) -> None:
        self._decoding, self._columns = decoding, columns
        kinds = dict(zip(columns.names, columns.types, strict=True))
        column = csv_column if decoding.key_format == "raw" else json_column
        self._value = [json_column(name, kind, _RULES) for name, kind in kinds.items()]
        self._key = [column(name, kinds[name], _RULES) for name in decoding.key]

    def batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The records with their rows, and why they do not fit."""
        for batch in batches:
            rows, problems = self._values(batch)
            deleted = batch["value"].is_null()
            if deleted.true_count:
                rows = self._with_keys(batch, deleted, rows, problems)
            whole = pa.StructArray.from_arrays(rows, fields=list(self._columns.arrow))
            texts = pa.array([problems.get(row) for row in range(len(batch))], pa.string())
            kept = [name for name in batch.schema.names if name != _DECODED]
            arrays = {name: batch[name] for name in kept} | {_DECODED: whole, REFUSED_TEXT: texts}
            yield pa.record_batch(arrays)

    def _values(self, batch: pa.RecordBatch) -> tuple[list[pa.Array], dict[int, str]]:
        """The columns of values, and why values do not fit."""
        if self._decoding.format == "avro":
            decoded = batch[_DECODED]
            fits = pc.and_(decoded.is_valid(), pc.struct_field(decoded, _OK).is_valid()).to_pylist()
            problems = {row: _UNFIT for row, fit in enumerate(fits) if not fit}
            rows = [
                pc.struct_field(decoded, name).cast(kind.arrow)
                for name, kind in zip(self._columns.names, self._columns.types, strict=True)
            ]
        else:
            texts = batch["value"].to_pylist()
            rows, problems = _columns_of(_objects(texts, self._columns.names), self._value)
            problems = {row: f"{_UNFIT}: {problem}" for row, problem in problems.items()}
        return rows, {row: problem for row, problem in problems.items() if batch["value"][row].is_valid}

    def _with_keys(
        self, batch: pa.RecordBatch, deleted: pa.Array, rows: list[pa.Array], problems: dict[int, str]
    ) -> list[pa.Array]:
        """The columns with what keys say of records without value; why these do not fit is added to ``problems``."""
        names = self._decoding.key
        places = np.flatnonzero(deleted.to_numpy(zero_copy_only=False)).tolist()
        if not self._decoding.changes:
            problems |= dict.fromkeys(places, _NO_VALUE)
            return rows
        keys = batch["key"].filter(deleted).to_pylist()
        parsed = (
            [(_utf8(key),) for key in keys] if self._decoding.key_format == "raw" else _objects(keys, names)
        )
        columns, faults = _columns_of(parsed, self._key)
        for row, place in enumerate(places):
            if row in faults or any(not column[row].is_valid for column in columns):
                problems[place] = f"it has no value, and its key does not hold {list(names)}"
        given = dict(zip(names, columns, strict=True))
        return [
            pc.replace_with_mask(values, deleted, given[name].cast(values.type)) if name in given else values
            for name, values in zip(self._columns.names, rows, strict=True)
        ]


def _columns_of(
    objects: Sequence[tuple[Any, ...] | str], readers: Sequence[ColumnReader]
) -> tuple[list[pa.Array], dict[int, str]]:
    """Columns of the values of objects, null where one is refused, and why; a text says that one is no object."""
    nothing = (None,) * len(readers)
    arrays, faults = columns_of(readers, [nothing if isinstance(one, str) else one for one in objects])
    return arrays, faults | {row: one for row, one in enumerate(objects) if isinstance(one, str)}


def _objects(texts: Sequence[bytes | None], names: tuple[str, ...]) -> list[tuple[Any, ...] | str]:
    fields, dialect = FieldNames(names, NameRules()), JsonDialect(TextOptions(multi_line=True))
    objects: list[tuple[Any, ...] | str] = []
    for text in texts:
        line = _utf8(text)
        if line is None:
            objects.append("it is not there" if text is None else "it is not UTF-8")
            continue
        records = list(dialect.records([line]))
        if len(records) != 1 or records[0][2]:
            objects.append(
                records[0][2] if len(records) == 1 else f"it holds {len(records)} objects, not one"
            )
            continue
        try:
            objects.append(fields.values(records[0][1]))
        except ValueTypeError as error:
            objects.append(str(error))
    return objects


def _utf8(text: bytes | None) -> str | None:
    try:
        return None if text is None else text.decode()
    except UnicodeDecodeError:
        return None


def record_schema() -> T.StructType:
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
