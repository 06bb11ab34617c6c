"""Columns of a DataFrame in the form in which keyed state stores them: widths and names of fields.

Only builds expressions.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from state_engine.core.errors import ConfigurationError
from state_engine.core.types.ddl import ddl_text
from state_engine.core.types.spark_types import spark_field
from state_engine.core.types.type_parsing import to_type


def as_stored(column: Column, have: DataType, want: pa.DataType, *, what: str) -> Column:
    """A column in the stored form of its declared type: widened, fields of records put in order; null stays null."""
    if pa.types.is_struct(want) and isinstance(have, StructType):
        types = {f.name: f.dataType for f in have.fields}
        if set(types) != set(want.names):
            raise ConfigurationError(f"{what} has the fields {list(types)}, declared are {want.names}")
        made = [
            as_stored(column.getField(f.name), types[f.name], f.type, what=f"{what}.{f.name}").alias(f.name)
            for f in want
        ]
        return F.when(column.isNotNull(), F.struct(*made))
    if pa.types.is_list(want) and isinstance(have, ArrayType):
        element = have.elementType
        return F.transform(column, lambda x: as_stored(x, element, want.value_type, what=f"{what}[]"))
    if pa.types.is_map(want) and isinstance(have, MapType):
        kinds = (have.keyType, want.key_type), (have.valueType, want.item_type)

        def entry(one: Column) -> Column:
            parts = [
                as_stored(one[n], *k, what=f"{what}.{n}").alias(n)
                for n, k in zip(("key", "value"), kinds, strict=True)
            ]
            return F.struct(*parts)

        return F.map_from_entries(F.transform(F.map_entries(column), entry))
    if pa.types.is_nested(want) or to_type(have, parameter=what).storage != want:
        raise ConfigurationError(
            f"{what} is {have.simpleString()}, declared is what is stored as {ddl_text(want)}: cast it"
        )
    return column.cast(spark_data_type(want))


def renamed(column: Column, have: pa.DataType, want: pa.DataType) -> Column:
    """A column whose type differs from another one at most in names of fields, with those of the other."""
    return column if have == want else column.cast(spark_data_type(want))


def spark_data_type(kind: pa.DataType) -> DataType:
    return StructField.fromJson(spark_field(pa.field("c", kind))).dataType
