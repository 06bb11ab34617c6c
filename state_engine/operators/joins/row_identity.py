"""The identity of a row: 16 bytes, the same for equal rows of any type.

A key of a map could be the row itself only where no column is a list, a map or NaN, and it would turn -0.0 into 0.0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
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

Text = Callable[[Any], str]
"""Makes texts of values, which are equal where the values are."""
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
    text = _text(kind)
    return lambda value: blake2b(text(value).encode(), digest_size=_BYTES).digest()


def _text(kind: TypeInformation) -> Text:
    if isinstance(kind, StructType):
        return _record(kind)
    if isinstance(kind, ListType):
        return partial(_items, _text(kind.element))
    if isinstance(kind, DictType):
        return partial(_mapping, _text(kind.key), _text(kind.value))
    if isinstance(kind, FloatType):
        return lambda number: repr(number + 0.0)  # the text of NaN is one
    if type(kind) in _AS_THEY_ARE:
        return repr
    if type(kind) in _AS_KEYS:
        return lambda value: repr(canonical_key(value))
    return lambda value: repr(to_json(kind, [value]))


_AS_THEY_ARE = (IntegerType, BooleanType, StringType, BytesType)
_AS_KEYS = (DateType, TimestampType, DecimalType)


def _record(kind: StructType) -> Text:
    names = [kind.aliases.get(name, name) for name in kind.names]
    by_name = sorted(
        (name, at, _text(part)) for at, (name, part) in enumerate(zip(names, kind.types, strict=True))
    )
    begins = [(f"({name!r}, ", at, text) for name, at, text in by_name]
    parts_of = partial(_attributes, kind.names) if is_dataclass(kind.made_by) else tuple

    def text(value: Any) -> str:
        parts = parts_of(value)
        fields = [f"{begin}{of(parts[at])})" for begin, at, of in begins if parts[at] is not None]
        return f"[{', '.join(fields)}]"

    return text


def _attributes(names: Sequence[str], value: Any) -> list[Any]:
    return [getattr(value, name) for name in names]


def _items(text: Text, values: list[Any]) -> str:
    return f"[{', '.join(['None' if value is None else f'({text(value)},)' for value in values])}]"


def _mapping(of_key: Text, of_value: Text, values: dict[Any, Any]) -> str:
    pairs = [
        f"({of_key(key)}, {'None' if value is None else f'({of_value(value)},)'})"
        for key, value in values.items()
    ]
    return f"[{', '.join(sorted(pairs))}]"
