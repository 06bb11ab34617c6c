"""Arrow types in the JSON form that Spark and Delta use for schemas.

Needs neither of them. Plays the part of Flink's ``LogicalTypeJsonSerializer``.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from state_engine.core.errors import ConfigurationError
from state_engine.core.types.walk import walked

_SPARK_NAMES = {
    pa.int8(): "byte", pa.int16(): "short", pa.int32(): "integer", pa.int64(): "long", pa.float32(): "float",
    pa.float64(): "double", pa.bool_(): "boolean", pa.string(): "string", pa.binary(): "binary",
    pa.date32(): "date", pa.timestamp("us"): "timestamp_ntz", pa.timestamp("us", "UTC"): "timestamp",
}  # fmt: skip


def spark_type(kind: pa.DataType) -> Any:
    """The JSON form (nested dicts and strings) that Spark and Delta use for an Arrow type."""
    return walked(kind, leaf=_leaf, record=_record, sequence=_list, mapping=_map)


def spark_field(field: pa.Field) -> dict[str, Any]:
    """One field in Spark's JSON form; always nullable."""
    return _field(field.name, spark_type(field.type))


def spark_schema(schema: pa.Schema) -> dict[str, Any]:
    """A whole Arrow schema in Spark's JSON form."""
    return {"type": "struct", "fields": [spark_field(f) for f in schema]}


def _leaf(kind: pa.DataType) -> Any:
    if kind in _SPARK_NAMES:
        return _SPARK_NAMES[kind]
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    raise ConfigurationError(f"the Arrow type {kind} has no Delta type")


def _record(kind: pa.DataType, types: list[Any]) -> Any:
    return {"type": "struct", "fields": [_field(f.name, t) for f, t in zip(kind, types, strict=True)]}


def _field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def _list(_: pa.DataType, element: Any) -> Any:
    return {"type": "array", "elementType": element, "containsNull": True}


def _map(_: pa.DataType, key: Any, value: Any) -> Any:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
