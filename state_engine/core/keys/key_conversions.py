"""Which types of keys become which others by a cast that loses nothing: two keys stay two, and each can be read back.

Texts of numbers with a fraction are left out, because engines spell them differently, and so are times of a zone, whose
text depends on the session. What is no cast is a function of the user's. Flink's State Processor API leaves all of this
to the user's transformation.
"""

from __future__ import annotations

import pyarrow as pa

_EXACT_BITS = {16: 11, 32: 24, 64: 53}
"""By the width of a float, up to how many bits every whole number is one."""
_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}
"""By the width of an integer, how many digits it may have."""


def is_lossless(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether a cast keeps keys apart and loses nothing of them.

    Example:
        >>> is_lossless(pa.int32(), pa.float64()), is_lossless(pa.int64(), pa.float64())
        (True, False)
        >>> is_lossless(pa.date32(), pa.string()), is_lossless(pa.string(), pa.date32())
        (True, False)
    """
    types = pa.types
    if old == new:
        return True
    if types.is_struct(old) and types.is_struct(new):
        return old.num_fields == new.num_fields and all(
            a.name == b.name and is_lossless(a.type, b.type) for a, b in zip(old, new, strict=True)
        )
    if types.is_integer(old):
        return _holds_integer(old, new)
    if types.is_floating(old):
        return bool(types.is_floating(new) and new.bit_width > old.bit_width)
    if types.is_decimal(old):
        return types.is_string(new) or _holds_decimal(old, new)
    if types.is_date(old):
        return bool(types.is_string(new) or (types.is_timestamp(new) and new.tz is None))
    return bool(types.is_boolean(old) and types.is_string(new))


def _holds_integer(old: pa.DataType, new: pa.DataType) -> bool:
    types = pa.types
    if types.is_integer(new):
        return bool(new.bit_width > old.bit_width)
    if types.is_floating(new):
        return bool(old.bit_width <= _EXACT_BITS[new.bit_width])
    if types.is_decimal(new):
        return bool(new.precision - new.scale >= _DIGITS[old.bit_width])
    return bool(types.is_string(new))


def _holds_decimal(old: pa.DataType, new: pa.DataType) -> bool:
    wider = (
        pa.types.is_decimal(new)
        and new.scale >= old.scale
        and new.precision - new.scale >= old.precision - old.scale
    )
    return bool(wider)
