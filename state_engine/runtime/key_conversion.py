"""``converted``: stored entries with other keys, by a cast that loses nothing or by a user's function.

A cast is Spark's: the key is what ``CAST(column AS …)`` in the job's own code makes of it. A function is called with
keys as functions see them (a scalar, or a tuple), once for each row that is stored of a key, and must always give the
same. Builds a plan only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from state_engine.backends.delta.layout import state_column
from state_engine.core.errors import ConfigurationError, InvalidKeyError, ValueTypeError
from state_engine.core.key_conversions import is_lossless
from state_engine.core.key_schema import KeySchema
from state_engine.core.spark_types import spark_schema
from state_engine.core.type_parsing import arrow_type
from state_engine.runtime.key_columns import canonical_column, key_hash_column, key_refusal_column
from state_engine.runtime.shipped_code import shipped
from state_engine.runtime.state_rows import KEY, KEY_HASH, OP, PLACE, STATE, UPDATED_AT, WHY
from state_engine.runtime.stored_columns import spark_data_type

Convert = Callable[[Any], Any]
OLD = "old_key"
_NEW = "_new_key"
_STATE_COLUMN = state_column("")


def converted(
    entries: DataFrame, old: KeySchema, new: KeySchema, convert: Convert | None, *, what: str
) -> DataFrame:
    """Rows of a changelog with new keys and hashes; why one cannot be taken; the old key, and the order of the rows.

    Args:
        entries: as ``stored_entries`` gives them.
        old, new: keys.
        convert: gives a key for a key; None for a cast.
        what: names job and operator, for messages.

    Raises:
        ConfigurationError: a cast could lose something.
    """
    if convert is None:
        _check_lossless(old, new, what)
        parts = [
            _declared(F.col(KEY).getField(column), was).cast(spark_data_type(now)).alias(name)
            for column, was, name, now in zip(old.columns, old.types, new.names, new.types, strict=True)
        ]
        rows = entries.withColumn(_NEW, F.struct(*parts)).withColumn(WHY, F.lit(None).cast("string"))
    else:
        rows = _by_function(entries, old, new, convert)
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
    """A stored column as a column of the type that was declared."""
    types = pa.types
    if types.is_struct(declared):
        parts = [_declared(column.getField(f.name), f.type).alias(f.name) for f in declared]
        return F.when(column.isNotNull(), F.struct(*parts))
    if types.is_date(declared):
        return F.date_from_unix_date(column.cast("int"))
    if types.is_boolean(declared):
        return column != 0
    return column.cast(spark_data_type(declared))


def _by_function(entries: DataFrame, old: KeySchema, new: KeySchema, convert: Convert) -> DataFrame:
    made = pa.schema([(_NEW, pa.struct(list(zip(new.names, new.types, strict=True)))), (WHY, pa.string())])
    fields: list[StructField] = StructType.fromJson(spark_schema(made)).fields
    return entries.mapInArrow(_caller(old, new, convert, made), StructType([*entries.schema.fields, *fields]))


def _caller(
    old: KeySchema, new: KeySchema, convert: Convert, made: pa.Schema
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    sent = shipped(convert, convert)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        convert, kinds = sent.unpacked(), [arrow_type(t) for t in new.types]
        for batch in batches:
            answers = [_called(convert, key, kinds) for key in old.decode_struct(batch.column(KEY))]
            columns = [
                kind.to_arrow([None if a is None else a[i] for a, _ in answers], storage=False)
                for i, kind in enumerate(kinds)
            ]
            keys = pa.StructArray.from_arrays(columns, fields=list(made.field(_NEW).type))
            reasons = pa.array([why for _, why in answers], pa.string())
            yield pa.RecordBatch.from_arrays(
                [*batch.columns, keys, reasons], schema=pa.schema([*batch.schema, *made])
            )

    return run


def _called(convert: Convert, key: Any, kinds: list[Any]) -> tuple[list[Any] | None, str | None]:
    """The parts of the new key, or why there is none."""
    try:
        found = convert(key)
        parts = list(found) if len(kinds) > 1 else [found]
        if len(parts) != len(kinds):
            return None, f"convert made {found!r} of it, the key has {len(kinds)} columns"
        return [None if p is None else k.normalise(p) for k, p in zip(kinds, parts, strict=True)], None
    except (InvalidKeyError, ValueTypeError) as error:
        return None, str(error)
    except Exception as error:  # the user's code
        return None, f"convert failed: {type(error).__name__}: {error}"
