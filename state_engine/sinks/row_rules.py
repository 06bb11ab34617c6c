"""Rules that a sink holds single rows to, as far as Arrow can judge them before the rows are staged.

    NotNull, Longest, Without, NotThese, …     what a table says of one column
    SinkTarget.rules                           those of one sink, read before each attempt

A row that breaks one is refused where it is written: no commit has happened yet, so it can be set aside. Rules that are
SQL text (CHECK constraints, generated columns) are judged by the sink's own engine, see ``Sink.broken_checks``. What
depends on other rows (unique keys, foreign keys, triggers) belongs to neither: a row is refused for what it holds,
wherever batches are cut. Decision 0100.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.keys.entry_codes import entry_codes
from state_engine.core.types.beyond_python import shown, undecodable
from state_engine.core.types.columns import one_chunk
from state_engine.core.types.invalid_text import rows_that_fail

_LONGEST_SHOWN = 60
_LONGEST_NAME = 255
"""Bytes of a name in a directory."""
_ESCAPED = r"""[\x00-\x1f"#%'*/:=?\\\x7f{\[\]^]"""
"""Characters that take three in the name of a partition's directory."""


class RowRule(ABC):
    """A rule for single rows."""

    @abstractmethod
    def refused(self, table: pa.Table) -> dict[int, str]:
        """The rows that break it, and how: column, value, and what is wrong with it."""


@dataclass(frozen=True)
class ColumnRule(RowRule):
    """A rule of one column, or of what is inside of it.

    Attributes:
        column: its name.
        inside: the way to the values: a field's name, ``element`` of a list, ``key`` and ``value`` of a map.
    """

    column: str
    inside: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    @abstractmethod
    def says(self) -> str:
        """What is wrong with a value, for the end of a message."""

    @abstractmethod
    def broken(self, values: pa.Array) -> pa.BooleanArray:
        """Which values break it; null counts as false."""

    def refused(self, table: pa.Table) -> dict[int, str]:
        column = table[self.column]
        return {row: self._described(column, row) for row in rows_that_fail(column, self._is_good)}

    def _is_good(self, column: pa.Array) -> bool:
        return not pc.any(self.broken(self._values(column))).as_py()

    def _described(self, column: pa.ChunkedArray, row: int) -> str:
        values = self._values(column.take(pa.array([row])).combine_chunks())
        value = shown(values, pc.index(self.broken(values), True).as_py())
        text = "null" if value is None else repr(value) if isinstance(value, str) else str(value)
        if len(text) > _LONGEST_SHOWN:
            text = f"{text[:_LONGEST_SHOWN]}…"
        return f"the column '{'.'.join((self.column, *self.inside))}' holds {text}: {self.says}"

    def _values(self, values: pa.Array) -> pa.Array:
        for step in self.inside:
            if pa.types.is_struct(values.type):
                values = pc.struct_field(values, [step])
            elif pa.types.is_map(values.type):
                values = values.keys if step == "key" else values.items
            else:
                values = values.flatten()
        return values


@dataclass(frozen=True)
class NotNull(ColumnRule):
    """A value is needed.

    Attributes:
        nan: whether the sink makes null of NaN.
    """

    nan: bool = False
    says = "it must not be null"

    def broken(self, values: pa.Array) -> pa.BooleanArray:
        return pc.is_null(values, nan_is_null=self.nan)


@dataclass(frozen=True)
class Longest(ColumnRule):
    """A text has so many characters at most."""

    characters: int

    @property
    def says(self) -> str:
        return f"it takes {self.characters} characters at most"

    def broken(self, values: pa.Array) -> pa.BooleanArray:
        return pc.greater(pc.utf8_length(values), self.characters)


@dataclass(frozen=True)
class Without(ColumnRule):
    """A text does not hold these characters."""

    characters: str
    says = "it takes no text with a NUL character"

    def broken(self, values: pa.Array) -> pa.BooleanArray:
        return pc.match_substring(values.cast(pa.binary()), self.characters)


@dataclass(frozen=True)
class NotThese(ColumnRule):
    """A text is none of these, which the sink would read back as null."""

    texts: tuple[str, ...]

    @property
    def says(self) -> str:
        return f"the table is partitioned by it, and would give back null for {' and '.join(map(repr, self.texts))}"

    def broken(self, values: pa.Array) -> pa.BooleanArray:
        return pc.is_in(values, value_set=pa.array(self.texts, values.type))


@dataclass(frozen=True)
class NameOfDirectory(ColumnRule):
    """A value of a partition makes the name of a directory on a disk."""

    says = "the table is partitioned by it, and no directory can have such a long name"

    def broken(self, values: pa.Array) -> pa.BooleanArray:
        escaped = pc.multiply(pc.count_substring_regex(values, _ESCAPED), 2)
        length = pc.add(pc.binary_length(values), escaped)
        return pc.greater(length, _LONGEST_NAME - len(f"{self.column}=".encode()))


@dataclass(frozen=True)
class DecodedByPython(RowRule):
    """Python has objects for all values: for sinks whose rows pass through it."""

    def refused(self, table: pa.Table) -> dict[int, str]:
        columns = dict(zip(table.column_names, table.columns, strict=True))
        return {
            row: f"the column '{name}' holds {what}" for row, (name, what) in undecodable(columns).items()
        }


@dataclass(frozen=True)
class NotBefore1970(ColumnRule):
    """A time that is a number from 1970 on."""

    says = "a record has no time before 1970"

    def broken(self, values: pa.Array) -> pa.BooleanArray:
        return pc.less(values, pa.scalar(0, pa.int64()).cast(values.type))


@dataclass(frozen=True)
class NotAfter(ColumnRule):
    """A time that is not too far ahead.

    Attributes:
        last_ms: milliseconds since 1970.
    """

    last_ms: int
    says = "the topic takes no time so far ahead (message.timestamp.after.max.ms)"

    def broken(self, values: pa.Array) -> pa.BooleanArray:
        numbers = values.cast(pa.timestamp("ms", values.type.tz), safe=False).cast(pa.int64())
        return pc.greater(numbers, self.last_ms)


@dataclass(frozen=True)
class NotTheseRows(RowRule):
    """A row is none of those that the sink's own engine refused.

    Attributes:
        rows: with the columns that are compared.
        why: of each, what is wrong with it.
    """

    rows: pa.Table
    why: tuple[str, ...]

    def refused(self, table: pa.Table) -> dict[int, str]:
        same = table.select(self.rows.column_names).cast(self.rows.schema)
        codes = entry_codes([one_chunk(column) for column in pa.concat_tables([self.rows, same]).columns])
        known = dict(zip(codes.tolist(), self.why, strict=False))
        after = enumerate(codes[self.rows.num_rows :].tolist())
        return {row: known[code] for row, code in after if code in known}


def refused_rows(rules: Iterable[RowRule], table: pa.Table) -> dict[int, str]:
    """Rows that a sink refuses, in order, and for each the first column that it refuses, with the value and why.

    Example:
        >>> rows = pa.table({"id": [1, None], "name": ["abcd", "abcd"]})
        >>> refused_rows([NotNull("id"), Longest("name", 3)], rows)[0]
        "the column 'name' holds 'abcd': it takes 3 characters at most"
        >>> refused_rows([NotNull("id"), Longest("name", 3)], rows)[1]
        "the column 'id' holds null: it must not be null"
    """
    refused: dict[int, str] = {}
    for rule in rules:
        refused = rule.refused(table) | refused
    return dict(sorted(refused.items()))


def without_rows(table: pa.Table, rows: Sequence[int] | Iterable[int]) -> pa.Table:
    """A table without some of its rows."""
    kept = np.ones(table.num_rows, bool)
    kept[list(rows)] = False
    return table.filter(pa.array(kept))
