"""``WatermarkStrategy``: how a source's elements get their event times, and how late they may come.

An event time comes from a function of the element, or from a column: a number since 1970 with its unit. The element
gets no extra column. What follows from event times, the watermark, is in ``core.time.watermarks``. Mirrors
``org.apache.flink.api.common.eventtime.WatermarkStrategy`` and ``TimestampAssigner``, in PyFlink's spelling.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import Enum
from numbers import Integral
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.argument_checks import checked_class
from state_engine.core.errors import ConfigurationError
from state_engine.core.types.durations import Span, to_milliseconds
from state_engine.core.types.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP

_MICROS = {"s": 1_000_000, "ms": 1_000, "us": 1}
UNITS = ("s", "ms", "us", "ns")


class _NoTimestamp(Enum):
    NO_TIMESTAMP = "no timestamp"


NO_TIMESTAMP = _NoTimestamp.NO_TIMESTAMP
"""In place of a time, for an element that has none and is no error."""


class TimestampAssigner:
    """Gives the event time of an element.

    Example:
        >>> TimestampAssigner.of(lambda value: value[1]).extract_timestamp(("a", 7), -1)
        7
    """

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        """Milliseconds since 1970.

        Args:
            value: the element.
            record_timestamp: the time that the source itself gives it, in milliseconds; the smallest long for none.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define extract_timestamp(self, value, record_timestamp)"
        )

    @staticmethod
    def of(function: TimestampAssigner | Callable[..., int]) -> TimestampAssigner:
        """The assigner itself, or a callable of an element, or of an element and its own time, as one."""
        if isinstance(function, TimestampAssigner):
            return function
        if isinstance(function, type) or not callable(function):
            raise ConfigurationError(
                "with_timestamp_assigner takes a TimestampAssigner or a callable from an element to milliseconds, "
                f"not {function!r}; for a column of numbers there is with_timestamp_column(name, unit)"
            )
        return _PlainAssigner(function, _takes_two(function))


class _PlainAssigner(TimestampAssigner):
    def __init__(self, function: Callable[..., int], takes_two: bool) -> None:
        self._function, self._takes_two = function, takes_two

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return self._function(value, record_timestamp) if self._takes_two else self._function(value)


@dataclass(frozen=True)
class TimestampColumn:
    """A column that holds event times as numbers since 1970.

    Attributes:
        unit: s, ms, us or ns.
    """

    name: str
    unit: str


@checked_class
@dataclass(frozen=True)
class WatermarkStrategy:
    """How elements get their event times, and how late they may come.

    Attributes:
        out_of_orderness_ms: how late elements may come.
        timestamps: what gives the event times; None for the column that the source names.
        idleness_ms: after how long without elements a source is idle; None: it never is.

    Example:
        >>> hourly = WatermarkStrategy.for_bounded_out_of_orderness("5 min")
        >>> hourly.with_timestamp_assigner(lambda value: value.at_ms).out_of_orderness_ms
        300000
    """

    out_of_orderness_ms: int = 0
    timestamps: TimestampAssigner | TimestampColumn | None = None
    idleness_ms: int | None = None

    def __post_init__(self) -> None:
        if self.out_of_orderness_ms < 0:
            raise ConfigurationError(
                f"max_out_of_orderness must not be negative, and is {self.out_of_orderness_ms} ms"
            )
        if self.idleness_ms is not None and self.idleness_ms <= 0:
            raise ConfigurationError(f"with_idleness needs a time above zero, not {self.idleness_ms} ms")

    @staticmethod
    def for_bounded_out_of_orderness(
        max_out_of_orderness: Span,
    ) -> WatermarkStrategy:
        """Elements come at most so late: a Duration, a timedelta, milliseconds, or text ("5 min")."""
        return WatermarkStrategy(to_milliseconds(max_out_of_orderness))

    @staticmethod
    def for_monotonous_timestamps() -> WatermarkStrategy:
        """Event times never go back."""
        return WatermarkStrategy()

    def with_timestamp_assigner(
        self, timestamp_assigner: TimestampAssigner | Callable[..., int]
    ) -> WatermarkStrategy:
        """Event times come from a function of the element.

        It must give the same time for the same element, always: a micro-batch may ask it more than once.

        Args:
            timestamp_assigner: has ``extract_timestamp(value, record_timestamp)``; or a callable of the element, or
                of both. It gives milliseconds since 1970.
        """
        return replace(self, timestamps=TimestampAssigner.of(timestamp_assigner))

    def with_timestamp_column(self, name: str, unit: str) -> WatermarkStrategy:
        """Event times come from a column of numbers since 1970; only here, not in PyFlink.

        Args:
            name: of the column, which holds integers, decimals or fractions.
            unit: ``s``, ``ms``, ``us`` or ``ns``.
        """
        if unit not in UNITS:
            raise ConfigurationError(f"with_timestamp_column: unit must be one of {UNITS}, not {unit!r}")
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"with_timestamp_column takes the name of a column, not {name!r}")
        return replace(self, timestamps=TimestampColumn(name, unit))

    def with_idleness(self, idle_timeout: Span) -> WatermarkStrategy:
        """A source that gives no elements for this time holds back no other one, until its next element.

        By the clock of the micro-batches, which their checkpoints record. A source that has unread elements is not
        idle; where all sources of an operator are, its watermark stays.
        """
        return replace(self, idleness_ms=to_milliseconds(idle_timeout))


def checked_timestamp(given: Any) -> int | None:
    """A time that a function gave, in milliseconds; None for ``NO_TIMESTAMP``, ValueError where it is none."""
    if given is NO_TIMESTAMP:
        return None
    if isinstance(given, bool) or not isinstance(given, Integral):
        raise ValueError(
            f"it gave {given!r}, of type {type(given).__name__}, instead of milliseconds since 1970 as an int"
        )
    milliseconds = int(given)
    if not MIN_TIMESTAMP < milliseconds <= MAX_TIMESTAMP:
        raise ValueError(f"it gave {milliseconds}, which does not fit into 64 bits")
    return milliseconds


def epoch_milliseconds(numbers: pa.Array, unit: str) -> tuple[pa.Array, pa.Array]:
    """Numbers since 1970 as milliseconds, rounded down, null where there is none; and which numbers are no time.

    Fractions are read to the microsecond, which is as fine as a 64-bit fraction of seconds is today.

    Example:
        >>> epoch_milliseconds(pa.array([1.001, None, float("nan")]), "s")[0].to_pylist()
        [1001, None, None]
    """
    kind, missing = numbers.type, pc.is_null(numbers).to_numpy(zero_copy_only=False)
    if pa.types.is_integer(kind):
        times, fits = _of_integers(pc.fill_null(numbers.cast(pa.int64()), 0).to_numpy(), unit)
    elif pa.types.is_floating(kind):
        times, fits = _of_fractions(pc.fill_null(numbers.cast(pa.float64()), 0.0).to_numpy(), unit)
    elif pa.types.is_decimal(kind):
        times, fits = _of_decimals([Decimal(0) if n is None else n for n in numbers.to_pylist()], unit)
    else:
        raise ConfigurationError(f"it must hold numbers, and holds {kind}")
    return pa.array(times, pa.int64(), mask=missing | ~fits), pa.array(~missing & ~fits)


_Times = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


def _of_integers(values: np.ndarray[Any, Any], unit: str) -> _Times:
    if unit == "s":
        fits = (values <= MAX_TIMESTAMP // 1000) & (values >= -(MAX_TIMESTAMP // 1000))
        return np.where(fits, values, 0) * 1000, fits
    times = values // {"ms": 1, "us": 1_000, "ns": 1_000_000}[unit]
    return times, times > MIN_TIMESTAMP


def _of_fractions(values: np.ndarray[Any, Any], unit: str) -> _Times:
    with np.errstate(over="ignore"):
        micros = values / 1_000 if unit == "ns" else values * _MICROS[unit]
    fits = np.isfinite(micros) & (np.abs(micros) < 2.0**62)
    return np.rint(np.where(fits, micros, 0.0)).astype(np.int64) // 1_000, fits


def _of_decimals(values: list[Decimal], unit: str) -> _Times:
    scale = {"s": 3, "ms": 0, "us": -3, "ns": -6}[unit]
    exact = [math.floor(v.scaleb(scale)) for v in values]
    fits = np.array([MIN_TIMESTAMP < v <= MAX_TIMESTAMP for v in exact], bool)
    return np.array([v if f else 0 for v, f in zip(exact, fits, strict=True)], np.int64), fits


def _takes_two(function: Callable[..., Any]) -> bool:
    """Whether a callable needs an element and its own time; one that can do with the element gets it alone."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in ones have none
        return False
    return not _binds(signature, 1) and _binds(signature, 2)


def _binds(signature: inspect.Signature, arguments: int) -> bool:
    try:
        signature.bind(*[None] * arguments)
    except TypeError:
        return False
    return True
