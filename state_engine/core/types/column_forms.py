"""Whole columns brought to a declared type or to the form in which it is stored, without Python values.

What ``TypeInformation.normalise`` is for one value: a value that does not fit is an error. Records match by the names
of their fields, or by position, as names in storage may be older ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

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
    TimeType,
    TypeInformation,
)
from state_engine.core.types.walk import with_parts

_PLAIN = (
    BigIntegerType, BooleanType, BytesType, DateType, DecimalType, FloatType, InstantType, IntegerType, StringType,
    TimestampType,
)  # fmt: skip
"""Types whose values a cast of Arrow checks; subclasses have rules of their own."""


_FAMILIES = (
    ("integer", pa.types.is_integer), ("float", pa.types.is_floating), ("decimal", pa.types.is_decimal),
    ("text", lambda t: pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_string_view(t)),
    ("bytes", lambda t: pa.types.is_binary(t) or pa.types.is_large_binary(t) or pa.types.is_fixed_size_binary(t)
     or pa.types.is_binary_view(t)),
    ("date", pa.types.is_date),
)  # fmt: skip
_EXACT = {("integer", "float"), ("integer", "decimal")}
"""From one kind of value to another, as single values go, too: nothing else that Arrow can cast does."""


def in_form(
    array: pa.Array, kind: TypeInformation, *, stored: bool = False, by_name: bool = True
) -> pa.Array:
    """A column as one of a declared type.

    Args:
        array: of that type, or one that can become it without loss.
        by_name: whether fields of records are found by their names, where these are those of the type; else, as where
            they have the names of storage, by position.

    Example:
        >>> in_form(pa.array([1, 2], pa.int16()), IntegerType(pa.int32()), stored=True).type
        DataType(int64)
    """
    wanted = kind.storage if stored else kind.arrow
    if (
        array.type == wanted
        and type(kind) in (*_PLAIN, StructType, ListType, DictType)
        and not kind.completes
    ):
        return array
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), wanted)
    if isinstance(kind, StructType) and pa.types.is_struct(array.type):
        return _record(array, kind, stored=stored, by_name=by_name)
    lists, maps = pa.types.is_list(array.type), pa.types.is_map(array.type)
    if (isinstance(kind, ListType) and lists) or (isinstance(kind, DictType) and maps):
        return _turned(array, kind, partial(in_form, stored=stored, by_name=by_name), wanted)
    return _single(array, kind, wanted, stored=stored)


def with_defaults(array: pa.Array, kind: TypeInformation) -> pa.Array:
    """A stored column of a type, in which fields that were added with a default have it instead of null.

    Example:
        >>> kind = StructType(["n"], [IntegerType(pa.int32())], fills={"n": "7"})
        >>> with_defaults(pa.array([{"n": 1}, {"n": None}, None], kind.storage), kind).to_pylist()
        [{'n': 1}, {'n': 7}, None]
    """
    if not kind.completes:
        return array
    if isinstance(kind, StructType):
        parts = [with_defaults(array.field(n), part) for n, part in enumerate(kind.types)]
        for n, default in kind.stored_defaults.items():
            rows = np.where(parts[n].is_null(), len(array), np.arange(len(array)))
            parts[n] = pa.concat_arrays([parts[n], default]).take(pa.array(rows))
        return pa.StructArray.from_arrays(parts, fields=list(kind.storage), mask=_nulls(array))
    return _turned(array, kind, with_defaults, kind.storage)


def times_as_text(array: pa.Array, kind: TypeInformation) -> pa.Array:
    """A stored column of a type as queries show it: with times of day as text.

    Args:
        array: fields of its records may have other names than are stored.

    Example:
        >>> times_as_text(pa.array([[34_200_000_000], None]), ListType(TimeType())).to_pylist()
        [['09:30:00'], None]
    """
    if not kind.has_times:
        return array
    if isinstance(kind, StructType):
        parts = [times_as_text(array.field(n), part) for n, part in enumerate(kind.types)]
        fields = [field.with_type(part.type) for field, part in zip(array.type, parts, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=_nulls(array))
    return kind.as_text(array) if isinstance(kind, TimeType) else _turned(array, kind, times_as_text)


def _record(array: pa.Array, kind: StructType, *, stored: bool, by_name: bool) -> pa.Array:
    names = [field.name for field in array.type]
    if len(names) != len(kind.names):
        raise ValueTypeError(f"a column of {array.type} is not one of type {kind}")
    by_name = by_name and set(names) == set(kind.names)
    fields = list(kind.storage if stored else kind.arrow)
    parts = []
    for place, (name, part) in enumerate(zip(kind.names, kind.types, strict=True)):
        column = array.field(names.index(name) if by_name else place)
        try:
            if name in kind.fills and pc.any(pc.and_(column.is_null(), array.is_valid())).as_py():
                kind.without_value(name)
            parts.append(in_form(column, part, stored=stored, by_name=by_name))
        except ValueTypeError as error:
            raise ValueTypeError(f"field '{name}': {error}") from None
    return pa.StructArray.from_arrays(parts, fields=fields, mask=_nulls(array))


def _single(array: pa.Array, kind: TypeInformation, wanted: pa.DataType, *, stored: bool) -> pa.Array:
    if type(kind) in _PLAIN:
        return _cast(array, kind, wanted)
    values = kind.from_arrow(_cast(array, kind, kind.arrow))
    return kind.to_arrow([None if v is None else kind.normalise(v) for v in values], storage=stored)


def _cast(array: pa.Array, kind: TypeInformation, wanted: pa.DataType) -> pa.Array:
    if isinstance(kind, TimeType) and pa.types.is_time(array.type):
        return _arrow_cast(array, kind, pa.time64("us")).cast(wanted)
    family = _family(array.type), _family(wanted)
    if family[0] != family[1] and family not in _EXACT:
        raise ValueTypeError(f"a column of {array.type} is not one of type {kind}")
    if family == ("integer", "float"):
        return _floats(array, kind, wanted)
    if wanted == pa.float32() and family[0] == "float":
        made = array.cast(wanted, safe=False)
        rounded = pc.and_(pc.not_equal(made.cast(array.type), array), pc.is_finite(array))
        given, by_fewest_digits = array.filter(rounded), made.filter(rounded).cast(pa.string())
        for value in given.filter(pc.not_equal(by_fewest_digits.cast(array.type), given)).to_pylist():
            kind.normalise(value)
        return made
    if family == ("integer", "decimal"):  # Arrow asks for room for every number of the type
        array = _arrow_cast(array, kind, pa.decimal128(38, wanted.scale))
    return _arrow_cast(array, kind, wanted)


def _arrow_cast(array: pa.Array, kind: TypeInformation, wanted: pa.DataType) -> pa.Array:
    try:
        return array.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ValueTypeError(f"a column of {array.type} is not one of type {kind}: {error}") from None


def _floats(array: pa.Array, kind: TypeInformation, wanted: pa.DataType) -> pa.Array:
    """Whole numbers as floats; ValueTypeError where one has more digits than fit."""
    made = array.cast(wanted, safe=False)
    try:
        lost = pc.not_equal(made.cast(array.type), array)
    except pa.ArrowInvalid as error:
        raise ValueTypeError(f"a column of {array.type} is not one of type {kind}: {error}") from None
    if pc.any(lost).as_py():
        value = array.filter(lost)[0].as_py()
        raise ValueTypeError(f"{value} of a column of {array.type} has more digits than fit type {kind}")
    return made


def _family(kind: pa.DataType) -> str:
    """What a value of an Arrow type is, however wide it is."""
    if pa.types.is_dictionary(kind):
        return _family(kind.value_type)
    if pa.types.is_timestamp(kind):
        return "instant" if kind.tz else "local time"
    return next((name for name, is_one in _FAMILIES if is_one(kind)), str(kind))


def _nulls(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _turned(
    array: pa.Array,
    kind: TypeInformation,
    turn: Callable[[pa.Array, TypeInformation], pa.Array],
    wanted: pa.DataType | None = None,
) -> pa.Array:
    """A list or map array, each part of which is turned by its type."""
    assert isinstance(kind, ListType | DictType)
    kinds = [kind.element] if isinstance(kind, ListType) else [kind.key, kind.value]

    def of(part: TypeInformation) -> Callable[[pa.Array], pa.Array]:
        return lambda values: turn(values, part)

    return with_parts(array, list(map(of, kinds)), wanted)
