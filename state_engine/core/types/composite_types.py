"""Types of values with parts: lists, dicts, and records (tuples, Rows, NamedTuples, dataclasses).

Mirrors ``ListTypeInfo``, ``MapTypeInfo``, ``TupleTypeInfo`` and ``RowTypeInfo`` of Flink.
"""

from __future__ import annotations

import dataclasses
from collections.abc import ItemsView, Iterable, KeysView, Mapping, Set
from functools import cached_property
from typing import Any

import pyarrow as pa

from state_engine.core.counted_nouns import counted
from state_engine.core.errors import ConfigurationError, ValueTypeError
from state_engine.core.types.column_names import storable_names
from state_engine.core.types.row import INSERTS_ONLY, Row, RowKind, default_names, row_class
from state_engine.core.types.type_information import TypeInformation


class ListType(TypeInformation):
    """Lists of one element type."""

    mutable = True

    def __init__(self, element: TypeInformation) -> None:
        self.element = element
        self.arrow, self.storage = pa.list_(element.arrow), pa.list_(element.storage)

    @property
    def completes(self) -> bool:
        return self.element.completes

    @property
    def has_times(self) -> bool:
        return self.element.has_times

    def normalise(self, value: Any) -> list[Any]:
        if isinstance(value, str | bytes | bytearray | memoryview | Mapping) or not isinstance(
            value, Iterable
        ):
            raise self._refuse(value)
        if isinstance(value, Set) and not isinstance(value, KeysView | ItemsView):
            raise self._refuse(
                value, ": its elements have no order, and those of a list do: give sorted(...)"
            )
        try:
            elements = iter(value)
        except TypeError:  # an array of numpy without dimensions
            raise self._refuse(value) from None
        each = self.element.normalise
        return [None if v is None else each(v) for v in elements]

    def copy(self, value: Any) -> Any:
        each = self.element.copy
        return [each(v) for v in value] if value is not None else None

    def to_arrow(self, values: list[Any], *, storage: bool) -> pa.Array:
        flat = self.element.to_arrow([e for v in values if v is not None for e in v], storage=storage)
        return pa.ListArray.from_arrays(_offsets(values), flat, mask=_mask(values))

    def from_arrow(self, array: pa.Array) -> list[Any]:
        flat = self.element.from_arrow(array.flatten())
        lengths = array.value_lengths().to_pylist()
        return _cut(flat, lengths)

    def __str__(self) -> str:
        return f"list<item: {self.element}>"


class DictType(TypeInformation):
    """Dicts of one key type and one value type."""

    mutable = True

    def __init__(self, key: TypeInformation, value: TypeInformation) -> None:
        self.key, self.value = key, value
        self.arrow, self.storage = pa.map_(key.arrow, value.arrow), pa.map_(key.storage, value.storage)

    @property
    def completes(self) -> bool:
        return self.value.completes

    @property
    def has_times(self) -> bool:
        return self.key.has_times or self.value.has_times

    def normalise(self, value: Any) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise self._refuse(value)
        if None in value:
            raise self._refuse(value, ": its keys must not be None")
        key, each = self.key.normalise, self.value.normalise
        made = {key(k): None if v is None else each(v) for k, v in value.items()}
        if len(made) < len(value):
            raise self._refuse(value, ": two of its keys become one")
        return made

    def copy(self, value: Any) -> Any:
        each = self.value.copy
        return {k: each(v) for k, v in value.items()} if value is not None else None

    def to_arrow(self, values: list[Any], *, storage: bool) -> pa.Array:
        items = [item for v in values if v is not None for item in v.items()]
        keys = self.key.to_arrow([k for k, _ in items], storage=storage)
        vals = self.value.to_arrow([v for _, v in items], storage=storage)
        kind = self.storage if storage else self.arrow
        made = pa.MapArray.from_arrays(_offsets(values, null_is_none=True), keys, vals)
        return made.cast(kind)

    def from_arrow(self, array: pa.Array) -> list[Any]:
        start, end = (array.offsets[0].as_py(), array.offsets[-1].as_py()) if len(array) else (0, 0)
        keys = self.key.from_arrow(array.keys.slice(start, end - start))
        items = zip(keys, self.value.from_arrow(array.items.slice(start, end - start)), strict=True)
        offsets, valid = array.offsets.to_pylist(), array.is_valid().to_pylist()
        pairs, out = list(items), []
        for i, there in enumerate(valid):
            out.append(dict(pairs[offsets[i] - start : offsets[i + 1] - start]) if there else None)
        return out

    def __str__(self) -> str:
        return f"map<{self.key}, {self.value}>"


class StructType(TypeInformation):
    """Records: tuples, Rows, NamedTuples or dataclasses, by what made them.

    Args:
        stored: names of the fields in storage, where a rename or a return of a field keeps them apart from ``names``.
        aliases: by field, the name that it had before it was renamed.
        fills: by field that was added with a default, that default as ``to_json`` writes it. What was stored before has
            it, where the field is null; so no record may have None there.
    """

    def __init__(
        self,
        names: Iterable[str],
        types: Iterable[TypeInformation],
        made_by: Any = tuple,
        *,
        stored: Iterable[str] | None = None,
        aliases: Mapping[str, str] | None = None,
        fills: Mapping[str, str] | None = None,
    ) -> None:
        self.names, self.types, self.made_by = tuple(names), tuple(types), made_by
        self.stored = storable_names(self.names) if stored is None else tuple(stored)
        self.aliases, self.fills = dict(aliases or {}), dict(fills or {})
        if len(set(self.names)) != len(self.names):
            raise ConfigurationError(f"field names must be unique, not {list(self.names)}")
        self.arrow = pa.struct([pa.field(n, t.arrow) for n, t in zip(self.names, self.types, strict=True)])
        self.storage = pa.struct(
            [pa.field(n, t.storage) for n, t in zip(self.stored, self.types, strict=True)]
        )
        self._dataclass = dataclasses.is_dataclass(made_by)
        frozen = not self._dataclass or made_by.__dataclass_params__.frozen
        self.mutable = not frozen or any(t.mutable for t in self.types)
        self._class = row_class(self.names) if made_by == "row" else made_by

    def __getstate__(self) -> dict[str, Any]:
        # a class of rows that travelled would be another one there, and no test would know its rows
        return {**vars(self), "_class": None} if self.made_by == "row" else vars(self)

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
        if self.made_by == "row":
            self._class = row_class(self.names)

    @property
    def completes(self) -> bool:
        return bool(self.fills) or any(kind.completes for kind in self.types)

    @property
    def has_times(self) -> bool:
        return any(kind.has_times for kind in self.types)

    @cached_property
    def _filled(self) -> dict[int, Any]:
        """What stands for null, by the place of a field."""
        from state_engine.core.types.json_values import from_json  # which needs all types

        places = {name: self.names.index(name) for name in self.fills}
        return {at: from_json(self.types[at], [self.fills[name]])[0] for name, at in places.items()}

    @property
    def stored_defaults(self) -> dict[int, pa.Array]:
        """What stands for null, by the place of a field, as an array of one stored value."""
        return {at: self.types[at].to_arrow([value], storage=True) for at, value in self._filled.items()}

    def check(self, var: str, names: dict[str, Any]) -> str | None:
        if self._dataclass or self.mutable or self.fills:
            return None
        label = f"c{len(names)}"
        names[label] = self._class
        tests = [f"type({var}) is {label}", f"len({var}) == {len(self.types)}"]
        names["item"] = tuple.__getitem__
        for i, kind in enumerate(self.types):
            field = f"{var}_{i}"
            part = kind.check(field, names)
            if part is None:
                return None
            # subscripts of a Row would run Python code; that the field is itself is true, and costs next to nothing
            value = f"{var}[{i}]" if self._class is tuple else f"item({var}, {i})"
            tests.append(f"({field} := {value}) is {field} and ({part} or {field} is None)")
        return f"({' and '.join(tests)})"

    def normalise(self, value: Any) -> Any:
        parts = []
        for name, kind, part in zip(self.names, self.types, self._parts(value), strict=True):
            try:
                parts.append(self.without_value(name) if part is None else kind.normalise(part))
            except ValueTypeError as error:
                raise ValueTypeError(f"field '{name}': {error}") from None
        return self._make(parts)

    def without_value(self, name: str) -> Any:
        """None, for a field without a value; ValueTypeError where that would be read as another value."""
        if name in self.fills:
            raise ValueTypeError(
                f"None cannot be kept apart from what was stored before the field was added, which has its default "
                f"{self.fills[name]}: give it a value, or give the field another name"
            )
        return None

    def copy(self, value: Any) -> Any:
        if value is None or not self.mutable:
            return value
        return self._make([t.copy(p) for t, p in zip(self.types, self._parts(value), strict=True)])

    def to_arrow(self, values: list[Any], *, storage: bool) -> pa.Array:
        whole = self.storage if storage else self.arrow
        empty = (None,) * len(self.types)
        if self._dataclass:
            rows = [empty if v is None else tuple(getattr(v, n) for n in self.names) for v in values]
        else:
            rows = [empty if v is None else v for v in values] if None in values else values
        columns = [list(c) for c in zip(*rows, strict=True)] if values else [[] for _ in self.types]
        arrays = [t.to_arrow(c, storage=storage) for t, c in zip(self.types, columns, strict=True)]
        return pa.StructArray.from_arrays(arrays, fields=list(whole), mask=_mask(values))

    def from_arrow(self, array: pa.Array) -> list[Any]:
        columns = [t.from_arrow(c) for t, c in zip(self.types, array.flatten(), strict=True)]
        for at, value in self._filled.items() if self.fills else ():
            columns[at] = [self.types[at].copy(value) if v is None else v for v in columns[at]]
        rows = self.from_columns(columns)
        if array.null_count:
            return [r if there else None for r, there in zip(rows, array.is_valid().to_pylist(), strict=True)]
        return rows

    def from_columns(self, columns: list[list[Any]]) -> list[Any]:
        rows = list(zip(*columns, strict=True))
        return rows if self._class is tuple else list(map(self._make, rows))

    def to_plain(self, value: Any) -> Any:
        if value is None:
            return None
        return {n: t.to_plain(p) for n, t, p in zip(self.names, self.types, self._parts(value), strict=True)}

    def __str__(self) -> str:
        return f"struct<{', '.join(f'{n}: {t}' for n, t in zip(self.names, self.types, strict=True))}>"

    def _make(self, parts: Iterable[Any]) -> Any:
        if self._dataclass:
            return self._class(**dict(zip(self.names, parts, strict=True)))
        return tuple.__new__(self._class, parts)

    def _parts(self, value: Any) -> Iterable[Any]:
        """The fields of anything that has them: by name where the names are the same, else by position."""
        if isinstance(value, tuple | list):
            if isinstance(value, Row) and value.get_row_kind() is not RowKind.INSERT:
                raise self._refuse(value, f": its row kind is {value.get_row_kind()}, and {INSERTS_ONLY}")
            fields = getattr(value, "_fields", self.names)
            if fields != self.names and set(fields) == set(self.names):
                plain = tuple(value)
                return [plain[fields.index(n)] for n in self.names]
            if len(value) == len(self.names):
                if self._are_others(value, fields):
                    raise self._refuse(
                        value,
                        f": it has the fields {list(fields)}, {list(self.names)} are declared. Name them so, or give a "
                        "plain tuple, whose fields go by position",
                    )
                return value
            raise self._refuse(
                value, f": it has {counted(len(value), 'field')}, {len(self.names)} are declared"
            )
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        if isinstance(value, Mapping):
            if set(value) == set(self.names):
                return [value[n] for n in self.names]
            missing = sorted(set(self.names) - set(value))
            extra = sorted(str(n) for n in set(value) - set(self.names))
            raise self._refuse(value, f": missing fields {missing}, unknown fields {extra}")
        raise self._refuse(value)

    def _are_others(self, value: Any, fields: tuple[str, ...]) -> bool:
        """Whether a record says of its fields that they are not the declared ones.

        A Row of other names is another record, unless either has none; a NamedTuple may have names of its own, and only
        one that stands elsewhere shows that it is.
        """
        if isinstance(value, Row) and default_names(len(fields)) not in (fields, self.names):
            return fields != self.names
        return any(n in fields and fields.index(n) != at for at, n in enumerate(self.names))


def _mask(values: list[Any]) -> pa.Array | None:
    return pa.array([v is None for v in values]) if None in values else None


def _offsets(values: list[Any], *, null_is_none: bool = False) -> pa.Array:
    """Offsets of a list array; with ``null_is_none`` a None value has a None offset (how MapArray marks nulls)."""
    total, offsets = 0, []
    for value in values:
        offsets.append(None if null_is_none and value is None else total)
        total += 0 if value is None else len(value)
    return pa.array([*offsets, total], pa.int32())


def _cut(flat: list[Any], lengths: list[int | None]) -> list[Any]:
    start, out = 0, []
    for length in lengths:
        out.append(None if length is None else flat[start : start + length])
        start += length or 0
    return out
