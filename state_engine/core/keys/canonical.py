"""Keys in canonical form: one spelling per key, whatever type it was declared with.

A key is made canonical before it is hashed and before it is stored, so that widening a column (int to bigint,
float to double, decimal(5,2) to decimal(38,10)) never moves a key to another key group. Integers become 64-bit
integers, floats doubles without a negative zero, decimals plain text without trailing zeros, dates days and
booleans 0 or 1; datetimes count microseconds (in UTC where they know their time zone); tuples, NamedTuples, rows
and dataclasses go field by field. None is a part of a key, never a whole one; NaN, lists and maps are neither.

The stored key column holds the same form with native timestamp types (:func:`storage_type`), and decodes to what
was declared. The hash narrows and the whole key decides: ``(None, 1)`` and ``(1, None)`` have one hash and are
two keys.

Plays the part of Flink's ``TypeSerializer`` of a key. Spark's twin: `state_engine.spark.key_columns`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from state_engine.core.errors import InvalidKeyError
from state_engine.core.keys.hashing import Canonical, hash_canonical, hash_long, hash_string
from state_engine.core.types.row import row_class

_LONG_LIMIT: Final = 1 << 63
_MAX_DECIMAL_DIGITS: Final = 38  # Spark's and Delta's widest decimal
_EPOCH: Final = datetime(1970, 1, 1)
_EPOCH_UTC: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()
_MICROSECOND: Final = timedelta(microseconds=1)
_CAN_BE: Final = (
    "A key can be an int, float, Decimal, str, bytes, bool, date or datetime, "
    "or a tuple, NamedTuple or dataclass of these"
)


def canonical_key(key: object) -> Canonical:
    """The canonical form of a key: an int, float, str or bytes, or a tuple of these and None.

    It is hashable, and equal for two keys exactly where they are one key of one declared type. Raises
    :class:`InvalidKeyError` for None, NaN, an integer beyond 64 bits, a decimal of more than 38 digits, a string
    that is not Unicode, and values of any other type.

    >>> canonical_key(True), canonical_key(-0.0), canonical_key((7, None))
    (1, 0.0, (7, None))
    >>> from decimal import Decimal
    >>> canonical_key(Decimal("1.50")), canonical_key(Decimal("0.00"))
    ('1.5', '0')
    """
    if key is None:
        raise InvalidKeyError("A key is None. Filter such elements out, or give them a key of their own")
    return _canonical(key)


def key_hash(key: object) -> int:
    """The signed 64-bit hash of a key, equal to Spark's ``xxhash64`` of its canonical columns.

    Raises :class:`InvalidKeyError` as :func:`canonical_key` does.

    >>> key_hash(1) == key_hash(True) == key_hash((1,)) == -7001672635703045582
    True
    """
    kind = type(key)
    if kind is int and -_LONG_LIMIT <= key < _LONG_LIMIT:  # type: ignore[operator]  # the two common kinds, at once
        return hash_long(key)  # type: ignore[arg-type]
    canonical = canonical_key(key)
    return hash_string(canonical) if isinstance(canonical, str) else hash_canonical(canonical)


def _canonical(key: object) -> Canonical:
    convert = _BY_TYPE.get(type(key)) or _converter(key)
    return convert(key)


def _converter(key: object) -> Callable[[Any], Canonical]:
    """How to convert a value whose exact type is not in the table: a subclass, a record, a numpy scalar."""
    if isinstance(key, np.integer | np.floating | np.bool_):
        return lambda scalar: _canonical(scalar.item())
    for base in (int, float, str, bytes, Decimal, datetime, date, tuple):  # a datetime is also a date
        if isinstance(key, base):
            return _BY_TYPE[base]
    if dataclasses.is_dataclass(key) and not isinstance(key, type):
        return _from_dataclass
    raise InvalidKeyError(
        f"A value of type {type(key).__qualname__} cannot be a key: {key!r:.200}. {_CAN_BE}"
    )


def _from_int(key: int) -> int:
    if not -_LONG_LIMIT <= key < _LONG_LIMIT:
        raise InvalidKeyError(
            f"The integer key {key:#x} does not fit into 64 bits. Use a string or a Decimal"
        )
    return int(key)


def _from_float(key: float) -> float:
    if math.isnan(key):
        raise InvalidKeyError("A key is NaN, which equals nothing. Filter such elements out")
    return float(key) if key else 0.0  # -0.0 and 0.0 are one key


def _from_str(key: str) -> str:
    try:
        key.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidKeyError(f"The string key {key!r:.200} is not valid Unicode: {error.reason}") from None
    return str.__str__(key)


def _from_decimal(key: Decimal) -> str:
    if not key.is_finite():
        raise InvalidKeyError(f"The decimal key {key} is not a number. Filter such elements out")
    if not key:
        return "0"
    # checked first, because spelling out 1E+999999999 would fill the memory
    if not -_MAX_DECIMAL_DIGITS <= key.adjusted() < _MAX_DECIMAL_DIGITS:
        raise InvalidKeyError(f"The decimal key {key:E} needs more than {_MAX_DECIMAL_DIGITS} digits")
    text = format(key, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    if len(text.lstrip("-0.").replace(".", "")) > _MAX_DECIMAL_DIGITS:
        raise InvalidKeyError(f"The decimal key {text} needs more than {_MAX_DECIMAL_DIGITS} digits")
    return text


def _from_date(key: date) -> int:
    return key.toordinal() - _EPOCH_ORDINAL


def _from_datetime(key: datetime) -> int:
    if key != key:  # pandas' NaT calls itself a datetime, and equals nothing
        raise InvalidKeyError("A key is not a time (NaT). Filter such elements out")
    since_epoch: timedelta = key - (_EPOCH if key.utcoffset() is None else _EPOCH_UTC)
    return since_epoch // _MICROSECOND


def _from_tuple(key: Sequence[object]) -> tuple[Canonical, ...]:
    if not key:
        raise InvalidKeyError("An empty tuple cannot be a key")
    return tuple([None if part is None else _canonical(part) for part in key])


def _from_dataclass(key: Any) -> tuple[Canonical, ...]:
    return _from_tuple([getattr(key, field.name) for field in dataclasses.fields(key)])


_BY_TYPE: Final[dict[type, Callable[[Any], Canonical]]] = {
    int: _from_int,
    bool: int,
    float: _from_float,
    str: _from_str,
    bytes: bytes,
    bytearray: bytes,
    memoryview: bytes,
    Decimal: _from_decimal,
    date: _from_date,
    datetime: _from_datetime,
    tuple: _from_tuple,
}


def storage_type(declared: pa.DataType) -> pa.DataType:
    """The type of the key column that stores keys declared with an Arrow type: the widest of its kind.

    Raises :class:`InvalidKeyError` for a type that cannot be a key (list, map, duration, null, …); it names the
    field.

    >>> storage_type(pa.int16()), storage_type(pa.decimal128(5, 2)), storage_type(pa.timestamp("ms", "Asia/Tokyo"))
    (DataType(int64), DataType(string), TimestampType(timestamp[us, tz=UTC]))
    """
    return _storage_type(declared, "key")


def _storage_type(declared: pa.DataType, field_name: str) -> pa.DataType:
    types = pa.types
    if types.is_dictionary(declared):
        return _storage_type(declared.value_type, field_name)
    if types.is_integer(declared) or types.is_boolean(declared) or types.is_date(declared):
        return pa.int64()
    if types.is_floating(declared):
        return pa.float64()
    if types.is_decimal(declared) or _is_string(declared):
        return pa.string()
    if types.is_timestamp(declared):
        return pa.timestamp("us", "UTC" if declared.tz else None)
    if _is_binary(declared):
        return pa.binary()
    if types.is_struct(declared) and declared.num_fields:
        return pa.struct(
            [
                pa.field(field.name, _storage_type(field.type, f"{field_name}.{field.name}"))
                for field in declared
            ]
        )
    raise InvalidKeyError(
        f"The field '{field_name}' has the type {declared}, which cannot be a key. {_CAN_BE}"
    )


def _is_string(declared: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(test(declared) for test in tests)


def _is_binary(declared: pa.DataType) -> bool:
    types = pa.types
    tests = (types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary)
    return any(test(declared) for test in tests)


def decode_keys(array: pa.Array | pa.ChunkedArray, declared: pa.DataType) -> list[Any]:
    """The keys as they were declared, from a stored key column; a struct becomes a :class:`Row`. None stays None.

    >>> decode_keys(pa.array([1, 0, None]), pa.bool_())
    [True, False, None]
    >>> decode_keys(pa.array(["1.5"]), pa.decimal128(5, 2)), decode_keys(pa.array([-1]), pa.date32())
    ([Decimal('1.50')], [datetime.date(1969, 12, 31)])
    """
    decode = _decoder(declared)
    values = array.to_pylist()
    return values if decode is None else [None if value is None else decode(value) for value in values]


@lru_cache(maxsize=256)
def _decoder(declared: pa.DataType) -> Callable[[Any], Any] | None:
    """What turns a stored value back into the declared one; None where they are the same."""
    storage_type(declared)  # refuses what is no key
    types = pa.types
    if types.is_dictionary(declared):
        return _decoder(declared.value_type)
    if types.is_boolean(declared):
        return bool
    if types.is_date(declared):
        return lambda days: date.fromordinal(days + _EPOCH_ORDINAL)
    if types.is_decimal(declared):
        exponent, context = Decimal(1).scaleb(-declared.scale), Context(prec=declared.precision)
        return lambda text: Decimal(text).quantize(exponent, context=context)
    if types.is_timestamp(declared) and declared.tz and declared.tz != "UTC":
        zone = pa.scalar(0, declared).as_py().tzinfo
        return lambda instant: instant.astimezone(zone)
    if types.is_struct(declared):
        return _struct_decoder(declared)
    return None


def _struct_decoder(declared: pa.StructType) -> Callable[[Any], Any]:
    names = tuple(field.name for field in declared)
    make = row_class(names)
    decoders = [_decoder(field.type) for field in declared]

    def decode(fields: Mapping[str, Any]) -> Any:
        parts = zip(fields.values(), decoders, strict=True)
        return tuple.__new__(make, [v if f is None or v is None else f(v) for v, f in parts])

    return decode
