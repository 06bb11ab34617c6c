"""Columns of a DataFrame in the form in which keyed state stores them: widths and names of fields.

Only builds expressions.
"""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from state_engine.core.errors import ConfigurationError
from state_engine.core.types import every_type as types
from state_engine.core.types.ddl import ddl_text, quoted
from state_engine.core.types.spark_types import spark_field
from state_engine.core.types.type_information import TypeInformation
from state_engine.core.types.type_parsing import to_type

_TIME = r"^([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?$"


def as_stored(
    column: Column, have: DataType, declared: TypeInformation, want: pa.DataType, *, what: str
) -> Column:
    """A column in the stored form of its declared type: widened, fields of records put in order; null stays null.

    Args:
        want: the stored form, with the names of fields that queries show.
    """
    if isinstance(declared, types.StructType) and isinstance(have, StructType):
        fields = {f.name: f.dataType for f in have.fields}
        if set(fields) != set(want.names):
            raise ConfigurationError(f"{what} has the fields {list(fields)}, declared are {want.names}")
        made = [
            as_stored(column.getField(f.name), fields[f.name], kind, f.type, what=f"{what}.{f.name}").alias(
                f.name
            )
            for f, kind in zip(want, declared.types, strict=True)
        ]
        return F.when(column.isNotNull(), F.struct(*made))
    if isinstance(declared, types.ListType) and isinstance(have, ArrayType):
        element = have.elementType
        return F.transform(
            column, lambda x: as_stored(x, element, declared.element, want.value_type, what=f"{what}[]")
        )
    if isinstance(declared, types.DictType) and isinstance(have, MapType):
        kinds = (
            (have.keyType, declared.key, want.key_type),
            (have.valueType, declared.value, want.item_type),
        )

        def entry(one: Column) -> Column:
            parts = [
                as_stored(one[n], *k, what=f"{what}.{n}").alias(n)
                for n, k in zip(("key", "value"), kinds, strict=True)
            ]
            return F.struct(*parts)

        return F.map_from_entries(F.transform(F.map_entries(column), entry))
    if isinstance(declared, types.TimeType) and isinstance(have, StringType):
        return _microseconds(column, what)
    if pa.types.is_nested(want) or to_type(have, parameter=what).storage != want:
        raise ConfigurationError(
            f"{what} is {have.simpleString()}, declared is what is stored as {ddl_text(want)}: cast it"
        )
    return column.cast(spark_data_type(want))


def times_stored(frame: DataFrame, names: Collection[str], *, what: str) -> DataFrame:
    """Columns of times of day as they are stored, where they are text, as queries show them."""
    texts = {f.name for f in frame.schema.fields if isinstance(f.dataType, StringType)} & set(names)
    parts = {name: _microseconds(F.col(quoted(name)), f"{what}: column '{name}'") for name in texts}
    return frame.withColumns(parts) if parts else frame


def _microseconds(column: Column, what: str) -> Column:
    """A time of day, from the text that queries show it as; other text is refused by the action that reads it."""
    at = F.unix_micros(F.to_timestamp(F.concat(F.lit("1970-01-01T"), column, F.lit("Z"))))
    why = f"{ConfigurationError.__module__}.ConfigurationError: {what} must be a time of day such as '09:30:00', not "
    wrong = F.raise_error(F.concat(F.lit(why), column))
    return F.when(column.isNull() | column.rlike(_TIME), at).otherwise(wrong)


def renamed(column: Column, have: pa.DataType, want: pa.DataType) -> Column:
    """A column whose type differs from another one at most in names of fields, with those of the other."""
    return column if have == want else column.cast(spark_data_type(want))


def spark_data_type(kind: pa.DataType) -> DataType:
    return StructField.fromJson(spark_field(pa.field("c", kind))).dataType
