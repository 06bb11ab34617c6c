"""The identity of a row: 16 bytes, the same for equal rows of any type.

A key of a map could be the row itself only where no column is a list, a map or NaN, and it would turn -0.0 into 0.0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import partial
from hashlib import blake2b
from typing import Any

from state_engine.core.keys.canonical import canonical_key
from state_engine.core.types.every_type import (
    BooleanType,
    BytesType,
    DateType,
    DecimalType,
    DictType,
    FloatType,
    IntegerType,
    ListType,
    StringType,
    StructType,
    TimestampType,
    TypeInformation,
)
from state_engine.core.types.json_values import to_json

Form = Callable[[Any], Any]
"""Makes nested tuples of a value, whose texts are equal where the values are."""
_BYTES = 16


def row_identity(kind: TypeInformation) -> Callable[[Any], bytes]:
    """Gives normal values of a type their identity; get it once and keep it.

    Nulls equal each other, as NaN does, and 0.0 equals -0.0. Fields count by name, and those that are null not at all:
    so a row is the same one after a column was added, or widened.

    Example:
        >>> from state_engine.core.types.type_parsing import to_type
        >>> before = to_type("a int, b double", parameter="rows")
        >>> after = to_type("b double, a bigint, c int", parameter="rows")
        >>> row_identity(before)((1, float("nan"))) == row_identity(after)((float("nan"), 1, None))
        True
    """
    form = _form(kind)
    return lambda value: blake2b(repr(form(value)).encode(), digest_size=_BYTES).digest()


def _form(kind: TypeInformation) -> Form:
    if isinstance(kind, StructType):
        return _record(kind)
    if isinstance(kind, ListType):
        return partial(_items, _form(kind.element))
    if isinstance(kind, DictType):
        return partial(_mapping, _form(kind.key), _form(kind.value))
    if isinstance(kind, FloatType):
        return lambda number: number + 0.0  # the text of NaN is one
    if type(kind) in _AS_THEY_ARE:
        return lambda value: value
    if type(kind) in _AS_KEYS:
        return canonical_key
    return lambda value: to_json(kind, [value])


_AS_THEY_ARE = (IntegerType, BooleanType, StringType, BytesType)
_AS_KEYS = (DateType, TimestampType, DecimalType)


def _record(kind: StructType) -> Form:
    names = [kind.aliases.get(name, name) for name in kind.names]
    by_name = sorted(
        (name, at, _form(part)) for at, (name, part) in enumerate(zip(names, kind.types, strict=True))
    )

    def form(value: Any) -> Any:
        parts = (
            [getattr(value, field.name) for field in fields(value)] if is_dataclass(value) else tuple(value)
        )
        return [(name, of(parts[at])) for name, at, of in by_name if parts[at] is not None]

    return form


def _items(form: Form, values: list[Any]) -> Any:
    return [None if value is None else (form(value),) for value in values]


def _mapping(of_key: Form, of_value: Form, values: dict[Any, Any]) -> Any:
    pairs = [(of_key(key), None if value is None else (of_value(value),)) for key, value in values.items()]
    return sorted(pairs, key=repr)
