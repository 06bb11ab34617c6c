"""Bounds of the outputs of a micro-batch as a whole, judged on staged files, before anything is committed.

    RowsBetween     so many rows at least, and at most
    ShareOfLast     so many rows, compared with the micro-batches before
    NoKeyTwice      no two rows of one key
    SameSum         a column of one output sums up to what a column of another one does

A bound reads the staged files of its sinks, and only the columns that it names. See ``StatefulJob.gate``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.argument_checks import checked_class
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import ConfigurationError
from state_engine.core.keys.entry_codes import entry_codes
from state_engine.core.types.columns import one_chunk

MOST_SHOWN = 5
"""Rows that the verdict of a bound shows."""


class StagedRows(Protocol):
    """A micro-batch that is not committed, for bounds."""

    def rows(self, sink: str) -> int:
        """Number of rows staged for a sink."""

    def table(self, sink: str, columns: Sequence[str] | None) -> pa.Table:
        """Some columns of these rows, or all."""

    def rows_before(self, sink: str, batches: int) -> list[int]:
        """Numbers of rows that the last micro-batches before staged for it, the newest last."""

    def entries(self, operator: str, state: str) -> pa.Table:
        """Entries of a keyed state that it changes, in the columns of ``read_state``."""


@dataclass(frozen=True)
class Breach:
    """How a micro-batch breaks a bound.

    Attributes:
        text: numbers, and what the bound says.
        rows: some of the rows that break it.
    """

    text: str
    rows: tuple[Mapping[str, Any], ...] = ()


class Bound(ABC):
    """A rule for the outputs of a micro-batch."""

    @property
    @abstractmethod
    def text(self) -> str:
        """What it says."""

    @property
    @abstractmethod
    def columns(self) -> Mapping[str, tuple[str, ...] | None]:
        """By name of a sink, the columns that it reads: none if it counts rows only, None for all."""

    @abstractmethod
    def breach(self, staged: StagedRows) -> Breach | None:
        """How staged rows break it; None if they meet it."""


@checked_class
@dataclass(frozen=True)
class RowsBetween(Bound):
    """A sink gets so many rows from a micro-batch.

    Args:
        sink: name of the sink.
        least, most: bounds that are allowed themselves; None for no upper one.

    Example:
        >>> RowsBetween("payments", 1, 1_000_000).text
        'payments has 1 to 1,000,000 rows'
    """

    sink: str
    least: int = 1
    most: int | None = None

    def __post_init__(self) -> None:
        if self.least < 0 or (self.most is not None and self.most < self.least):
            raise ConfigurationError(
                f"RowsBetween: least must be 0 or more and most not below it, not {self.least} and {self.most}"
            )

    @property
    def text(self) -> str:
        """What it says."""
        if self.most is None:
            return f"{self.sink} has at least {counted(self.least, 'row')}"
        return f"{self.sink} has {self.least:,} to {counted(self.most, 'row')}"

    @property
    def columns(self) -> Mapping[str, tuple[str, ...] | None]:
        """It counts rows."""
        return {self.sink: ()}

    def breach(self, staged: StagedRows) -> Breach | None:
        """The number of rows, if it is out of bounds."""
        rows = staged.rows(self.sink)
        if rows >= self.least and (self.most is None or rows <= self.most):
            return None
        return Breach(f"{counted(rows, 'row is', 'rows are')} staged")


@checked_class
@dataclass(frozen=True)
class ShareOfLast(Bound):
    """A sink gets about as many rows as from the micro-batches before: a share of their mean.

    It is not judged before a micro-batch had rows for the sink.

    Args:
        sink: name of the sink.
        batches: how many micro-batches before are compared, at most.
        least, most: of the number of rows divided by the mean, allowed themselves.

    Example:
        >>> ShareOfLast("payments", batches=10, least=0.5, most=2).text
        'payments has 0.5 to 2 times as many rows as the mean of the last 10 micro-batches'
    """

    sink: str
    batches: int = 10
    least: float = 0.5
    most: float = 2.0

    def __post_init__(self) -> None:
        if self.batches < 1 or not 0 <= self.least <= self.most:
            raise ConfigurationError(
                f"ShareOfLast: batches must be 1 or more, least 0 or more and most not below it, not {self.batches}, "
                f"{self.least} and {self.most}"
            )

    @property
    def text(self) -> str:
        """What it says."""
        return (
            f"{self.sink} has {self.least:g} to {self.most:g} times as many rows as the mean of the last "
            f"{counted(self.batches, 'micro-batch')}"
        )

    @property
    def columns(self) -> Mapping[str, tuple[str, ...] | None]:
        """It counts rows."""
        return {self.sink: ()}

    def breach(self, staged: StagedRows) -> Breach | None:
        """The number of rows and the mean before, if the share is out of bounds."""
        before, rows = staged.rows_before(self.sink, self.batches), staged.rows(self.sink)
        if not sum(before):
            return None
        mean = sum(before) / len(before)
        if self.least * mean <= rows <= self.most * mean:
            return None
        return Breach(
            f"{counted(rows, 'row is', 'rows are')} staged, {rows / mean:.2f} times the mean of {mean:,.1f}"
        )


@checked_class
@dataclass(frozen=True)
class NoKeyTwice(Bound):
    """No two rows of a micro-batch have one key; nulls are equal.

    Args:
        sink: name of the sink.
        key: columns of the key, at least one.

    Example:
        >>> NoKeyTwice("payments", ["id"]).text
        'payments has no id twice'
    """

    sink: str
    key: Sequence[str]

    def __post_init__(self) -> None:
        if isinstance(self.key, str) or not self.key:
            raise ConfigurationError(
                f"NoKeyTwice: key must be a list of columns, at least one, not {self.key!r}"
            )

    @property
    def text(self) -> str:
        """What it says."""
        return f"{self.sink} has no {', '.join(self.key)} twice"

    @property
    def columns(self) -> Mapping[str, tuple[str, ...] | None]:
        """Those of the key."""
        return {self.sink: tuple(self.key)}

    def breach(self, staged: StagedRows) -> Breach | None:
        """Number of keys that come twice, and the first of them."""
        rows = staged.table(self.sink, self.key)
        if not rows.num_rows:
            return None
        codes = entry_codes([one_chunk(column) for column in rows.columns])
        _, first, counts = np.unique(codes, return_index=True, return_counts=True)
        twice = np.sort(first[counts > 1])
        if not len(twice):
            return None
        return Breach(
            f"{counted(len(twice), 'key comes', 'keys come')} more than once, in {counted(rows.num_rows, 'row')}",
            tuple(rows.take(twice[:MOST_SHOWN]).to_pylist()),
        )


@checked_class
@dataclass(frozen=True)
class SameSum(Bound):
    """A column of one output sums up to what a column of another one does; nulls count as 0.

    Args:
        sink, column: of the one.
        other, other_column: of the other one; the same column by default.
        tolerance: how much both may differ, allowed itself.

    Example:
        >>> SameSum("lines", "amount", "invoices", "total").text
        'the sum of amount in lines is that of total in invoices'
    """

    sink: str
    column: str
    other: str
    other_column: str = ""
    tolerance: float = 0

    def __post_init__(self) -> None:
        if self.tolerance < 0:
            raise ConfigurationError(f"SameSum: tolerance must be 0 or more, not {self.tolerance}")

    @property
    def text(self) -> str:
        """What it says."""
        within = f", within {self.tolerance:g}" if self.tolerance else ""
        return f"the sum of {self.column} in {self.sink} is that of {self._second} in {self.other}{within}"

    @property
    def columns(self) -> Mapping[str, tuple[str, ...] | None]:
        """The two columns."""
        if self.sink == self.other:
            return {self.sink: (self.column, self._second)}
        return {self.sink: (self.column,), self.other: (self._second,)}

    @property
    def _second(self) -> str:
        return self.other_column or self.column

    def breach(self, staged: StagedRows) -> Breach | None:
        """Both sums, if they differ, and the largest values of the first column."""
        places = ((self.sink, self.column), (self.other, self._second))
        (values, first), (_, second) = (_summed(staged, *place) for place in places)
        one, other = Decimal(first), Decimal(second)
        if one.is_finite() and other.is_finite() and abs(one - other) <= Decimal(self.tolerance):
            return None
        largest = pc.select_k_unstable(values, min(MOST_SHOWN, len(values)), [("", "descending")])
        return Breach(
            f"{first:,} and {second:,}", tuple({self.column: v.as_py()} for v in values.take(largest))
        )


def _summed(staged: StagedRows, sink: str, column: str) -> tuple[pa.ChunkedArray, int | float | Decimal]:
    """The values of a column, and their sum, which no whole number overflows."""
    values = staged.table(sink, [column]).column(0)
    if pa.types.is_integer(values.type):
        return values, int(pc.sum(values.cast(pa.decimal128(38))).as_py() or 0)
    if pa.types.is_floating(values.type) or pa.types.is_decimal(values.type):
        return values, pc.sum(values).as_py() or 0
    raise ConfigurationError(
        f"SameSum: column '{column}' of sink '{sink}' has the type {values.type}: name a column of numbers"
    )
