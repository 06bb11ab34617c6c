"""``KeySchema``: names and types of the columns that make the key of an operator.

One column gives a scalar key, several give a tuple. Keys are stored canonically (``keys.storage_type``) in one struct
column, and shown to functions as declared. Plays the part of Flink's key serializer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from state_engine.core.ddl import ddl_text, parse_ddl
from state_engine.core.keys import decode_keys, storage_type
from state_engine.core.type_parsing import arrow_type


@dataclass(frozen=True)
class KeySchema:
    """Names and declared Arrow types of the key columns.

    Example:
        >>> KeySchema(("origin", "day"), (pa.string(), pa.date32())).storage
        StructType(struct<origin: string, day: int64>)
    """

    names: tuple[str, ...]
    types: tuple[pa.DataType, ...]

    @classmethod
    def declared(cls, text: str) -> KeySchema:
        """The schema whose ``declared_text`` this is."""
        kind = parse_ddl(text).arrow
        return cls(tuple(f.name for f in kind), tuple(f.type for f in kind))

    @property
    def declared_text(self) -> str:
        """Names and declared types, as DDL.

        Example:
            >>> KeySchema.declared(KeySchema(("day",), (pa.date32(),)).declared_text)
            KeySchema(names=('day',), types=(DataType(date32[day]),))
        """
        return ddl_text(pa.struct(list(zip(self.names, self.types, strict=True))))

    @property
    def storage(self) -> pa.DataType:
        """The stored key column. Raises InvalidKeyError where a type cannot be a key."""
        return pa.struct([pa.field(n, storage_type(t)) for n, t in zip(self.names, self.types, strict=True)])

    def decode(self, columns: Sequence[pa.Array]) -> list[Any]:
        """Stored key columns as keys: scalars for one column, tuples for several."""
        decoded = [_decode(c, t) for c, t in zip(columns, self.types, strict=True)]
        return decoded[0] if len(decoded) == 1 else list(zip(*decoded, strict=True))

    def decode_struct(self, keys: pa.Array) -> list[Any]:
        """A stored key column as keys."""
        return self.decode(keys.flatten())

    def __str__(self) -> str:
        return ddl_text(self.storage)


def _decode(column: pa.Array, declared: pa.DataType) -> list[Any]:
    if column.type == declared:
        return arrow_type(declared).from_arrow(column)
    return decode_keys(column, declared)
