"""``converted``: stored entries with other keys, by a cast that loses nothing or by a user's function.

A cast is Spark's: the key is what ``CAST(column AS …)`` in the job's own code makes of it. A function is called with
keys as they are stored (a scalar, or a tuple), for nothing else is known of how they were declared; it gives the new
key as it is declared. It is called once for each row that is stored of a key, and must always give the same. Builds a
plan only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from state_engine.core.errors import ConfigurationError, InvalidKeyError, ValueTypeError
from state_engine.core.keys.key_conversions import is_lossless
from state_engine.core.keys.key_form import DeclaredKey
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.types.spark_types import spark_schema
from state_engine.queries.state_rows import KEY, KEY_HASH, OP, PLACE, STATE, UPDATED_AT, WHY
from state_engine.queries.stored_columns import spark_data_type
from state_engine.spark.key_columns import canonical_column, key_hash_column, key_refusal_column
from state_engine.spark.shipped_code import shipped
from state_engine.storage.layout import state_column

Convert = Callable[[Any], Any]
OLD = "old_key"
_NEW = "_new_key"
_STATE_COLUMN = state_column("")


def converted(
    entries: DataFrame,
    old: KeySchema,
    new: KeySchema,
    convert: tuple[Convert, DeclaredKey] | None,
    *,
    what: str,
) -> DataFrame:
    """Rows of a changelog with new keys and hashes; why one cannot be taken; the old key, and the order of the rows.

    Args:
        convert: gives a key for a key, and what it gives; None for a cast.
    """
    if convert is None:
        _check_lossless(old, new, what)
        parts = [
            _declared(F.col(KEY).getField(column), was).cast(spark_data_type(now)).alias(name)
            for column, was, name, now in zip(old.columns, old.types, new.names, new.types, strict=True)
        ]
        rows = entries.withColumn(_NEW, F.struct(*parts)).withColumn(WHY, F.lit(None).cast("string"))
    else:
        rows = _by_function(entries, old, *convert)
    pairs = [
        (F.col(_NEW).getField(name), spark_data_type(kind))
        for name, kind in zip(new.names, new.types, strict=True)
    ]
    canonical = [canonical_column(c, t).alias(n) for n, (c, t) in zip(new.columns, pairs, strict=True)]
    return rows.select(
        F.struct(*canonical).alias(KEY),
        key_hash_column(pairs).alias(KEY_HASH),
        STATE,
        F.lit(None).cast("string").alias(OP),
        UPDATED_AT,
        F.coalesce(WHY, key_refusal_column(pairs)).alias(WHY),
        F.monotonically_increasing_id().alias(PLACE),
        F.col(KEY).alias(OLD),
        *[c for c in entries.columns if c.startswith(_STATE_COLUMN)],
    )


def _check_lossless(old: KeySchema, new: KeySchema, what: str) -> None:
    alike = len(old.types) == len(new.types)
    if not alike or not all(is_lossless(a, b) for a, b in zip(old.types, new.types, strict=True)):
        raise ConfigurationError(
            f"{what}: keys {old.declared_text} cannot become {new.declared_text} by a cast that loses nothing "
            "and keeps all of them apart: give convert, a function that makes the new key of an old one"
        )


def _declared(column: Column, declared: pa.DataType) -> Column:
    types = pa.types
    if types.is_struct(declared):
        parts = [_declared(column.getField(f.name), f.type).alias(f.name) for f in declared]
        return F.when(column.isNotNull(), F.struct(*parts))
    if types.is_date(declared):
        return F.date_from_unix_date(column.cast("int"))
    if types.is_boolean(declared):
        return column != 0
    return column.cast(spark_data_type(declared))


def _by_function(entries: DataFrame, old: KeySchema, convert: Convert, key: DeclaredKey) -> DataFrame:
    made = _made(key)
    fields: list[StructField] = StructType.fromJson(spark_schema(made)).fields
    return entries.mapInArrow(key_maker(old, convert, key), StructType([*entries.schema.fields, *fields]))


def _made(key: DeclaredKey) -> pa.Schema:
    new = key.schema
    return pa.schema([(_NEW, pa.struct(list(zip(new.names, new.types, strict=True)))), (WHY, pa.string())])


def key_maker(
    old: KeySchema, convert: Convert, key: DeclaredKey
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Adds the new key of every row, or why there is none."""
    sent = shipped((convert, key), [convert, key], what="change_key_type")

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        convert, key = sent.unpacked()
        made = _made(key)
        for batch in batches:
            answers = [_called(convert, was, key) for was in old.decode_struct(batch.column(KEY))]
            columns = key.columns([converted for converted, _ in answers])
            keys = pa.StructArray.from_arrays(columns, fields=list(made.field(_NEW).type))
            reasons = pa.array([why for _, why in answers], pa.string())
            yield pa.RecordBatch.from_arrays(
                [*batch.columns, keys, reasons], schema=pa.schema([*batch.schema, *made])
            )

    return run


def _called(convert: Convert, was: Any, key: DeclaredKey) -> tuple[Any, str | None]:
    """The new key, or why there is none."""
    try:
        converted = convert(was)
        if converted is None:  # a null column is refused like any other
            return None, "convert gave None, which is not a key" if len(key.types) > 1 else None
        return key.whole.normalise(converted), None
    except (InvalidKeyError, ValueTypeError) as error:
        return None, str(error)
    except Exception as error:  # the user's code
        return None, f"convert failed: {type(error).__name__}: {error}"
