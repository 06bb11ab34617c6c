"""``Row``: a tuple whose fields also have names, and a ``RowKind``.

A stream element read from a DataFrame is a Row, and so may be an output. Mirrors PyFlink's ``pyflink.common.Row`` and
``RowKind``, as an immutable tuple: fields by position, by name and as attributes. Differences: two rows are equal where
their values are, as tuples; a field is not assigned to, a new row is made (``row.replace(a=1)``).
"""

from __future__ import annotations

import keyword
from collections import namedtuple
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import cache
from itertools import repeat
from typing import Any

from state_engine.core.counted_nouns import counted


class RowKind(Enum):
    """What a row says about a table that changes. It travels with the rows of a stream that changes; states keep none.

    Of an update, the row ``UPDATE_BEFORE`` that it replaces comes before the row ``UPDATE_AFTER``.

    Example:
        >>> str(RowKind.UPDATE_AFTER)
        '+U'
    """

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3

    def __str__(self) -> str:
        return ("+I", "-U", "+U", "-D")[self.value]


class Row(tuple[Any, ...]):
    """A tuple with field names.

    ``Row(1, "x")`` names its fields ``f0``, ``f1``; ``Row(a=1, b="x")`` gives names; ``Row("a", "b")`` may
    be called as a factory for rows with these names.

    Example:
        >>> row = Row("id", "name")(7, "ada")
        >>> row.id, row["name"], row[0], row.as_dict()
        (7, 'ada', 7, {'id': 7, 'name': 'ada'})
        >>> Row(1, 2).as_dict()
        {'f0': 1, 'f1': 2}
    """

    __slots__ = ()
    _fields: tuple[str, ...] = ()
    _kind = RowKind.INSERT

    def __new__(cls, /, *values: Any, **named: Any) -> Row:
        if values and named:
            raise TypeError("a Row takes either positional or named fields, not both")
        if named:
            return tuple.__new__(row_class(tuple(named)), named.values())
        if cls is Row:
            cls = row_class(default_names(len(values)))
        return tuple.__new__(cls, values)

    def __call__(self, *values: Any) -> Row:
        """Make a row whose field names are this row's values."""
        if len(values) != len(self):
            raise TypeError(
                f"{counted(len(self), 'field is', 'fields are')} named, {counted(len(values), 'value')} given"
            )
        return tuple.__new__(row_class(tuple(self)), values)

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, str):
            try:
                return tuple.__getitem__(self, self._fields.index(item))
            except ValueError:
                raise KeyError(f"no field '{item}' in this row; it has {list(self._fields)}") from None
        return tuple.__getitem__(self, item)

    def __getattr__(self, name: str) -> Any:
        # reached only where no attribute of that name exists: field names that Python cannot spell come by getattr
        if name in self._fields:
            return tuple.__getitem__(self, self._fields.index(name))
        raise AttributeError(f"no field '{name}' in this row; it has {list(self._fields)}")

    def __contains__(self, item: object) -> bool:
        """Whether a field has this name; without names, whether a field has this value."""
        if self._fields == default_names(len(self)):
            return tuple.__contains__(self, item)
        return item in self._fields

    def __setitem__(self, item: Any, value: Any) -> None:
        raise TypeError("a row cannot be changed; make a new one: row.replace(field=value)")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a row cannot be changed; make a new one: row.replace(field=value)")

    def as_dict(self, recursive: bool = False) -> dict[str, Any]:
        """The fields as a dict, in their order; ``recursive`` turns rows inside of lists, dicts and rows, too.

        Example:
            >>> Row(id=1, home=Row(city="Turin")).as_dict(True)
            {'id': 1, 'home': {'city': 'Turin'}}
        """
        values = map(_as_dicts, self) if recursive else self
        return dict(zip(self._fields, values, strict=True))

    def replace(self, /, **named: Any) -> Row:
        """A row with other values in the named fields. Raises KeyError where there is no such field.

        Example:
            >>> Row(id=1, name="ada").replace(id=2)
            Row(id=2, name='ada')
        """
        for name in named:
            self[name]
        return tuple.__new__(type(self), [named.get(n, v) for n, v in zip(self._fields, self, strict=True)])

    def set_field_names(self, field_names: Sequence[str]) -> None:
        """Give this very row other field names. Raises ValueError where the number differs or a name comes twice.

        Example:
            >>> row = Row(1, 2)
            >>> row.set_field_names(["x", "y"])
            >>> row.y
            2
        """
        if len(field_names) != len(self) or len(set(field_names)) != len(self):
            raise ValueError(f"{len(self)} different field names are needed, not {list(field_names)}")
        _become(self, tuple(field_names), self._kind)

    def get_fields_by_names(self, names: Sequence[str]) -> list[Any]:
        """The values of these fields. Raises KeyError where there is no such field."""
        return [self[name] for name in names]

    def get_row_kind(self) -> RowKind:
        """What the row says about a table; an insert unless set otherwise."""
        return self._kind

    def set_row_kind(self, row_kind: RowKind) -> None:
        """Make this very row an insert, an update or a delete; rows are equal whatever their kind."""
        _become(self, self._fields, RowKind(row_kind))

    @staticmethod
    def of_kind(row_kind: RowKind, /, *values: Any, **named: Any) -> Row:
        """A row of this kind.

        Example:
            >>> Row.of_kind(RowKind.DELETE, id=7).get_row_kind()
            <RowKind.DELETE: 3>
        """
        row = Row(*values, **named)
        row.set_row_kind(row_kind)
        return row

    def __reduce__(self) -> tuple[Callable[..., Row], tuple[Any, ...]]:
        if self._kind is RowKind.INSERT:
            return _make, (self._fields, tuple(self))
        return _make, (self._fields, tuple(self), self._kind)

    def __repr__(self) -> str:
        return f"Row({', '.join(f'{n}={v!r}' for n, v in zip(self._fields, self, strict=True))})"


_RESERVED = {name for name in vars(Row) if not name.startswith("_")}
"""Methods: a field of such a name is found by ``row["name"]`` only."""


@cache
def row_class(names: tuple[str, ...]) -> type[Row]:
    """The subclass of Row for these field names; one class per tuple of names."""
    # what is named here is not replaced by a field of that name
    members: dict[str, Any] = {"__slots__": (), "_fields": names, "_kind": RowKind.INSERT, "__doc__": None}
    # namedtuple's own field descriptors read a position in C; a property over our __getitem__ is 5 times slower
    # (the tuple type is kept in a variable: once collected, its namespace would be empty)
    shape = namedtuple("shape", [f"f{i}" for i in range(len(names))])  # type: ignore[misc]
    getters = vars(shape)
    for position, name in enumerate(names):
        spelled = name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("__")
        if spelled and name not in _RESERVED:
            members.setdefault(name, getters[f"f{position}"])
    return type("Row", (Row,), members)


def rows_from_columns(names: tuple[str, ...], columns: Iterable[list[Any]]) -> list[Row]:
    """Zip decoded columns into rows, fast."""
    return list(map(tuple.__new__, repeat(row_class(names)), zip(*columns, strict=True)))


def _make(names: tuple[str, ...], values: tuple[Any, ...], kind: RowKind = RowKind.INSERT) -> Row:
    return tuple.__new__(_class_of_kind(names, kind), values)


@cache
def _class_of_kind(names: tuple[str, ...], kind: RowKind) -> type[Row]:
    # the kind lives in the class, as the names do: an insert, which nearly every row is, carries nothing for it
    plain = row_class(names)
    return plain if kind is RowKind.INSERT else type("Row", (plain,), {"__slots__": (), "_kind": kind})


def row_of_kind(row: Row, kind: RowKind) -> Row:
    """A row with these fields and values, and another kind; the row itself where it has that.

    Example:
        >>> row_of_kind(Row(id=7), RowKind.DELETE).get_row_kind()
        <RowKind.DELETE: 3>
    """
    return row if row.get_row_kind() is kind else tuple.__new__(_class_of_kind(row._fields, kind), row)


INSERTS_ONLY = (
    "a stream or a state of inserts keeps no kinds. A process function that puts them out says emits_changes = True; "
    "before a row goes into a state, call row.set_row_kind(RowKind.INSERT)"
)
"""Why a row that is no insert is refused, and the ways out."""


def _become(row: Row, names: tuple[str, ...], kind: RowKind) -> None:
    object.__setattr__(row, "__class__", _class_of_kind(names, kind))


@cache
def default_names(length: int) -> tuple[str, ...]:
    """The names of so many fields where nobody names them."""
    return tuple(f"f{i}" for i in range(length))


def _as_dicts(value: Any) -> Any:
    if isinstance(value, Row):
        return value.as_dict(True)
    if isinstance(value, list):
        return [_as_dicts(v) for v in value]
    if isinstance(value, dict):
        return {k: _as_dicts(v) for k, v in value.items()}
    return value
