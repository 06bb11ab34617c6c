"""A keyed state as a table: its columns, and stored entries as rows of it.

value of a type       key columns, ``value``
value of a record     key columns, a column a field; a field of the name of a key column is that column
map                   key columns, the column of map keys or one for each of their fields, and the value in one of the
                      two forms
list                  key columns, ``value``: all elements

Columns have the types that key and state are declared with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.checkpoints.checkpoint import OperatorCheckpoint
from state_engine.core.errors import ConfigurationError
from state_engine.core.keys.entry_codes import leaves
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.state.descriptors import SHAPES
from state_engine.core.state.state_schema import StateSchema
from state_engine.core.types.columns import one_chunk
from state_engine.core.types.type_parsing import arrow_type
from state_engine.core.types.type_text import type_from_text
from state_engine.state_tables.base import TableColumns
from state_engine.storage.layout import state_column

VALUE = "value"


@dataclass(frozen=True)
class TableForm:
    """See the module docstring.

    Attributes:
        map_key: the column of a map's keys; None gives each field of these its own column.
    """

    key: KeySchema
    schema: StateSchema
    map_key: str | None = "map_key"

    @classmethod
    def of(cls, operator: OperatorCheckpoint, schema: StateSchema, *, map_key: str | None) -> TableForm:
        form = cls(KeySchema.recorded(operator.key_schema, operator.key_type), schema, map_key)
        return form.checked(operator.uid)

    def checked(self, operator: str) -> TableForm:
        """The form itself, if it is one, without two columns of one name; else ConfigurationError with the operator."""
        if self.map_key is None and not (
            self.shape == "map" and pa.types.is_struct(self._declared.field("key").type)
        ):
            raise ConfigurationError(
                f"operator '{operator}', state '{self.schema.name}': map_key=None gives a column to each field of a "
                "map's keys, and it has no keys that are records: leave map_key out"
            )
        names = self.columns.schema.names
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigurationError(
                f"operator '{operator}', state '{self.schema.name}': a table of it would have two columns {twice}. "
                "Rename the field; for the key of a map, name its column with map_key="
            )
        return self

    @property
    def shape(self) -> str:
        return SHAPES[self.schema.kind]

    @property
    def column(self) -> str:
        return state_column(self.schema.column_name)

    @property
    def columns(self) -> TableColumns:
        fields = dict(self._value_fields)
        declared = zip(self.key.names, self.key.types, strict=True)
        given = [(name, fields.get(name, kind)) for name, kind in declared]
        key = tuple(name for name, _ in given)
        entry: tuple[str, ...] = ()
        if self.shape == "map":
            of_map = self._key_fields
            entry = tuple(name for name, _ in of_map)
            given += [(name, kind) for name, kind in of_map if name not in fields or self.map_key is None]
        held = {name for name, _ in given if name in fields} - set(entry if self.map_key is None else ())
        first = [pa.field(name, kind) for name, kind in given if name not in held]
        return TableColumns(pa.schema([*first, *(pa.field(n, k) for n, k in self._value_fields)]), key, entry)

    def rows(self, entries: pa.Table) -> pa.Table:
        columns = self.columns
        parts = self.identities(entries) | self._values(entries)
        return _table(parts, columns.schema)

    def entries(self, entries: pa.Table) -> pa.Table:
        """Entries as rows with the whole value in one column, as ``read_state`` gives them."""
        fields = [self.columns.schema.field(name) for name in self.columns.identity]
        schema = pa.schema([*fields, pa.field(VALUE, self._value_type)])
        return _table(self.identities(entries) | {VALUE: self._value(entries)}, schema)

    def identities(self, entries: pa.Table) -> dict[str, pa.Array]:
        """The columns that identify rows, as far as key and map key give them."""
        key = one_chunk(entries["key"])
        parts = dict(zip(self.key.names, key.flatten(), strict=True))
        if self.shape == "map" and self.column in entries.schema.names:
            map_keys = one_chunk(entries[self.column]).field("key")
            parts |= (
                {self.map_key: map_keys} if self.map_key is not None else _named(self._key_fields, map_keys)
            )
        return parts

    def identity_rows(self, entries: pa.Table, *, key_only: bool = False) -> pa.Table:
        columns = self.columns
        names = columns.key if key_only else columns.identity
        schema = pa.schema([columns.schema.field(name) for name in names])
        return _table(self.identities(entries), schema)

    @property
    def _declared(self) -> pa.DataType:
        return type_from_text(self.schema.type).arrow

    @property
    def _value_type(self) -> pa.DataType:
        declared = self._declared
        if self.shape == "map":
            return declared.field("value").type
        if self.shape == "list":
            return pa.list_(declared.value_type.field("value").type)
        return declared

    @property
    def _key_fields(self) -> list[tuple[str, pa.DataType]]:
        kind = self._declared.field("key").type
        return _fields(kind) if self.map_key is None else [(self.map_key, kind)]

    @property
    def _value_fields(self) -> list[tuple[str, pa.DataType]]:
        kind = self._value_type
        return _fields(kind) if pa.types.is_struct(kind) else [(VALUE, kind)]

    def _value(self, entries: pa.Table) -> pa.Array:
        array = one_chunk(entries[self.column])
        if self.shape == "map":
            return array.field("value")
        if self.shape == "list":
            elements = array.flatten().field("value")
            lengths = pc.cumulative_sum(array.value_lengths().fill_null(0))
            return pa.ListArray.from_arrays(pa.concat_arrays([pa.array([0], pa.int32()), lengths]), elements)
        return array

    def _values(self, entries: pa.Table) -> dict[str, pa.Array]:
        array = self._value(entries)
        if not pa.types.is_struct(array.type):
            return {VALUE: array}
        return _named(self._value_fields, array)


def _table(parts: Mapping[str, pa.Array], schema: pa.Schema) -> pa.Table:
    return pa.table([_as(parts[field.name], field.type) for field in schema], schema)


def _as(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """A stored column in its declared type; dates of keys are stored as numbers."""
    if array.type == kind:
        return array
    if pa.types.is_struct(kind):
        parts = [_as(part, field.type) for part, field in zip(array.flatten(), kind, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    if pa.types.is_date(kind) and pa.types.is_int64(array.type):
        array = array.cast(pa.int32()).cast(pa.date32())
    return array.cast(kind)


def _named(fields: Sequence[tuple[str, pa.DataType]], records: pa.StructArray) -> dict[str, pa.Array]:
    """The parts of records by declared names: files of a state whose fields were renamed have the older ones."""
    return dict(zip((name for name, _ in fields), records.flatten(), strict=True))


def _fields(kind: pa.StructType | pa.Schema) -> list[tuple[str, pa.DataType]]:
    return [(field.name, field.type) for field in kind]


def rows_by_identity(columns: TableColumns, rows: pa.Table) -> list[Any]:
    """Rows of a table as ``Row`` objects, in the order of what identifies them, null first."""
    if not rows.num_rows:
        return []
    order = np.arange(rows.num_rows)
    for name in reversed(columns.identity):
        for leaf in reversed(list(leaves(one_chunk(rows[name])))):
            values = leaf.to_pylist()
            order = np.array(sorted(order, key=lambda at: _by(values[at])), np.int64)
    struct = rows.take(pa.array(order)).to_struct_array()
    return list(arrow_type(struct.type).from_arrow(one_chunk(struct)))


def _by(value: Any) -> tuple[bool, Any]:
    """For an order in which null comes first."""
    return value is not None, 0 if value is None else value
