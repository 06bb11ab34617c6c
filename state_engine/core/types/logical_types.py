"""Types that are stored as another type, because neither Arrow nor Delta has them: CHAR, BIG_INT, INSTANT, SQL_TIME.

A reader of the tables sees the stored form: text, ``decimal(38,0)``, ``timestamp``, and for a time of day the
microseconds since midnight as ``bigint``, which sorts and compares like the time; queries show its text. Mirrors the
rest of ``org.apache.flink.api.common.typeinfo.BasicTypeInfo`` and ``SqlTimeTypeInfo.TIME``.
"""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from state_engine.core.types.durations import Instant
from state_engine.core.types.scalar_types import FINER, IntegerType, StringType
from state_engine.core.types.type_information import TypeInformation

_MICROSECOND = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# what every reader of timestamps can show: the years 1 to 9999
_FIRST_US = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
_LAST_US = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
DAY_US = 24 * 60 * 60 * 1_000_000


class CharType(StringType):
    """Text of exactly one character, stored as text.

    Example:
        >>> CharType().normalise("x")
        'x'
    """

    def check(self, var: str, names: dict[str, Any]) -> str:
        return f"({super().check(var, names)} and len({var}) == 1)"

    def normalise(self, value: Any) -> str:
        text = super().normalise(value)
        if len(text) != 1:
            raise self._refuse(value, ": it must be one character")
        return text

    def __str__(self) -> str:
        return "char"


class BigIntegerType(IntegerType):
    """Whole numbers of up to 38 digits, stored as ``decimal(38,0)``: the widest number that Delta has.

    Example:
        >>> BigIntegerType().normalise(2**100)
        1267650600228229401496703205376
    """

    storage = pa.decimal128(38, 0)

    def __init__(self) -> None:
        self.arrow = self.storage
        self._low, self._high = -(10**38) + 1, 10**38 - 1

    def to_arrow(self, values: list[Any], *, storage: bool) -> pa.Array:
        return pa.array([None if v is None else Decimal(v) for v in values], self.arrow)

    def from_arrow(self, array: pa.Array) -> list[Any]:
        return [None if v is None else int(v) for v in array.to_pylist()]

    def __str__(self) -> str:
        return "big integer"


class InstantType(TypeInformation):
    """Points in time as ``Instant``, stored as timestamps: to the microsecond, from the year 1 to 9999.

    Example:
        >>> InstantType().normalise(Instant.of_epoch_milli(1_500))
        Instant(seconds=1, nanos=500000000)
    """

    arrow = storage = pa.timestamp("us", "UTC")

    def normalise(self, value: Any) -> Instant:
        if not isinstance(value, Instant):
            raise self._refuse(value)
        seconds, nanos = divmod(value.nanos, 1_000_000_000)
        seconds += value.seconds
        micros, rest = divmod(nanos, 1_000)
        if rest:
            raise self._refuse(value, f": {FINER}")
        if not _FIRST_US <= seconds * 1_000_000 + micros <= _LAST_US:
            raise self._refuse(value, ": its year must be between 1 and 9999")
        return Instant(seconds, nanos)

    def to_arrow(self, values: list[Any], *, storage: bool) -> pa.Array:
        micros = [None if v is None else v.seconds * 1_000_000 + v.nanos // 1_000 for v in values]
        return pa.array(micros, pa.int64()).cast(self.arrow)

    def from_arrow(self, array: pa.Array) -> list[Any]:
        return [None if us is None else _instant(us) for us in array.cast(pa.int64()).to_pylist()]

    def __str__(self) -> str:
        return "instant"


class TimeType(TypeInformation):
    """Times of day without a zone, stored as microseconds since midnight in a ``bigint``.

    Example:
        >>> kind = TimeType()
        >>> kind.to_arrow([time(0, 0, 1)], storage=True).to_pylist()
        [1000000]
    """

    arrow = storage = pa.int64()
    has_times = True

    def check(self, var: str, names: dict[str, Any]) -> str:
        names["time"] = time
        return f"(type({var}) is time and {var}.tzinfo is None)"

    def normalise(self, value: Any) -> time:
        if not isinstance(value, time):
            raise self._refuse(value)
        if value.tzinfo is not None:
            raise self._refuse(value, ": a time without a time zone is needed")
        return time(value.hour, value.minute, value.second, value.microsecond)

    def to_arrow(self, values: list[Any], *, storage: bool) -> pa.Array:
        return pa.array([None if v is None else _since_midnight(v) for v in values], pa.int64())

    def from_arrow(self, array: pa.Array) -> list[Any]:
        return [None if us is None else self._time(us) for us in array.to_pylist()]

    def as_text(self, array: pa.Array) -> pa.Array:
        """A stored column as readers see it: ISO 8601, and as the number that it is what was written as one.

        Example:
            >>> TimeType().as_text(pa.array([34_200_000_000, 1_500_000, -1])).to_pylist()
            ['09:30:00', '00:00:01.500000', '-1']
        """
        texts = [
            us if us is None else self._time(us).isoformat() if 0 <= us < DAY_US else str(us)
            for us in array.to_pylist()
        ]
        return pa.array(texts, pa.string())

    def _time(self, micros: int) -> time:
        if not 0 <= micros < DAY_US:
            raise self._refuse(micros, ": it was written as a number")
        return (datetime.min + timedelta(microseconds=micros)).time()

    def __str__(self) -> str:
        return "time of day"


def _instant(micros: int) -> Instant:
    seconds, rest = divmod(micros, 1_000_000)
    return Instant(seconds, rest * 1_000)


def _since_midnight(value: time) -> int:
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
