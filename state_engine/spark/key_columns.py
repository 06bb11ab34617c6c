"""Keys, hashes, key groups and subtasks as Spark columns: what `core.keys.canonical` does, computed by Catalyst.

For every key, of any type that can be one, these columns hold exactly what `canonical_key`, `key_hash`,
`key_group_of_hash` and `subtask_for_key_group` return in Python, whatever the session's settings (ANSI mode, time zone)
are. So SQL looks up state by key, and the state processor places given state without Python. Micro-batches do not use
them: `microbatch.routing` routes rows as Arrow tables.

Mirrors Flink's ``KeyGroupStreamPartitioner``. Only builds expressions: needs a Spark session, runs no job.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from state_engine.core.errors import InvalidKeyError
from state_engine.core.keys.key_groups import check_max_parallelism, check_parallelism

_INTEGERS = (ByteType, ShortType, IntegerType, LongType)
_FLOATS = (FloatType, DoubleType)
_STRINGS = (StringType, CharType, VarcharType)
_AS_THEY_ARE = (BinaryType, TimestampType, TimestampNTZType)


def canonical_type(data_type: DataType, name: str = "key") -> DataType:
    """The Spark type of the canonical column for a key column; the twin of `keys.storage_type`.

    Raises :class:`InvalidKeyError` for a type that cannot be a key (array, map, interval, …); `name` is the column's,
    for the message.

    >>> canonical_type(ShortType()), canonical_type(DecimalType(5, 2))
    (LongType(), StringType())
    """
    if isinstance(data_type, (*_INTEGERS, BooleanType, DateType)):
        return LongType()
    if isinstance(data_type, _FLOATS):
        return DoubleType()
    if isinstance(data_type, _STRINGS) or (isinstance(data_type, DecimalType) and data_type.scale >= 0):
        return StringType()
    if isinstance(data_type, _AS_THEY_ARE):
        return data_type
    if isinstance(data_type, StructType) and data_type.fields:
        return StructType(
            [
                StructField(f.name, canonical_type(f.dataType, f"{name}.{f.name}"), f.nullable, f.metadata)
                for f in data_type.fields
            ]
        )
    raise InvalidKeyError(
        f"The column '{name}' has the type {data_type.simpleString()}, which cannot be a key. A key column can be a "
        "number, string, binary, boolean, date or timestamp, or a struct of these: key by those parts of it instead"
    )


def canonical_column(column: Column, data_type: DataType) -> Column:
    """A key column in canonical form. Null stays null.

    A column that is canonical already (bigint, plain string, binary, timestamps, structs of these) stays as it is. A
    float's NaN passes through: :func:`key_refusal_column` finds it. Raises :class:`InvalidKeyError`, naming the
    column, for a type that cannot be a key.

        events.select(canonical_column(events.price, DecimalType(5, 2)))   # 1.50 -> '1.5'
    """
    target = canonical_type(data_type, _name_of(column))
    return _canonical(column, data_type) if target != data_type or _holds_floats(data_type) else column


def key_hash_column(columns: Sequence[tuple[Column, DataType]]) -> Column:
    """The hash (bigint) of a key of one column or several, chained in their order; equal to `keys.key_hash`.

    Raises :class:`InvalidKeyError` for a type that cannot be a key, and for no columns.

        events.withColumn("key_hash", key_hash_column([(events.origin, StringType()), (events.day, DateType())]))
    """
    if not columns:
        raise InvalidKeyError("A key needs at least one column")
    return F.xxhash64(*[canonical_column(column, data_type) for column, data_type in columns])


def key_group_column(key_hash: Column, max_parallelism: int) -> Column:
    """The key group (int) of a hash column. Raises :class:`ValueError` for a max parallelism outside 1…32768.

    events.withColumn("key_group", key_group_column(events.key_hash, 128))
    """
    check_max_parallelism(max_parallelism)
    return F.pmod(key_hash, F.lit(max_parallelism).cast("bigint")).cast("int")


def subtask_column(key_group: Column, max_parallelism: int, parallelism: int) -> Column:
    """The subtask (int) that owns a key group. Raises :class:`ValueError` for 1 ≤ p ≤ max ≤ 32768 not holding.

    events.withColumn("subtask", subtask_column(events.key_group, 128, 2))
    """
    check_parallelism(max_parallelism=max_parallelism, parallelism=parallelism)
    scaled = key_group * F.lit(parallelism)  # below 2**30: an int is wide enough
    return F.call_function("div", scaled, F.lit(max_parallelism)).cast("int")


def key_refusal_column(columns: Sequence[tuple[Column, DataType]]) -> Column:
    """Why a row's key is refused (string), or null for a good key: `canonical_key` raises for the same rows.

    A key of one column must not be null; no part of any key may be NaN.

        events.where(key_refusal_column([(events.tailnum, StringType())]).isNotNull())
    """
    if not columns:
        raise InvalidKeyError("A key needs at least one column")
    refusals = [refusal for column, data_type in columns for refusal in _nan_refusals(column, data_type)]
    if len(columns) == 1:
        column = columns[0][0]
        refusals.append(F.when(column.isNull(), F.lit(f"the key '{_name_of(column)}' is null")))
    return F.coalesce(*refusals, F.lit(None).cast("string"))


def _nan_refusals(column: Column, data_type: DataType) -> list[Column]:
    if isinstance(data_type, _FLOATS):
        return [F.when(F.isnan(column), F.lit(f"the key '{_name_of(column)}' is NaN"))]
    if isinstance(data_type, StructType):
        return [
            refusal
            for field in data_type.fields
            for refusal in _nan_refusals(column.getField(field.name), field.dataType)
        ]
    return []


def _canonical(column: Column, data_type: DataType) -> Column:
    if isinstance(data_type, _FLOATS):
        wide = column.cast("double")
        return F.when(wide == 0.0, F.lit(0.0)).otherwise(wide)  # also -0.0, which equals 0.0
    if isinstance(data_type, DecimalType):
        return _decimal_text(column, data_type)
    if isinstance(data_type, DateType):
        return F.unix_date(column).cast("bigint")
    if isinstance(data_type, StructType):
        fields = [
            _canonical(column.getField(field.name), field.dataType).alias(field.name)
            for field in data_type.fields
        ]
        return F.when(column.isNotNull(), F.struct(*fields))
    return column.cast(canonical_type(data_type))


def _decimal_text(column: Column, data_type: DecimalType) -> Column:
    """A decimal as plain text without trailing zeros. Outside ANSI mode Spark spells small ones as 1.20E-9."""
    text = column.cast("string")
    if data_type.scale == 0:
        return text
    digits = F.translate(F.substring_index(text, "E-", 1), "-.", "")
    exponent = F.substring_index(text, "E-", -1).try_cast("int")
    sign = F.when(text.startswith("-"), F.lit("-0.")).otherwise(F.lit("0."))
    spelled_out = F.concat(sign, F.repeat(F.lit("0"), exponent - 1), digits)
    plain = F.when(text.contains("E"), spelled_out).otherwise(text)
    return F.rtrim(F.rtrim(plain, F.lit("0")), F.lit("."))


def _holds_floats(data_type: DataType) -> bool:
    """Whether a column of this type may hold a -0.0, which its type alone does not say."""
    if isinstance(data_type, StructType):
        return any(_holds_floats(field.dataType) for field in data_type.fields)
    return isinstance(data_type, _FLOATS)


def _name_of(column: Column) -> str:
    return repr(column).removeprefix("Column<'").removesuffix("'>")
