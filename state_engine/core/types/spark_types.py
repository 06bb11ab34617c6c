"""Arrow types in the JSON form that Spark and Delta use for schemas.

Needs neither of them. Plays the part of Flink's ``LogicalTypeJsonSerializer``.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from state_engine.core.errors import ConfigurationError

_SPARK_NAMES = {
    pa.int8(): "byte", pa.int16(): "short", pa.int32(): "integer", pa.int64(): "long", pa.float32(): "float",
    pa.float64(): "double", pa.bool_(): "boolean", pa.string(): "string", pa.binary(): "binary",
    pa.date32(): "date", pa.timestamp("us"): "timestamp_ntz", pa.timestamp("us", "UTC"): "timestamp",
}  # fmt: skip


def spark_type(kind: pa.DataType) -> Any:
    """The JSON form (nested dicts and strings) that Spark and Delta use for an Arrow type."""
    if kind in _SPARK_NAMES:
        return _SPARK_NAMES[kind]
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return {"type": "array", "elementType": spark_type(kind.value_type), "containsNull": True}
    if pa.types.is_map(kind):
        return {"type": "map", "keyType": spark_type(kind.key_type), "valueType": spark_type(kind.item_type),
                "valueContainsNull": True}  # fmt: skip
    if pa.types.is_struct(kind):
        return {"type": "struct", "fields": [spark_field(f) for f in kind]}
    raise ConfigurationError(f"the Arrow type {kind} has no Delta type")


def spark_field(field: pa.Field) -> dict[str, Any]:
    """One field in Spark's JSON form; always nullable."""
    return {"name": field.name, "type": spark_type(field.type), "nullable": True, "metadata": {}}


def spark_schema(schema: pa.Schema) -> dict[str, Any]:
    """A whole Arrow schema in Spark's JSON form."""
    return {"type": "struct", "fields": [spark_field(f) for f in schema]}
