"""``KeyedRows``: what the state of a keyed table holds of the rows of a stream.

A table that shows a state has the columns of the key, which are stored with every entry of state, and the columns of
the state. So the state holds the other columns of a row: no column is stored twice, and a row cannot contradict its
key. Plays the part of the projections around Flink's ``KeyedUpsertingSinkOperator`` of tables with a primary key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

from state_engine.core.errors import ConfigurationError, InvalidKeyError, ValueTypeError
from state_engine.core.keys.ordering import key_order
from state_engine.core.types.every_type import StructType, TypeInformation
from state_engine.core.types.row import Row, RowKind, row_class
from state_engine.core.types.type_information import TypeLike
from state_engine.core.types.type_parsing import to_type
from state_engine.operators.aggregates.accumulators import BIGINT
from state_engine.operators.key_values import key_values
from state_engine.operators.retraction import without_kind

ROW_TIME = "row_time"
"""The field with the event time of a row in milliseconds, where a state keeps it behind the columns."""
GONE = frozenset({RowKind.UPDATE_BEFORE, RowKind.DELETE})
"""Kinds of rows that a table no longer has."""


class KeyedRows:
    """The columns of a stream's rows, and those of them that a state keeps.

    Args:
        row_type: type of the stream's elements: records with named columns.
        apart: columns that the state does not keep with the others: those of the key, and of a map's key.

    Example:
        >>> rows = KeyedRows("id bigint, city string", apart=["id"], operator="LastRow")
        >>> rows.kept_of(rows.normal({"id": 7, "city": "Turin"}))
        Row(city='Turin')
    """

    def __init__(self, row_type: TypeLike, *, apart: Iterable[str], operator: str) -> None:
        kind = to_type(row_type, parameter=f"row_type of {operator}")
        if not isinstance(kind, StructType):
            raise ConfigurationError(f"{operator} needs rows with named columns, not elements of type {kind}")
        self._operator = operator
        self.columns = StructType(kind.names, kind.types, "row", aliases=kind.aliases)
        names_apart = self.named(apart)
        left_out = set(names_apart)
        self._apart_at = [kind.names.index(name) for name in names_apart]
        if not left_out < set(kind.names):
            raise ConfigurationError(
                f"{operator}: a row has no column besides {sorted(left_out)}: give it one that can change"
            )
        self.kept = self.only([name for name in kind.names if name not in left_out])
        self._kept_at = [kind.names.index(name) for name in self.kept.names]

    def named(self, columns: Iterable[str]) -> tuple[str, ...]:
        """These columns, if rows have them. Raises ConfigurationError otherwise."""
        names = tuple(columns)
        unknown = [name for name in names if name not in self.columns.names]
        if unknown:
            raise ConfigurationError(
                f"{self._operator}: there is no column {unknown}; a row has {list(self.columns.names)}"
            )
        return names

    def only(self, columns: Sequence[str]) -> StructType:
        """A type for some of the columns, in the order given."""
        types = dict(zip(self.columns.names, self.columns.types, strict=True))
        aliases = {name: self.columns.aliases[name] for name in columns if name in self.columns.aliases}
        return StructType(columns, [types[name] for name in columns], "row", aliases=aliases)

    def in_order(self, columns: Sequence[str], *, what: str) -> StructType:
        """The same for columns that rows are ordered by. Raises ConfigurationError where a type has no order."""
        kind = self.only(self.named(columns))
        for name, part in zip(kind.names, kind.types, strict=True):
            check_order(part, f"{self._operator}: the {what} column '{name}'")
        return kind

    def normal(self, value: Any) -> Row:
        """An element as a row without kind, its columns as declared. Raises ValueTypeError."""
        row: Row = self._normalise(without_kind(value))
        return row

    def kept_of(self, row: Row) -> Row:
        """What the state keeps of a normal row."""
        parts = tuple(row)
        return tuple.__new__(row_class(self.kept.names), [parts[at] for at in self._kept_at])

    @cached_property
    def _normalise(self) -> Callable[[Any], Any]:
        return self.columns.compiled()

    def __getstate__(self) -> dict[str, Any]:
        # a test that travelled would know the rows of here only
        return {name: value for name, value in vars(self).items() if name != "_normalise"}

    def of_key(self, key: Any) -> list[Any]:
        """A row of which the columns of the key are known; they are all that is kept apart."""
        row: list[Any] = [None] * len(self.columns.names)
        if self._apart_at:
            for at, value in zip(
                self._apart_at, key_values(key, record=len(self._apart_at) > 1), strict=True
            ):
                row[at] = value
        return row

    def whole_of(self, kept: Row, of_key: Sequence[Any]) -> tuple[Any, ...]:
        """All columns of a row that the state keeps some of, with those of the key from another row of it."""
        parts = list(of_key)
        for at, value in zip(self._kept_at, kept, strict=True):
            parts[at] = value
        return tuple(parts)

    def values(self, row: Row, columns: Sequence[str], *, what: str) -> tuple[Any, ...]:
        """The values of columns that must have one. Raises ValueTypeError where one is null."""
        values = tuple(row[name] for name in columns)
        if None in values:
            null = columns[values.index(None)]
            raise ValueTypeError(
                f"the {what} column '{null}' is null, so the row has no place among others: {row}"
            )
        return values


def with_time(columns: StructType, *, operator: str) -> StructType:
    """Columns of rows, and behind them the event time. Raises ConfigurationError where one has its name."""
    if ROW_TIME in columns.names:
        raise ConfigurationError(
            f"{operator}: the stream has a column '{ROW_TIME}', and the state keeps the event time of a row under this "
            "name: rename it in a transform before"
        )
    return StructType([*columns.names, ROW_TIME], [*columns.types, BIGINT], "row", aliases=columns.aliases)


def check_order(kind: TypeInformation, of: str) -> None:
    """Refuse a type whose values have no order. Raises ConfigurationError."""
    try:
        key_order(kind)
    except InvalidKeyError:
        raise ConfigurationError(
            f"{of} has the type {kind}, which has no order: choose another one"
        ) from None


def same(one: Any, other: Any) -> bool:
    """Whether two normal values are the same, where NaN is NaN, in records, lists and dicts, too.

    Example:
        >>> nan = float("nan")
        >>> same([1, nan], [1, float("nan")]), nan == float("nan")
        (True, False)
    """
    if one is other:
        return True
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(same, tuple(one), tuple(other)))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    return bool(one == other) or (one != one and other != other)
