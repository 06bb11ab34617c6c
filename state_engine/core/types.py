"""Types of keys, states and outputs: how a Python value is checked, stored in Arrow and given back.

``TypeInformation`` is one declared type. It normalises values when they are written (a value becomes its declared
type, or a ``ValueTypeError`` says why not; overflow is an error), gives fresh copies of mutable values when they are
read, and converts whole columns to and from Arrow. Nested values and fields may be None. Mirrors
``org.apache.flink.api.common.typeinfo.TypeInformation`` with its ``TypeSerializer``.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any, cast
from zoneinfo import ZoneInfo

import pyarrow as pa

from state_engine.core.errors import ConfigurationError, ValueTypeError
from state_engine.core.row import row_class

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_EPOCH, _EPOCH_UTC = datetime(1970, 1, 1), datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class TypeInformation:
    """One declared type.

    Attributes:
        arrow: the declared Arrow type; outputs are written with it.
        storage: the widest type of the same kind; states are stored with it, so that widening changes no table.
        mutable: whether values can be changed in place (reads then return copies).
    """

    arrow: pa.DataType
    storage: pa.DataType
    mutable = False

    def normalise(self, value: Any) -> Any:
        """The value as declared; a fresh one where it is mutable. Raises ValueTypeError."""
        raise NotImplementedError

    def check(self, var: str, names: dict[str, Any]) -> str | None:
        """A Python expression, true only for values that are normal already; None where there is no such test."""
        return None

    def copy(self, value: Any) -> Any:
        """A copy that shares nothing mutable with the value."""
        return value

    def to_arrow(self, values: list[Any], *, storage: bool) -> pa.Array:
        """Normal values (or None) as one Arrow array of the storage type or of the declared type."""
        return pa.array(values, self.storage if storage else self.arrow)

    def from_arrow(self, array: pa.Array) -> list[Any]:
        """The values of an Arrow array of the declared or the storage type."""
        return cast(list[Any], array.to_pylist())

    def to_plain(self, value: Any) -> Any:
        """A normal value as plain nested Python (lists, tuples, dicts), for messages and JSON."""
        return value

    def compiled(self) -> Callable[[Any], Any]:
        """``normalise`` with its fast test in front; for the hot path."""
        names: dict[str, Any] = {"slow": self.normalise}
        test = self.check("v", names)
        if test is None:
            return self.normalise
        return cast(Callable[[Any], Any], eval(f"lambda v: v if {test} else slow(v)", names))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TypeInformation) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        return str(self.arrow)

    def __repr__(self) -> str:
        return f"TypeInformation({self})"

    def _refuse(self, value: Any, why: str = "") -> ValueTypeError:
        shown = repr(value)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        return ValueTypeError(f"{shown} ({type(value).__name__}) is not a value of type {self}{why}")


class IntegerType(TypeInformation):
    """Whole numbers of 8 to 64 bits."""

    storage = pa.int64()

    def __init__(self, arrow: pa.DataType) -> None:
        self.arrow = arrow
        self._low, self._high = -(2 ** (arrow.bit_width - 1)), 2 ** (arrow.bit_width - 1) - 1

    def check(self, var: str, names: dict[str, Any]) -> str:
        return f"(type({var}) is int and {self._low} <= {var} <= {self._high})"

    def normalise(self, value: Any) -> int:
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise self._refuse(value)
        number = value.__index__()
        if not self._low <= number <= self._high:
            raise self._refuse(value, f": it must be between {self._low} and {self._high}")
        return int(number)

    def from_arrow(self, array: pa.Array) -> list[Any]:
        return array.to_pylist() if array.null_count else array.to_numpy(zero_copy_only=False).tolist()


class FloatType(TypeInformation):
    """Floating-point numbers of 32 or 64 bits; whole numbers are accepted and become floats."""

    storage = pa.float64()

    def __init__(self, arrow: pa.DataType) -> None:
        self.arrow = arrow
        self._single = arrow.bit_width == 32

    def check(self, var: str, names: dict[str, Any]) -> str | None:
        return None if self._single else f"type({var}) is float"

    def normalise(self, value: Any) -> float:
        if isinstance(value, bool | str | bytes | Decimal) or not hasattr(value, "__float__"):
            raise self._refuse(value)
        try:
            number = float(value)
            return struct.unpack("<f", struct.pack("<f", number))[0] if self._single else number
        except OverflowError:
            raise self._refuse(value, ": it is too large") from None

    from_arrow = IntegerType.from_arrow


class BooleanType(TypeInformation):
    """True or False."""

    arrow = storage = pa.bool_()

    def check(self, var: str, names: dict[str, Any]) -> str:
        return f"({var} is True or {var} is False)"

    def normalise(self, value: Any) -> bool:
        if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):
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
        return str(value)


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
        found = [None if m is None else epoch + timedelta(0, 0, m) for m in micros]
        return [m and m.astimezone(self._zone) for m in found] if self._zone else found

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


class ListType(TypeInformation):
    """Lists of one element type."""

    mutable = True

    def __init__(self, element: TypeInformation) -> None:
        self.element = element
        self.arrow, self.storage = pa.list_(element.arrow), pa.list_(element.storage)

    def normalise(self, value: Any) -> list[Any]:
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            raise self._refuse(value)
        each = self.element.normalise
        return [None if v is None else each(v) for v in value]

    def copy(self, value: Any) -> Any:
        each = self.element.copy
        return [each(v) for v in value] if value is not None else None

    def to_arrow(self, values: list[Any], *, storage: bool) -> pa.Array:
        flat = self.element.to_arrow([e for v in values if v is not None for e in v], storage=storage)
        return pa.ListArray.from_arrays(_offsets(values), flat, mask=_mask(values))

    def from_arrow(self, array: pa.Array) -> list[Any]:
        flat = self.element.from_arrow(array.flatten())
        lengths = array.value_lengths().to_pylist()
        return _cut(flat, lengths)


class DictType(TypeInformation):
    """Dicts of one key type and one value type."""

    mutable = True

    def __init__(self, key: TypeInformation, value: TypeInformation) -> None:
        self.key, self.value = key, value
        self.arrow, self.storage = pa.map_(key.arrow, value.arrow), pa.map_(key.storage, value.storage)

    def normalise(self, value: Any) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise self._refuse(value)
        if None in value:
            raise self._refuse(value, ": its keys must not be None")
        key, each = self.key.normalise, self.value.normalise
        return {key(k): None if v is None else each(v) for k, v in value.items()}

    def copy(self, value: Any) -> Any:
        each = self.value.copy
        return {k: each(v) for k, v in value.items()} if value is not None else None

    def to_arrow(self, values: list[Any], *, storage: bool) -> pa.Array:
        items = [item for v in values if v is not None for item in v.items()]
        keys = self.key.to_arrow([k for k, _ in items], storage=storage)
        vals = self.value.to_arrow([v for _, v in items], storage=storage)
        kind = self.storage if storage else self.arrow
        made = pa.MapArray.from_arrays(_offsets(values, null_is_none=True), keys, vals)
        return made.cast(kind)

    def from_arrow(self, array: pa.Array) -> list[Any]:
        start, end = (array.offsets[0].as_py(), array.offsets[-1].as_py()) if len(array) else (0, 0)
        keys = self.key.from_arrow(array.keys.slice(start, end - start))
        items = zip(keys, self.value.from_arrow(array.items.slice(start, end - start)), strict=True)
        offsets, valid = array.offsets.to_pylist(), array.is_valid().to_pylist()
        pairs, out = list(items), []
        for i, there in enumerate(valid):
            out.append(dict(pairs[offsets[i] - start : offsets[i + 1] - start]) if there else None)
        return out


class StructType(TypeInformation):
    """Records: tuples, Rows, NamedTuples or dataclasses, by what made them."""

    def __init__(self, names: Iterable[str], types: Iterable[TypeInformation], made_by: Any = tuple) -> None:
        self.names, self.types, self.made_by = tuple(names), tuple(types), made_by
        if len(set(self.names)) != len(self.names):
            raise ConfigurationError(f"field names must be unique, not {list(self.names)}")
        self.arrow = pa.struct([pa.field(n, t.arrow) for n, t in zip(self.names, self.types, strict=True)])
        self.storage = pa.struct(
            [pa.field(n, t.storage) for n, t in zip(self.names, self.types, strict=True)]
        )
        self._dataclass = dataclasses.is_dataclass(made_by)
        frozen = not self._dataclass or made_by.__dataclass_params__.frozen
        self.mutable = not frozen or any(t.mutable for t in self.types)
        self._class = row_class(self.names) if made_by == "row" else made_by

    def check(self, var: str, names: dict[str, Any]) -> str | None:
        if self._dataclass or self.mutable:
            return None
        label = f"c{len(names)}"
        names[label] = self._class
        tests = [f"type({var}) is {label}", f"len({var}) == {len(self.types)}"]
        for i, kind in enumerate(self.types):
            # a field test names a fresh variable: subscripts of a Row would run Python code
            part = kind.check(f"{var}_{i}", names)
            if part is None:
                return None
            tests.append(f"({part} or {var}_{i} is None)")
        if self._class is tuple and self.types:
            unpack = [f"({var}_{i} := {var}[{i}], True)[1]" for i in range(len(self.types))]
            tests[2:] = [f"{u} and {t}" for u, t in zip(unpack, tests[2:], strict=True)]
            return f"({' and '.join(tests)})"
        names["item"] = tuple.__getitem__
        unpack = [f"({var}_{i} := item({var}, {i}), True)[1]" for i in range(len(self.types))]
        tests[2:] = [f"{u} and {t}" for u, t in zip(unpack, tests[2:], strict=True)]
        return f"({' and '.join(tests)})"

    def normalise(self, value: Any) -> Any:
        parts = []
        for name, kind, part in zip(self.names, self.types, self._parts(value), strict=True):
            try:
                parts.append(None if part is None else kind.normalise(part))
            except ValueTypeError as error:
                raise ValueTypeError(f"field '{name}': {error}") from None
        return self._make(parts)

    def copy(self, value: Any) -> Any:
        if value is None or not self.mutable:
            return value
        return self._make([t.copy(p) for t, p in zip(self.types, self._parts(value), strict=True)])

    def to_arrow(self, values: list[Any], *, storage: bool) -> pa.Array:
        whole = self.storage if storage else self.arrow
        empty = (None,) * len(self.types)
        if self._dataclass:
            rows = [empty if v is None else tuple(getattr(v, n) for n in self.names) for v in values]
        else:
            rows = [empty if v is None else v for v in values] if None in values else values
        columns = [list(c) for c in zip(*rows, strict=True)] if values else [[] for _ in self.types]
        arrays = [t.to_arrow(c, storage=storage) for t, c in zip(self.types, columns, strict=True)]
        return pa.StructArray.from_arrays(arrays, fields=list(whole), mask=_mask(values))

    def from_arrow(self, array: pa.Array) -> list[Any]:
        columns = [t.from_arrow(c) for t, c in zip(self.types, array.flatten(), strict=True)]
        make = self._make
        rows = (
            list(zip(*columns, strict=True))
            if self._class is tuple
            else list(map(make, zip(*columns, strict=True)))
        )
        if array.null_count:
            return [r if there else None for r, there in zip(rows, array.is_valid().to_pylist(), strict=True)]
        return rows

    def to_plain(self, value: Any) -> Any:
        if value is None:
            return None
        return {n: t.to_plain(p) for n, t, p in zip(self.names, self.types, self._parts(value), strict=True)}

    def _make(self, parts: Iterable[Any]) -> Any:
        if self._dataclass:
            return self._class(**dict(zip(self.names, parts, strict=True)))
        return tuple.__new__(self._class, parts)

    def _parts(self, value: Any) -> Iterable[Any]:
        """The fields of anything that has them: by name where the names are the same, else by position."""
        if isinstance(value, tuple | list):
            fields = getattr(value, "_fields", self.names)
            if fields != self.names and set(fields) == set(self.names):
                plain = tuple(value)
                return [plain[fields.index(n)] for n in self.names]
            if len(value) == len(self.names):
                return value
            raise self._refuse(value, f": it has {len(value)} fields, {len(self.names)} are declared")
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        if isinstance(value, Mapping):
            if set(value) == set(self.names):
                return [value[n] for n in self.names]
            missing = sorted(set(self.names) - set(value))
            extra = sorted(str(n) for n in set(value) - set(self.names))
            raise self._refuse(value, f": missing fields {missing}, unknown fields {extra}")
        raise self._refuse(value)


def _mask(values: list[Any]) -> pa.Array | None:
    return pa.array([v is None for v in values]) if None in values else None


def _offsets(values: list[Any], *, null_is_none: bool = False) -> pa.Array:
    """Offsets of a list array; with ``null_is_none`` a None value has a None offset (how MapArray marks nulls)."""
    total, offsets = 0, []
    for value in values:
        offsets.append(None if null_is_none and value is None else total)
        total += 0 if value is None else len(value)
    return pa.array([*offsets, total], pa.int32())


def _cut(flat: list[Any], lengths: list[int | None]) -> list[Any]:
    start, out = 0, []
    for length in lengths:
        out.append(None if length is None else flat[start : start + length])
        start += length or 0
    return out
