"""Records of text as rows: of CSV files byte by byte, and of dead letters that are parsed again.

Spark's CSV reader puts U+FFFD for what is no UTF-8, and reports nothing. So text is read byte by byte where that is
possible, and its bytes are taken for UTF-8 afterwards; whether they are is seen where rows are decoded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from state_engine.core.types.ddl import quoted
from state_engine.sources.base import FILE_COLUMN, ROW_COLUMN
from state_engine.spark.spark_names import F, T

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

BYTE_BY_BYTE = "ISO-8859-1"
"""Gives every byte a character of its own."""
REFUSED_TEXT = "_statelake_corrupt"
"""Column of records that cannot be parsed."""
_OF_FILES = {"header", "multiline", "mode", "columnnameofcorruptrecord", "encoding", "charset"}
"""Options that say nothing of a single record."""


def reads_as_bytes(format_: str, options: Mapping[str, str]) -> bool:
    """Whether text is read byte by byte: not where an encoding, or what it would change, was asked for."""
    given = {name.lower(): str(value) for name, value in options.items()}
    if format_ != "csv" or given.keys() & {"encoding", "charset", "locale"}:
        return False
    return all(value.isascii() for value in given.values())


def text_columns(schema: T.StructType, *, as_bytes: bool, inside: str = "") -> list[Column]:
    """The columns of parsed records; text that was read byte by byte as what its bytes are.

    Args:
        inside: what holds the columns, with a dot.
    """
    columns = []
    for field in schema.fields:
        column = F.col(inside + quoted(field.name))
        if as_bytes and isinstance(field.dataType, T.StringType):
            column = F.encode(column, BYTE_BY_BYTE).cast("string").alias(field.name)
        columns.append(column)
    return columns


def with_refused_text(schema: T.StructType) -> T.StructType:
    """The schema, and a column for the text of what does not fit it; ``schema`` itself stays."""
    return T.StructType([*schema.fields, T.StructField(REFUSED_TEXT, T.StringType())])


def parsed_records(
    spark: SparkSession,
    records: Sequence[bytes],
    *,
    format_: str,
    schema: T.StructType,
    options: Mapping[str, str],
) -> tuple[DataFrame, DataFrame]:
    """Good rows, and the records that cannot be parsed, both with hidden columns; each record is a file of its own.

    Args:
        format_: ``csv`` or ``json``.
        options: of the reader.
    """
    kept = with_refused_text(schema)
    as_bytes = reads_as_bytes(format_, options)
    own = {name: value for name, value in options.items() if name.lower() not in _OF_FILES}
    own |= {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": REFUSED_TEXT}
    text = F.decode("record", BYTE_BY_BYTE) if as_bytes else F.col("record").cast("string")
    ddl = ", ".join(f"{quoted(f.name)} {f.dataType.simpleString()}" for f in kept.fields)
    parsed = F.from_json(text, ddl, own) if format_ == "json" else F.from_csv(text, ddl, own)
    table = pa.table(
        {"record": pa.array(records, pa.binary()), FILE_COLUMN: pa.array(range(len(records)), pa.int32())}
    )
    places = [F.col(FILE_COLUMN), F.lit(0).cast("bigint").alias(ROW_COLUMN)]
    # a parser of text that is no UTF-8 would put U+FFFD
    valid = F.lit(True) if as_bytes else F.is_valid_utf8(text)
    frame = spark.createDataFrame(table).select(
        parsed.alias("parsed"), text.alias("text"), valid.alias("valid"), *places
    )
    frame = frame.select(
        *text_columns(kept, as_bytes=as_bytes, inside="parsed."),
        "text",
        "valid",
        FILE_COLUMN,
        ROW_COLUMN,
    )
    is_good = F.col("valid") & F.col(REFUSED_TEXT).isNull()
    good = frame.where(is_good).drop(REFUSED_TEXT, "text", "valid")
    refused = F.when(F.col("valid"), F.col(REFUSED_TEXT)).otherwise(F.col("text")).alias(REFUSED_TEXT)
    return good, frame.where(~is_good).select(refused, FILE_COLUMN, ROW_COLUMN)
