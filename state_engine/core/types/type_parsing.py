"""From what a user writes to ``TypeInformation``: Python types, Arrow types and schemas, Spark types, DDL text.

``to_type`` is the one entry; none of it needs Spark. Mirrors the extraction half of Flink's ``TypeExtractor``.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa

from state_engine.core.errors import ConfigurationError
from state_engine.core.types.ddl import parse_ddl
from state_engine.core.types.durations import Instant
from state_engine.core.types.every_type import (
    BooleanType,
    BytesType,
    DateType,
    DecimalType,
    DictType,
    FloatType,
    InstantType,
    IntegerType,
    ListType,
    StringType,
    StructType,
    TimestampType,
    TimeType,
    TypeInformation,
)
from state_engine.core.types.type_information import TypeLike
from state_engine.core.types.walk import walked

_PYTHON: dict[Any, Any] = {
    int: lambda: IntegerType(pa.int64()),
    float: lambda: FloatType(pa.float64()),
    bool: BooleanType,
    str: StringType,
    bytes: BytesType,
    date: DateType,
    datetime: lambda: TimestampType("UTC"),
    time: TimeType,
    Instant: InstantType,
    Decimal: lambda: DecimalType(38, 18),
}


def to_type(declared: TypeLike | None, *, parameter: str) -> TypeInformation:
    """The type that a user declared, in any accepted form.

    Args:
        declared: a type of ``Types``, Python type, NamedTuple or dataclass class, pyarrow type or schema, Spark type
            (any object with ``jsonValue()``), or DDL text (``"a bigint, b string"`` or ``"bigint"``). ``int | None``
            is ``int``: None is a value of every part. ``tuple[int, ...]`` is refused, for its values would come back
            as lists: say ``list[int]``.
        parameter: the name of the argument it came in; the error names it.

    Example:
        >>> str(to_type("carrier string, delay int", parameter="output_type"))
        'struct<carrier: string, delay: int32>'
        >>> str(to_type(dict[str, list[int]], parameter="value_type_info"))
        'map<string, list<item: int64>>'
    """
    if declared is None:
        raise ConfigurationError(
            f"{parameter} is missing: declare a type, for example int, 'bigint' or a NamedTuple"
        )
    try:
        return _to_type(declared)
    except (ConfigurationError, TypeError, ValueError, KeyError) as error:
        raise ConfigurationError(f"{parameter}: {error}") from error


def _to_type(declared: Any) -> TypeInformation:
    if isinstance(declared, TypeInformation):
        return declared
    if isinstance(declared, str):
        return parse_ddl(declared)
    if isinstance(declared, pa.Schema):
        return arrow_type(pa.struct(list(declared)))
    if isinstance(declared, pa.DataType):
        return arrow_type(declared)
    if hasattr(declared, "jsonValue"):
        return from_spark_json(declared.jsonValue())
    return _python_type(declared)


def arrow_type(kind: pa.DataType) -> TypeInformation:
    """The type for an Arrow type; structs come back as Rows."""
    return walked(
        kind,
        leaf=_arrow_leaf,
        record=lambda part, types: StructType([f.name for f in part], types, "row"),
        sequence=lambda _, element: ListType(element),
        mapping=lambda _, key, value: DictType(key, value),
    )


def _arrow_leaf(kind: pa.DataType) -> TypeInformation:
    p = pa.types
    if p.is_signed_integer(kind):
        return IntegerType(kind)
    if p.is_float32(kind) or p.is_float64(kind):
        return FloatType(kind)
    if p.is_boolean(kind):
        return BooleanType()
    if p.is_string(kind) or p.is_large_string(kind) or p.is_string_view(kind):
        return StringType()
    if p.is_binary(kind) or p.is_large_binary(kind) or p.is_fixed_size_binary(kind):
        return BytesType()
    if p.is_date32(kind):
        return DateType()
    if p.is_timestamp(kind):
        return TimestampType(kind.tz)
    if p.is_decimal128(kind):
        return DecimalType(kind.precision, kind.scale)
    raise ConfigurationError(f"the Arrow type {kind} is not supported; use a signed integer, float, string, binary, "
                             "boolean, date32, timestamp, decimal128, list, map or struct")  # fmt: skip


def _python_type(kind: Any) -> TypeInformation:
    if kind in _PYTHON:
        return typing.cast(TypeInformation, _PYTHON[kind]())
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        present = [a for a in args if a is not type(None)]
        if len(present) == 1:
            return _to_type(present[0])
    if origin is list and len(args) == 1:
        return ListType(_to_type(args[0]))
    if origin is dict and len(args) == 2:
        return DictType(_to_type(args[0]), _to_type(args[1]))
    if origin is tuple and Ellipsis in args:
        raise ConfigurationError(
            f"{kind!r} has no fixed number of fields; use list[...], whose values are lists"
        )
    if origin is tuple and args:
        return StructType([f"f{i}" for i in range(len(args))], [_to_type(a) for a in args])
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields") and kind._fields:
        hints = _hints(kind)
        missing = [n for n in kind._fields if n not in hints]
        if missing:
            raise ConfigurationError(
                f"{kind.__name__} declares no types for {missing}; use typing.NamedTuple"
            )
        return StructType(kind._fields, [_to_type(hints[n]) for n in kind._fields], kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = _hints(kind)
        names = [f.name for f in dataclasses.fields(kind)]
        aliases = {f.name: f.metadata["alias"] for f in dataclasses.fields(kind) if "alias" in f.metadata}
        return StructType(names, [_to_type(hints[n]) for n in names], kind, aliases=_checked(aliases, names))
    raise ConfigurationError(f"{kind!r} is not a supported type; use int, float, str, bool, bytes, date, datetime, "
                             "time, Instant, Decimal, list[...], dict[...], tuple[...], a NamedTuple, a dataclass, "
                             "Types, a pyarrow type or DDL text")  # fmt: skip


def _checked(aliases: dict[str, Any], names: list[str]) -> dict[str, str]:
    for name, old in aliases.items():
        if not isinstance(old, str) or old in names or list(aliases.values()).count(old) > 1:
            raise ConfigurationError(
                f"field '{name}' has the alias {old!r}; it must be the one name that the field had before, and no "
                "field that there still is"
            )
    return aliases


def _hints(kind: type) -> dict[str, Any]:
    """Annotations of a class. Shipped to a worker from a script or notebook, its module cannot be looked up there."""
    try:
        return typing.get_type_hints(kind)
    except (NameError, KeyError):
        known = {
            "datetime": datetime,
            "date": date,
            "Decimal": Decimal,
            "Any": Any,
            "Optional": typing.Optional,
        }
        # NamedTuple wraps texts
        texts = {n: getattr(t, "__forward_arg__", t) for n, t in kind.__annotations__.items()}
        return {n: eval(t, known) if isinstance(t, str) else t for n, t in texts.items()}


def from_spark_json(kind: Any) -> TypeInformation:
    """The type for the JSON form that Spark and Delta use; structs come back as Rows.

    Example:
        >>> str(from_spark_json({"type": "array", "elementType": "long", "containsNull": True}))
        'list<item: int64>'
    """
    if kind == "void":
        raise ConfigurationError(
            "it holds only nulls, and has no type: cast it, as in lit(None).cast('string')"
        )
    if isinstance(kind, str):
        return parse_ddl(kind.replace("char(", "varchar(") if kind.startswith("char(") else kind)
    if kind["type"] == "array":
        return ListType(from_spark_json(kind["elementType"]))
    if kind["type"] == "map":
        return DictType(from_spark_json(kind["keyType"]), from_spark_json(kind["valueType"]))
    if kind["type"] == "struct":
        names = [field["name"] for field in kind["fields"]]
        return StructType(names, [_of_field(field) for field in kind["fields"]], "row")
    raise ConfigurationError(f"the Spark type {kind['type']} is not supported")


def _of_field(field: dict[str, Any]) -> TypeInformation:
    try:
        return from_spark_json(field["type"])
    except ConfigurationError as error:
        raise ConfigurationError(f"column '{field['name']}': {error}") from None
