"""Map keys as bytes that sort as the keys do: the order-preserving encoding of sorted maps.

The bytes of two keys of one type compare as the keys compare: whole numbers, negative ones too, floats with the
infinities (-0.0 is 0.0), text by code point, bytes, False before True, dates, datetimes as instants (without a zone as
they are), decimals by value, and records field by field, None first. No encoding is a prefix of another one, so one
may follow the other inside of a record or of a longer key.

Flink's RocksDB backend sorts by serialised bytes as they come, which is the order of numbers only from zero on; its
``org.apache.flink.table.typeutils.ordered`` serializers are what this plays the part of.

========== ==================================================================================
int        8 bytes, shifted so that the smallest is 0
float      8 bytes of IEEE 754: sign bit flipped, or all bits where it is negative
str, bytes UTF-8 or the bytes, a zero byte as ``00 FF``, then the end, ``00 00``
bool       1 byte
date       4 bytes: days
datetime   8 bytes: microseconds, as an int
Decimal    16 bytes: the unscaled number, shifted as ints are
record     per field ``00`` for None, or ``01`` and the field
========== ==================================================================================
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any, NamedTuple

from state_engine.core.counted_nouns import counted
from state_engine.core.errors import InvalidKeyError
from state_engine.core.types.every_type import (
    BooleanType,
    BytesType,
    DateType,
    DecimalType,
    FloatType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
    TypeInformation,
)

_LONG, _DAYS = struct.Struct(">Q"), struct.Struct(">I")
_DOUBLE = struct.Struct(">d")
_SIGN, _ALL = 1 << 63, (1 << 64) - 1
_ZERO, _ESCAPED, _END = b"\x00", b"\x00\xff", b"\x00\x00"
_NONE, _SOME = b"\x00", b"\x01"
_UNSCALED_BYTES, _UNSCALED_ZERO = 16, 1 << 127
_EXACT = Context(prec=80)  # more digits than any decimal type has: scaling never rounds
_EPOCH, _EPOCH_UTC = datetime(1970, 1, 1), datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

Encode = Callable[[Any], bytes]
Decode = Callable[[bytes, int], tuple[Any, int]]
"""The value that starts at a position, and where it ends."""


class KeyOrder(NamedTuple):
    """How keys of one type are ordered; made by :func:`key_order`.

    Attributes:
        encode: bytes of a key that is normal already, in the order of keys.
        decode: the key in some bytes from a position on, and the position after it.
        sort_key: what to sort keys in memory by; None where Python's own order of the keys is theirs.
    """

    encode: Encode
    decode: Decode
    sort_key: Encode | None


def encode(kind: TypeInformation, value: Any) -> bytes:
    """The bytes of one key. Raises ValueTypeError for a value of another type, InvalidKeyError for what has no order.

    Example:
        >>> from state_engine.core.types.type_parsing import to_type
        >>> pair = to_type(tuple[int, str], parameter="key")
        >>> encode(pair, (-1, "b")) < encode(pair, (0, "a")) < encode(pair, (0, "b"))
        True
    """
    return key_order(kind).encode(kind.normalise(value))


def decode(kind: TypeInformation, data: bytes) -> Any:
    """The key that was encoded.

    Example:
        >>> from state_engine.core.types.type_parsing import to_type
        >>> number = to_type(int, parameter="key")
        >>> decode(number, encode(number, -7))
        -7
    """
    value, end = key_order(kind).decode(data, 0)
    if end != len(data):
        raise ValueError(
            f"{counted(len(data) - end, 'byte is', 'bytes are')} left over after a key of type {kind}"
        )
    return value


def key_order(kind: TypeInformation) -> KeyOrder:
    """The order of keys of a type; get it once and keep it. Raises InvalidKeyError where the type has none."""
    if isinstance(kind, StructType):
        return _record(kind)
    make = _ORDERS.get(type(kind))
    if make is None:
        raise InvalidKeyError(f"keys of type {kind} have no order: a sorted map cannot have them")
    return make(kind)


def _from_long(value: int) -> bytes:
    return _LONG.pack(value + _SIGN)


def _to_long(data: bytes, at: int) -> tuple[int, int]:
    return _LONG.unpack_from(data, at)[0] - _SIGN, at + 8


def _from_double(value: float) -> bytes:
    if value != value:
        raise InvalidKeyError("NaN has no place in an order, so it cannot be a key")
    (bits,) = _LONG.unpack(_DOUBLE.pack(value + 0.0))
    return _LONG.pack(bits ^ (_ALL if bits & _SIGN else _SIGN))


def _to_double(data: bytes, at: int) -> tuple[float, int]:
    (bits,) = _LONG.unpack_from(data, at)
    return _DOUBLE.unpack(_LONG.pack(bits ^ (_SIGN if bits & _SIGN else _ALL)))[0], at + 8


def _string(kind: TypeInformation) -> KeyOrder:
    def read(data: bytes, at: int) -> tuple[str, int]:
        binary, end = _to_binary(data, at)
        return binary.decode(), end

    return KeyOrder(lambda value: _from_binary(value.encode()), read, None)


def _from_binary(value: bytes) -> bytes:
    return value.replace(_ZERO, _ESCAPED) + _END


def _to_binary(data: bytes, at: int) -> tuple[bytes, int]:
    end = data.index(_ZERO, at)
    while data[end : end + 2] != _END:
        end = data.index(_ZERO, end + 2)
    return data[at:end].replace(_ESCAPED, _ZERO), end + 2


def _boolean(kind: TypeInformation) -> KeyOrder:
    return KeyOrder(lambda value: _SOME if value else _NONE, lambda data, at: (data[at] == 1, at + 1), None)


def _date(kind: TypeInformation) -> KeyOrder:
    def read(data: bytes, at: int) -> tuple[date, int]:
        return date.fromordinal(_DAYS.unpack_from(data, at)[0]), at + 4

    return KeyOrder(lambda value: _DAYS.pack(value.toordinal()), read, None)


def _timestamp(kind: TypeInformation) -> KeyOrder:
    aware = kind.arrow.tz is not None
    epoch = _EPOCH_UTC if aware else _EPOCH

    def write(value: datetime) -> bytes:
        return _from_long((value - epoch) // _MICROSECOND)

    def read(data: bytes, at: int) -> tuple[datetime, int]:
        micros, end = _to_long(data, at)
        return kind.normalise(epoch + timedelta(0, 0, micros)), end

    # two datetimes of one zone compare by their clocks, which run backwards once a year
    by_clock = aware and kind.normalise(_EPOCH_UTC).tzinfo is not UTC
    return KeyOrder(write, read, write if by_clock else None)


def _decimal(kind: TypeInformation) -> KeyOrder:
    scale = kind.arrow.scale

    def write(value: Decimal) -> bytes:
        unscaled = int(value.scaleb(scale, _EXACT))
        return (unscaled + _UNSCALED_ZERO).to_bytes(_UNSCALED_BYTES, "big")

    def read(data: bytes, at: int) -> tuple[Decimal, int]:
        end = at + _UNSCALED_BYTES
        unscaled = int.from_bytes(data[at:end], "big") - _UNSCALED_ZERO
        return kind.normalise(Decimal(unscaled).scaleb(-scale, _EXACT)), end

    return KeyOrder(write, read, None)


def _record(kind: StructType) -> KeyOrder:
    fields = [key_order(part) for part in kind.types]
    encoders, decoders = [f.encode for f in fields], [f.decode for f in fields]
    names = kind.names if dataclasses.is_dataclass(kind.made_by) else None

    def write(value: Any) -> bytes:
        parts = value if names is None else [getattr(value, name) for name in names]
        coded = [
            _NONE if part is None else _SOME + code(part) for code, part in zip(encoders, parts, strict=True)
        ]
        return b"".join(coded)

    def read(data: bytes, at: int) -> tuple[Any, int]:
        parts = []
        for code in decoders:
            there, part = data[at : at + 1] == _SOME, None
            at += 1
            if there:
                part, at = code(data, at)
            parts.append(part)
        return kind.normalise(tuple(parts)), at

    return KeyOrder(write, read, write)  # Python cannot compare None with a value


_ORDERS: dict[type, Callable[[Any], KeyOrder]] = {
    IntegerType: lambda _: KeyOrder(_from_long, _to_long, None),
    FloatType: lambda _: KeyOrder(_from_double, _to_double, None),
    StringType: _string,
    BytesType: lambda _: KeyOrder(_from_binary, _to_binary, None),
    BooleanType: _boolean,
    DateType: _date,
    TimestampType: _timestamp,
    DecimalType: _decimal,
}
