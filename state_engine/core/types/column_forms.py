"""Whole columns brought to a declared type or to the form in which it is stored, without Python values.

What ``TypeInformation.normalise`` is for one value: a value that does not fit is an error. Records match by the names
of their fields, or by position, as names in storage may be older ones.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.errors import ValueTypeError
from state_engine.core.types.every_type import (
    BigIntegerType,
    BooleanType,
    BytesType,
    DateType,
    DecimalType,
    DictType,
    FloatType,
    InstantType,
    IntegerType,
    ListType,
    StringType,
    StructType,
    TimestampType,
    TypeInformation,
)

_PLAIN = (
    BigIntegerType, BooleanType, BytesType, DateType, DecimalType, FloatType, InstantType, IntegerType, StringType,
    TimestampType,
)  # fmt: skip
"""Types whose values a cast of Arrow checks; subclasses have rules of their own."""


def in_form(
    array: pa.Array, kind: TypeInformation, *, stored: bool = False, by_name: bool = True
) -> pa.Array:
    """A column as one of a declared type.

    Args:
        array: of that type, or one that can become it without loss.
        kind: the type.
        stored: whether the column is to be as states store it.
        by_name: whether fields of records are found by their names, where these are those of the type; else, as where
            they have the names of storage, by position.

    Raises:
        ValueTypeError: a value does not fit.

    Example:
        >>> in_form(pa.array([1, 2], pa.int16()), IntegerType(pa.int32()), stored=True).type
        DataType(int64)
    """
    wanted = kind.storage if stored else kind.arrow
    if array.type == wanted and type(kind) in (*_PLAIN, StructType, ListType, DictType):
        return array
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), wanted)
    if isinstance(kind, StructType) and pa.types.is_struct(array.type):
        return _record(array, kind, stored=stored, by_name=by_name)
    if isinstance(kind, ListType) and pa.types.is_list(array.type):
        offsets, values = _parts(array, array.values)
        made = in_form(values, kind.element, stored=stored, by_name=by_name)
        return pa.ListArray.from_arrays(offsets, made, type=wanted, mask=_nulls(array))
    if isinstance(kind, DictType) and pa.types.is_map(array.type):
        offsets, keys = _parts(array, array.keys)
        keys, items = in_form(keys, kind.key, stored=stored, by_name=by_name), _parts(array, array.items)[1]
        items = in_form(items, kind.value, stored=stored, by_name=by_name)
        return pa.MapArray.from_arrays(offsets, keys, items, type=wanted, mask=_nulls(array))
    return _single(array, kind, wanted, stored=stored)


def _record(array: pa.Array, kind: StructType, *, stored: bool, by_name: bool) -> pa.Array:
    names = [field.name for field in array.type]
    if len(names) != len(kind.names):
        raise ValueTypeError(f"a column of {array.type} is not one of type {kind}")
    by_name = by_name and set(names) == set(kind.names)
    fields = list(kind.storage if stored else kind.arrow)
    parts = []
    for place, (name, part) in enumerate(zip(kind.names, kind.types, strict=True)):
        try:
            parts.append(
                in_form(
                    array.field(names.index(name) if by_name else place), part, stored=stored, by_name=by_name
                )
            )
        except ValueTypeError as error:
            raise ValueTypeError(f"field '{name}': {error}") from None
    return pa.StructArray.from_arrays(parts, fields=fields, mask=_nulls(array))


def _single(array: pa.Array, kind: TypeInformation, wanted: pa.DataType, *, stored: bool) -> pa.Array:
    if type(kind) in _PLAIN:
        return _cast(array, kind, wanted)
    values = kind.from_arrow(_cast(array, kind, kind.arrow))
    return kind.to_arrow([None if v is None else kind.normalise(v) for v in values], storage=stored)


def _cast(array: pa.Array, kind: TypeInformation, wanted: pa.DataType) -> pa.Array:
    if isinstance(kind, FloatType) and wanted == pa.float32() and pa.types.is_floating(array.type):
        made = array.cast(wanted, safe=False)
        if pc.any(pc.and_(pc.is_inf(made), pc.is_finite(array))).as_py():
            raise ValueTypeError(f"a value of a column of {array.type} is too large for type {kind}")
        return made
    numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    text = isinstance(kind, StringType) and any(is_one(array.type) for is_one in numbers)
    if text or (pa.types.is_boolean(array.type) != pa.types.is_boolean(wanted)):
        raise ValueTypeError(f"a column of {array.type} is not one of type {kind}")
    try:
        return array.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ValueTypeError(f"a column of {array.type} is not one of type {kind}: {error}") from None


def _nulls(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _parts(array: pa.Array, parts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Offsets from 0 on, and what they cut, of a (possibly sliced) list or map array."""
    offsets = array.offsets.to_numpy()
    start, end = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
    return pa.array((offsets - start).astype(np.int32)), parts.slice(start, end - start)
