"""Types together with values of them, for property tests: every kind of type, nested up to three levels."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import strategies as st

from state_engine.core.types.durations import Instant
from state_engine.core.types.every_type import (
    BigIntegerType,
    BooleanType,
    BytesType,
    CharType,
    DateType,
    DecimalType,
    DictType,
    FloatType,
    InstantType,
    IntegerType,
    ListType,
    PickledType,
    StringType,
    StructType,
    TimestampType,
    TimeType,
    TypeInformation,
)
from state_engine.core.types.type_parsing import to_type

Sample = tuple[TypeInformation, st.SearchStrategy[Any]]
"""A type and a strategy for values that it accepts as they are."""


class Point(NamedTuple):
    x: int
    label: str | None


@dataclass
class Visit:
    """A mutable record with mutable fields."""

    airport: str
    delays: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Leg:
    origin: str
    minutes: float


def integers(bits: int) -> Sample:
    kind = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[bits]
    return IntegerType(kind), st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def decimals(precision: int, scale: int) -> Sample:
    digits = st.integers(-(10**precision) + 1, 10**precision - 1)
    return DecimalType(precision, scale), digits.map(lambda n: Decimal(f"{n}E-{scale}"))


_UTC: Any = st.just(UTC)
_MODERN = {"min_value": datetime(1900, 1, 2), "max_value": datetime(2200, 1, 1)}
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)

LEAVES: dict[str, Sample] = {
    "tinyint": integers(8),
    "smallint": integers(16),
    "int": integers(32),
    "bigint": integers(64),
    "float": (FloatType(pa.float32()), st.floats(width=32, allow_nan=False)),
    "double": (FloatType(pa.float64()), st.floats(allow_nan=False)),
    "boolean": (BooleanType(), st.booleans()),
    "string": (StringType(), _TEXT),
    "binary": (BytesType(), st.binary(max_size=8)),
    "date": (DateType(), st.dates()),
    "timestamp": (TimestampType("UTC"), st.datetimes(timezones=_UTC)),
    "timestamp_ntz": (TimestampType(None), st.datetimes()),
    "timestamp in Tokyo": (TimestampType("Asia/Tokyo"), st.datetimes(**_MODERN, timezones=_UTC)),
    "decimal(5,2)": decimals(5, 2),
    "decimal(38,0)": decimals(38, 0),
    "decimal(38,38)": decimals(38, 38),
    "big integer": (BigIntegerType(), st.integers(-(10**38) + 1, 10**38 - 1)),
    "char": (CharType(), st.characters(codec="utf-8")),
    "instant": (
        InstantType(),
        st.builds(
            Instant, st.integers(-(10**10), 10**11), st.integers(0, 999_999).map(lambda us: us * 1_000)
        ),
    ),
    "time of day": (TimeType(), st.times()),
    "pickled": (
        PickledType(allow_pickle=True),
        st.frozensets(st.integers(), max_size=1),
    ),  # of more, equal ones may be pickled in another order
    "NamedTuple": (
        to_type(Point, parameter="p"),
        st.builds(Point, st.integers(-9, 9), st.none() | _TEXT),
    ),
    "dataclass": (
        to_type(Visit, parameter="p"),
        st.builds(Visit, _TEXT, st.lists(st.integers(-9, 9), max_size=3)),
    ),
    "frozen dataclass": (
        to_type(Leg, parameter="p"),
        st.builds(Leg, _TEXT, st.floats(allow_nan=False)),
    ),
}
_AS_MAP_KEY = ("tinyint", "bigint", "boolean", "string", "binary", "date", "timestamp", "decimal(5,2)")


def _lists(sample: Sample) -> Sample:
    kind, values = sample
    return ListType(kind), st.lists(st.none() | values, max_size=4)


def _dicts(key: Sample, sample: Sample) -> Sample:
    return DictType(key[0], sample[0]), st.dictionaries(key[1], st.none() | sample[1], max_size=4)


def _structs(samples: list[Sample], made_by: Any) -> Sample:
    names = [f"c{i}" for i in range(len(samples))]
    kind = StructType(names, [t for t, _ in samples], made_by)
    return kind, st.tuples(*[st.none() | values for _, values in samples])


def samples() -> st.SearchStrategy[Sample]:
    """Any type with a strategy for its values."""
    leaves = st.sampled_from(list(LEAVES.values()))
    keys = st.sampled_from([LEAVES[name] for name in _AS_MAP_KEY])

    def deeper(inner: st.SearchStrategy[Sample]) -> st.SearchStrategy[Sample]:
        records = st.builds(
            _structs, st.lists(inner, min_size=1, max_size=3), st.sampled_from([tuple, "row"])
        )
        return st.builds(_lists, inner) | st.builds(_dicts, keys, inner) | records

    return st.recursive(leaves, deeper, max_leaves=4)


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.binary(max_size=3),
    st.dates(), st.datetimes(), st.datetimes(timezones=_UTC), st.decimals(),
    st.lists(st.integers() | st.none(), max_size=2), st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
    st.tuples(st.integers(), st.text(max_size=2)), st.just(Point(1, "a")), st.just(Visit("JFK", [1])),
    st.just(1 + 2j),
)  # fmt: skip
"""Values of every kind, wrong ones included."""
