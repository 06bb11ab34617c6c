"""``Row``: a tuple whose fields also have names.

A stream element read from a DataFrame is a Row, and so may be an output. Mirrors PyFlink's
``pyflink.common.Row``, as an immutable tuple: fields by position, by name and as attributes.
"""

from __future__ import annotations

import keyword
from collections import namedtuple
from collections.abc import Callable, Iterable
from functools import cache
from itertools import repeat
from typing import Any


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

    def __new__(cls, *values: Any, **named: Any) -> Row:
        if values and named:
            raise TypeError("a Row takes either positional or named fields, not both")
        if named:
            return tuple.__new__(row_class(tuple(named)), named.values())
        if cls is Row:
            cls = row_class(tuple(f"f{i}" for i in range(len(values))))
        return tuple.__new__(cls, values)

    def __call__(self, *values: Any) -> Row:
        """Make a row whose field names are this row's values."""
        if len(values) != len(self):
            raise TypeError(f"{len(self)} fields are named, {len(values)} values given")
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

    def as_dict(self) -> dict[str, Any]:
        """The fields as a dict, in their order."""
        return dict(zip(self._fields, self, strict=True))

    def __reduce__(self) -> tuple[Callable[..., Row], tuple[Any, ...]]:
        return _make, (self._fields, tuple(self))

    def __repr__(self) -> str:
        return f"Row({', '.join(f'{n}={v!r}' for n, v in zip(self._fields, self, strict=True))})"


_RESERVED = {"as_dict"}


@cache
def row_class(names: tuple[str, ...]) -> type[Row]:
    """The subclass of Row for these field names; one class per tuple of names."""
    members: dict[str, Any] = {"__slots__": (), "_fields": names, "__doc__": None}
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


def _make(names: tuple[str, ...], values: tuple[Any, ...]) -> Row:
    return tuple.__new__(row_class(names), values)
