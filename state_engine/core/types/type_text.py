"""A declared type as text, as checkpoints record it; so that a later declaration can be compared with it.

The text is DDL that says what was *declared* (``smallint``, ``time_of_day``), from which the stored type follows
(``bigint``); the stored type alone does not separate a time of day from a number, nor a narrowed number from a
widened one. A field that was renamed, or that came back, says where it is stored (```total` as `sum`: bigint``), and
one that was added with a default what stands for null in it (```n` default `0`: bigint``). Types that SQL does not name
have names of their own here. Which class the values of a record have is not part of it.
Plays the part of Flink's ``TypeSerializerSnapshot``.
"""

from __future__ import annotations

import pyarrow as pa

from state_engine.core.errors import ConfigurationError
from state_engine.core.types.column_names import storable_names
from state_engine.core.types.ddl import ddl_text, list_text, map_text, parse_ddl, quoted, record_text
from state_engine.core.types.every_type import (
    BigIntegerType,
    BooleanType,
    BytesType,
    CharType,
    DateType,
    DecimalType,
    DictType,
    FloatType,
    InstantType,
    IntegerType,
    ListType,
    PickledType,
    StringType,
    StructType,
    TimestampType,
    TimeType,
    TypeInformation,
)

_PLAIN = (IntegerType, FloatType, BooleanType, StringType, BytesType, DateType, TimestampType, DecimalType)


class StoredPickleType(BytesType):
    """What a record says about pickled objects: that the bytes are pickles. It never reads them.

    Example:
        >>> import pyarrow as pa
        >>> StoredPickleType().from_arrow(pa.array([b"..."]))
        [b'...']
    """

    def __str__(self) -> str:
        return "pickled object"


_WORDS: dict[type[TypeInformation], str] = {
    CharType: "character",
    BigIntegerType: "big_integer",
    InstantType: "instant",
    TimeType: "time_of_day",
    PickledType: "pickled",
    StoredPickleType: "pickled",
}
_READ = {
    "character": CharType,
    "big_integer": BigIntegerType,
    "instant": InstantType,
    "time_of_day": TimeType,
    "pickled": StoredPickleType,
}


def type_to_text(kind: TypeInformation) -> str:
    """A declared type as text; equal for types whose values are declared, stored and read alike.

    Example:
        >>> from state_engine.core.types.type_parsing import to_type
        >>> from state_engine.core.types.types_namespace import Types
        >>> type_to_text(to_type(dict[str, tuple[int, float]], parameter="p"))
        'map<string, struct<`f0`: bigint, `f1`: double>>'
        >>> type_to_text(Types.LIST(Types.SQL_TIME()))
        'array<time_of_day>'
    """
    if isinstance(kind, ListType):
        return list_text(type_to_text(kind.element))
    if isinstance(kind, DictType):
        return map_text(type_to_text(kind.key), type_to_text(kind.value))
    if isinstance(kind, StructType):
        usual = zip(kind.names, kind.stored, storable_names(kind.names), strict=True)
        names = [_named(name, stored, own, kind.fills.get(name)) for name, stored, own in usual]
        return record_text(names, map(type_to_text, kind.types))
    if type(kind) in _WORDS:
        return _WORDS[type(kind)]
    if type(kind) in _PLAIN:
        return ddl_text(kind.arrow)
    raise ConfigurationError(f"values of type {kind} have no column of their own")


def type_from_text(text: str) -> TypeInformation:
    """The type of a recorded text; ``.storage`` is the type of its column. Records come back as Rows, pickles as bytes.

    Example:
        >>> type_from_text("struct<`opened`: time_of_day, `visits`: smallint>").storage
        StructType(struct<opened: int64, visits: int64>)
    """
    return parse_ddl(text, more=_READ, stored_names=True)


def shown_storage(text: str, *, like: str | None = None) -> pa.DataType:
    """The type of a recorded text's column, with the names that fields were declared with instead of those stored.

    Args:
        like: a later or earlier text of the same state: fields that are stored under the same name are called as there.

    Example:
        >>> shown_storage("array<struct<`total` as `sum`: int>>")
        ListType(list<item: struct<total: int64>>)
        >>> shown_storage("struct<`sum`: int, `n`: int>", like="struct<`total` as `sum`: int>")
        StructType(struct<total: int64, n: int64>)
    """
    return _shown(type_from_text(text), None if like is None else type_from_text(like)).storage


def _shown(kind: TypeInformation, like: TypeInformation | None) -> TypeInformation:
    if isinstance(kind, ListType):
        return ListType(_shown(kind.element, like.element if isinstance(like, ListType) else None))
    if isinstance(kind, DictType):
        return DictType(kind.key, _shown(kind.value, like.value if isinstance(like, DictType) else None))
    if isinstance(kind, StructType):
        other = like if isinstance(like, StructType) else kind
        called = dict(zip(other.stored, zip(other.names, other.types, strict=True), strict=True))
        known = {at: called[at] for at in kind.stored if at in called}
        taken = {name for name, _ in known.values()}
        names, types = [], []
        for name, at, inner in zip(kind.names, kind.stored, kind.types, strict=True):
            shown, inner_like = known.get(at, (name, None))
            while at not in known and shown in taken:  # another field has the name there
                shown = f"{shown}_"
            taken.add(shown)
            names.append(shown)
            types.append(_shown(inner, inner_like))
        return StructType(names, types, kind.made_by, stored=names)
    return kind


def _named(name: str, stored: str, usual: str, fill: str | None) -> str:
    """A field, with the name of its column where that is an unusual one: the field was renamed, or came back.

    And with what stands for null in it, where there is such a thing.
    """
    named = quoted(name) if stored == usual else f"{quoted(name)} as {quoted(stored)}"
    return named if fill is None else f"{named} default {quoted(fill)}"
