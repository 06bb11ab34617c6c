"""``KeySchema``: names and types of the columns that make the key of an operator.

One column gives a scalar key, several give a tuple. Keys are stored canonically (``keys.storage_type``) in one struct
column, and shown to functions as declared. A key whose type was changed is stored under other names, for a table's
column has one type for ever. Plays the part of Flink's key serializer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from state_engine.core.keys.canonical import decode_keys, storage_type
from state_engine.core.types.column_names import storable_names
from state_engine.core.types.ddl import ddl_text, parse_ddl, quoted, record_text
from state_engine.core.types.every_type import StructType, TimeType
from state_engine.core.types.type_information import TypeInformation
from state_engine.core.types.type_parsing import arrow_type

_TIME = "time"
"""What a time of day is called in the recorded text of a key."""


@dataclass(frozen=True)
class KeySchema:
    """Names and declared Arrow types of the key columns.

    Attributes:
        stored: what the columns are called in storage, where they are called otherwise there; see ``columns``.
        times: names of the columns that are times of day: numbers for storage, and text for readers.
    """

    names: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    stored: tuple[str, ...] = ()
    times: tuple[str, ...] = field(default=(), compare=False, repr=False)

    @classmethod
    def declared(cls, text: str) -> KeySchema:
        """The schema whose ``declared_text`` this is."""
        kind = parse_ddl(text, more={_TIME: TimeType})
        assert isinstance(kind, StructType)
        times = [n for n, part in zip(kind.names, kind.types, strict=True) if isinstance(part, TimeType)]
        return cls(tuple(kind.names), tuple(f.type for f in kind.arrow), times=tuple(times))

    @classmethod
    def recorded(cls, key_schema: str, key_type: str) -> KeySchema:
        """The schema that a checkpoint records of an operator: its stored form, and its declared one if that is known.

        Example:
            >>> KeySchema.recorded("struct<`k__2`: string>", "struct<`k`: string>").columns
            ('k__2',)
        """
        schema, columns = cls.declared(key_type or key_schema), parse_ddl(key_schema).arrow.names
        return replace(schema, stored=() if tuple(columns) == schema.columns else tuple(columns))

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns in storage."""
        return self.stored or storable_names(self.names)

    @property
    def declared_text(self) -> str:
        """Names and declared types, as DDL.

        Example:
            >>> KeySchema.declared(KeySchema(("day",), (pa.date32(),)).declared_text)
            KeySchema(names=('day',), types=(DataType(date32[day]),), stored=())
        """
        return record_text(map(quoted, self.names), self.type_texts)

    @property
    def type_texts(self) -> list[str]:
        kinds = zip(self.names, self.types, strict=True)
        return [_TIME if name in self.times else ddl_text(kind) for name, kind in kinds]

    @property
    def storage(self) -> pa.DataType:
        """The stored key column. Raises InvalidKeyError where a type cannot be a key."""
        pairs = zip(self.columns, self.types, strict=True)
        return pa.struct([pa.field(n, storage_type(t)) for n, t in pairs])

    @property
    def shown(self) -> tuple[pa.DataType, ...]:
        """Types of the columns for readers: as stored, but dates, decimals and booleans as declared, and times as text.

        Example:
            >>> KeySchema.declared("struct<`day`: date, `price`: decimal(5,2), `size`: smallint>").shown
            (DataType(date32[day]), Decimal128Type(decimal128(5, 2)), DataType(int64))
        """
        kinds = zip(self.names, self.types, strict=True)
        return tuple(pa.string() if name in self.times else _shown(kind) for name, kind in kinds)

    @property
    def kinds(self) -> tuple[TypeInformation, ...]:
        pairs = zip(self.names, self.types, strict=True)
        return tuple(TimeType() if name in self.times else arrow_type(kind) for name, kind in pairs)

    def stored_in(self, tables: Iterable[pa.DataType]) -> KeySchema:
        """This key under names that it can have in tables: a column of another type keeps its name for itself.

        Example:
            >>> KeySchema(("k",), (pa.string(),)).stored_in([pa.struct([("k", pa.int64())])]).columns
            ('k__2',)
        """
        known = [f for table in tables for f in table]
        names: list[str] = []
        for name, kind in zip(self.names, self.types, strict=True):
            own, number = name, 1
            # tables do not distinguish upper and lower case
            while _is_taken(own, storage_type(kind), known) or own.lower() in map(str.lower, names):
                number += 1
                own = f"{name}__{number}"
            names.append(own)
        return replace(self, stored=() if tuple(names) == self.names else tuple(names))

    def is_stored_like(self, other: KeySchema) -> bool:
        """Whether every key is, under both schemas, the same stored key with the same hash, of the same kind.

        Numbers may be of another width, decimals of another scale; a date is no number, though it is stored as one.

        Example:
            >>> day, number, small = (KeySchema(("k",), (t,)) for t in (pa.date32(), pa.int64(), pa.int16()))
            >>> number.is_stored_like(small), number.is_stored_like(day)
            (True, False)
        """
        return self.names == other.names and [_kind(t) for t in self.types] == [_kind(t) for t in other.types]

    def decode(self, columns: Sequence[pa.Array]) -> list[Any]:
        """Stored key columns as keys: scalars for one column, tuples for several."""
        decoded = [_decode(c, t) for c, t in zip(columns, self.types, strict=True)]
        return decoded[0] if len(decoded) == 1 else list(zip(*decoded, strict=True))

    def decode_struct(self, keys: pa.Array) -> list[Any]:
        return self.decode(keys.flatten())

    def __str__(self) -> str:
        return ddl_text(self.storage)


def _shown(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([(f.name, _shown(f.type)) for f in kind])
    if pa.types.is_date(kind) or pa.types.is_decimal(kind) or pa.types.is_boolean(kind):
        return kind
    return storage_type(kind)


def _decode(column: pa.Array, declared: pa.DataType) -> list[Any]:
    if column.type == declared:
        return arrow_type(declared).from_arrow(column)
    return decode_keys(column, declared)


def _is_taken(name: str, kind: pa.DataType, known: Sequence[pa.Field]) -> bool:
    """Whether a column has the name and another type, or the name in other letters."""
    same = [f for f in known if f.name.lower() == name.lower()]
    return any(f.name != name or f.type != kind for f in same)


def _kind(declared: pa.DataType) -> Any:
    """What two types have in common whose equal values are one key."""
    types = pa.types
    if types.is_struct(declared):
        return tuple((f.name, _kind(f.type)) for f in declared)
    names = {"date": types.is_date, "boolean": types.is_boolean, "decimal": types.is_decimal}
    return next((n for n, is_one in names.items() if is_one(declared)), None) or storage_type(declared)
