"""Types of single values that Arrow has, too: numbers, booleans, text, bytes, dates, timestamps, decimals.

Mirrors ``org.apache.flink.api.common.typeinfo.BasicTypeInfo``.
"""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from state_engine.core.types.type_information import TypeInformation

_EPOCH, _EPOCH_UTC = datetime(1970, 1, 1), datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


FINER = "it is finer than a microsecond"


def is_boolean(value: Any) -> bool:
    """Whether a value is True or False, of Python or of numpy."""
    return isinstance(value, bool | np.bool_)


class IntegerType(TypeInformation):
    """Whole numbers of 8 to 64 bits."""

    storage = pa.int64()

    def __init__(self, arrow: pa.DataType) -> None:
        self.arrow = arrow
        self._low, self._high = -(2 ** (arrow.bit_width - 1)), 2 ** (arrow.bit_width - 1) - 1

    def check(self, var: str, names: dict[str, Any]) -> str:
        return f"(type({var}) is int and {self._low} <= {var} <= {self._high})"

    def normalise(self, value: Any) -> int:
        if is_boolean(value) or not hasattr(value, "__index__"):
            raise self._refuse(value)
        try:
            number = value.__index__()
        except TypeError:  # an array of numbers
            raise self._refuse(value) from None
        if not self._low <= number <= self._high:
            raise self._refuse(value, f": it must be between {self._low} and {self._high}")
        return int(number)

    def from_arrow(self, array: pa.Array) -> list[Any]:
        array = self._narrowed(array)
        values: list[Any] = (
            array.to_pylist() if array.null_count else array.to_numpy(zero_copy_only=False).tolist()
        )
        return values


class FloatType(TypeInformation):
    """Floating-point numbers of 32 or 64 bits; whole numbers are accepted and become floats, if all digits fit."""

    storage = pa.float64()

    def __init__(self, arrow: pa.DataType) -> None:
        self.arrow = arrow
        self._single = arrow.bit_width == 32

    def check(self, var: str, names: dict[str, Any]) -> str | None:
        return None if self._single else f"type({var}) is float"

    def normalise(self, value: Any) -> float:
        if is_boolean(value) or isinstance(value, str | bytes | Decimal) or not hasattr(value, "__float__"):
            raise self._refuse(value)
        try:
            number = float(value)
            made = struct.unpack("<f", struct.pack("<f", number))[0] if self._single else number
        except OverflowError:
            raise self._refuse(value, ": it is too large") from None
        except TypeError:  # an array, a date of numpy
            raise self._refuse(value) from None
        if number == number and (number != value or (hasattr(value, "__index__") and made != value)):
            raise self._refuse(value, f": it has more digits than fit, and would become {made!r}")
        if number == number and made != number and float(str(np.float32(made))) != number:
            raise self._refuse(
                value, ": it has more digits than 32 bits hold. Declare double, or round it: numpy.float32(…)"
            )
        return float(made)

    from_arrow = IntegerType.from_arrow

    def _narrowed(self, array: pa.Array) -> pa.Array:
        if not self._single or array.type == self.arrow:
            return array
        narrow = array.cast(self.arrow)
        wide, back = (a.to_numpy(zero_copy_only=False) for a in (array, narrow.cast(array.type)))
        if not np.array_equal(wide, back, equal_nan=True):
            value = wide[(wide != back) & (wide == wide)][0].item()
            raise self._refuse(value, ": it was written with 64 bits")
        return narrow


class BooleanType(TypeInformation):
    """True or False."""

    arrow = storage = pa.bool_()

    def check(self, var: str, names: dict[str, Any]) -> str:
        return f"({var} is True or {var} is False)"

    def normalise(self, value: Any) -> bool:
        if is_boolean(value):
            return bool(value)
        raise self._refuse(value)


class StringType(TypeInformation):
    """Unicode text."""

    arrow = storage = pa.string()

    def check(self, var: str, names: dict[str, Any]) -> str:
        return f"(type({var}) is str and {var}.isascii())"

    def normalise(self, value: Any) -> str:
        if not isinstance(value, str):
            raise self._refuse(value)
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise self._refuse(value, f": {error}") from None
        return str.__str__(value)  # a member of an enum is its value, whatever it prints as


class BytesType(TypeInformation):
    """Bytes; a bytearray or memoryview is copied into bytes."""

    arrow = storage = pa.binary()

    def check(self, var: str, names: dict[str, Any]) -> str:
        return f"type({var}) is bytes"

    def normalise(self, value: Any) -> bytes:
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        raise self._refuse(value)


class DateType(TypeInformation):
    """Calendar dates."""

    arrow = storage = pa.date32()

    def check(self, var: str, names: dict[str, Any]) -> str:
        names["date"] = date
        return f"type({var}) is date"

    def normalise(self, value: Any) -> date:
        if isinstance(value, date) and not isinstance(value, datetime):
            return date(value.year, value.month, value.day)
        raise self._refuse(value)


class TimestampType(TypeInformation):
    """Instants (aware datetimes, kept to the microsecond in UTC) or, without a zone, local date-times."""

    def __init__(self, zone: str | None) -> None:
        self.arrow = self.storage = pa.timestamp("us", "UTC" if zone else None)
        self._zone = None if zone in (None, "UTC", "Etc/UTC", "+00:00") else ZoneInfo(zone)
        self._aware = zone is not None

    def check(self, var: str, names: dict[str, Any]) -> str:
        names["datetime"], names["UTC"] = datetime, UTC
        zone = "UTC" if self._aware else "None"
        return f"(type({var}) is datetime and {var}.tzinfo is {zone})" if not self._zone else "False"

    def normalise(self, value: Any) -> datetime:
        if not isinstance(value, datetime) or value != value:
            raise self._refuse(value)
        if (value.utcoffset() is not None) != self._aware:
            need = "a datetime with a time zone" if self._aware else "a datetime without a time zone"
            raise self._refuse(value, f": {need} is needed")
        if getattr(value, "nanosecond", 0):
            raise self._refuse(value, f": {FINER}")
        plain = datetime(*value.timetuple()[:6], value.microsecond, fold=value.fold)
        if not self._aware:
            return plain
        try:
            return plain.replace(tzinfo=value.tzinfo).astimezone(self._zone or UTC)
        except OverflowError:
            raise self._refuse(value, ": it is out of range in UTC") from None

    def from_arrow(self, array: pa.Array) -> list[Any]:
        micros = array.cast(pa.timestamp("us", array.type.tz), safe=False).cast(pa.int64()).to_pylist()
        epoch = _EPOCH_UTC if self._aware else _EPOCH
        moments = [None if m is None else epoch + timedelta(0, 0, m) for m in micros]
        return [m and m.astimezone(self._zone) for m in moments] if self._zone else moments

    def to_arrow(self, values: list[Any], *, storage: bool) -> pa.Array:
        epoch = _EPOCH_UTC if self._aware else _EPOCH
        micros = [None if v is None else (v - epoch) // _MICROSECOND for v in values]
        return pa.array(micros, pa.int64()).cast(self.arrow)


class DecimalType(TypeInformation):
    """Decimals of fixed precision and scale; more digits than fit are an error, extra fraction digits too."""

    def __init__(self, precision: int, scale: int) -> None:
        self.arrow, self.storage = pa.decimal128(precision, scale), pa.decimal128(38, scale)
        self._unit = Decimal(1).scaleb(-scale)
        self._context = Context(prec=precision, rounding=ROUND_HALF_UP)

    def normalise(self, value: Any) -> Decimal:
        if isinstance(value, bool | float) or not isinstance(value, Decimal | int):
            raise self._refuse(value)
        number = Decimal(value)
        try:
            fixed = number.quantize(self._unit, context=self._context)
        except InvalidOperation:
            raise self._refuse(value, ": it has too many digits") from None
        if not fixed.is_finite() or fixed != number:
            raise self._refuse(value, ": it has more fraction digits than the type")
        return fixed

    def from_arrow(self, array: pa.Array) -> list[Any]:
        values: list[Any] = self._narrowed(array).to_pylist()
        return values
