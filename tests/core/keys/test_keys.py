"""Canonical keys: which values are the same key, which are no keys, and stored keys as declared."""

import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Context, Decimal, localcontext
from enum import Enum, IntEnum
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_engine.core.errors import InvalidKeyError
from state_engine.core.keys.canonical import (
    canonical_key,
    decode_keys,
    key_hash,
    storage_type,
)
from state_engine.core.types.row import Row
from tests.support.key_samples import encode_keys


class Route(NamedTuple):
    origin: str
    dest: str | None


@dataclass
class Leg:
    number: int
    route: Route


class Level(IntEnum):
    HIGH = 3


class Color(str, Enum):  # noqa: UP042  # unlike a StrEnum, str() of it is not its value
    RED = "red"


CANONICAL = [
    (True, 1),
    (7, 7),
    (Level.HIGH, 3),
    (-(2**63), -(2**63)),
    (np.int16(7), 7),
    (1.5, 1.5),
    (-0.0, 0.0),
    (np.float32(0.1), 0.10000000149011612),
    (np.bool_(True), 1),
    (float("inf"), float("inf")),
    (Decimal("1.50"), "1.5"),
    (Decimal("0.00"), "0"),
    (Decimal("-0.0"), "0"),
    (Decimal("1.2E-9"), "0.0000000012"),
    (Decimal("1E+30"), "1" + "0" * 30),
    (Decimal(-100), "-100"),
    (Decimal("1E-38"), "0." + "0" * 37 + "1"),
    (Decimal(12345678901234567890123456789012345678), "12345678901234567890123456789012345678"),
    (Decimal("1234567890123456789012345678.9012345670"), "1234567890123456789012345678.901234567"),
    ("", ""),
    (Color.RED, "red"),
    (b"\x00", b"\x00"),
    (bytearray(b"ab"), b"ab"),
    (date(1969, 12, 31), -1),
    (datetime(1969, 12, 31, 23, 59, 59, 999999), -1),
    (datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), 0),
    (datetime(2013, 7, 4, 8, 30, tzinfo=ZoneInfo("America/New_York")), 1372941000_000000),
    (pd.Timestamp("1970-01-01T00:00:01Z"), 1_000_000),
    (Route("EWR", None), ("EWR", None)),
    (Leg(1, Route("EWR", "TYS")), (1, ("EWR", "TYS"))),
    (Row(tail="N1", day=date(1970, 1, 2)), ("N1", 1)),
]


@pytest.mark.parametrize(("key", "expected"), CANONICAL, ids=[repr(key)[:40] for key, _ in CANONICAL])
def test_canonical_form(key: object, expected: object) -> None:
    canonical = canonical_key(key)
    assert canonical == expected
    assert type(canonical) is type(expected)
    assert canonical_key(canonical) == canonical or isinstance(key, Decimal)
    assert repr(canonical) == repr(expected)  # distinguishes 0.0 from -0.0


NO_KEYS = [
    (None, "None"),
    (float("nan"), "NaN"),
    (("a", float("nan")), "NaN"),
    (Decimal("NaN"), "not a number"),
    (Decimal("Infinity"), "not a number"),
    (Decimal("1E+38"), "38 digits"),
    (Decimal("1E+999999"), "38 digits"),
    (Decimal("1" + "0" * 30 + ".0123456789"), "38 digits"),
    (2**63, "64 bits"),
    ((1, -(2**63) - 1), "64 bits"),
    (10**5000, "64 bits"),
    (pd.NaT, "NaT"),
    ("\ud800", "Unicode"),
    ([1], "list"),
    ({"a": 1}, "dict"),
    ({1}, "set"),
    (("a", [1]), "list"),
    ((), "empty tuple"),
    (object(), "object"),
    (Leg, "type"),
    (1j, "complex"),
    (timedelta(1), "timedelta"),
    (np.datetime64("2020-01-01"), "datetime64"),
]


@pytest.mark.parametrize(("key", "message"), NO_KEYS, ids=[f"{i}-{m}" for i, (_, m) in enumerate(NO_KEYS)])
def test_what_is_no_key_is_refused(key: object, message: str) -> None:
    with pytest.raises(InvalidKeyError, match=message):
        canonical_key(key)
    with pytest.raises(InvalidKeyError, match=message):
        key_hash(key)


def test_decimals_do_not_depend_on_the_context() -> None:
    with localcontext() as context:
        context.prec = 3
        assert canonical_key(Decimal("12345678901234567890.1234567890")) == "12345678901234567890.123456789"


def test_the_hash_narrows_and_the_key_decides() -> None:
    keys = [(None, 1), (1, None), (1,), 1, True, Row(a=1)]
    assert {key_hash(key) for key in keys} == {-7001672635703045582}
    assert canonical_key((None, 1)) != canonical_key((1, None)) != canonical_key((1,))
    assert key_hash((1, ("x", 2.5))) == 6326440900476303730  # printed by Spark for the nested struct


@given(st.decimals(allow_nan=False, allow_infinity=False, places=10, min_value=-(10**20), max_value=10**20))
def test_decimal_text_is_plain_exact_and_unique(key: Decimal) -> None:
    text = canonical_key(key)
    assert isinstance(text, str)
    assert Decimal(text) == key
    assert not set(text) - set("-.0123456789")
    assert "." not in text or text[-1] not in "0."
    assert canonical_key(key.normalize(Context(prec=38))) == text  # another spelling, one key
    assert canonical_key(Decimal(f"{key:f}000")) == text


STORAGE = [
    (pa.int8(), pa.int64()),
    (pa.uint32(), pa.int64()),
    (pa.int64(), pa.int64()),
    (pa.bool_(), pa.int64()),
    (pa.date32(), pa.int64()),
    (pa.float32(), pa.float64()),
    (pa.decimal128(5, 2), pa.string()),
    (pa.decimal128(38, 0), pa.string()),
    (pa.large_string(), pa.string()),
    (pa.dictionary(pa.int32(), pa.string()), pa.string()),
    (pa.binary(4), pa.binary()),
    (pa.large_binary(), pa.binary()),
    (pa.timestamp("ms", "Asia/Tokyo"), pa.timestamp("us", "UTC")),
    (pa.timestamp("s"), pa.timestamp("us")),
    (
        pa.struct({"a": pa.int8(), "b": pa.struct({"c": pa.date32()})}),
        pa.struct({"a": pa.int64(), "b": pa.struct({"c": pa.int64()})}),
    ),
]


@pytest.mark.parametrize(("declared", "stored"), STORAGE, ids=[str(declared) for declared, _ in STORAGE])
def test_storage_types_are_the_widest(declared: pa.DataType, stored: pa.DataType) -> None:
    assert storage_type(declared) == stored


@pytest.mark.parametrize(
    "declared",
    [
        pa.list_(pa.int64()),
        pa.map_(pa.string(), pa.int64()),
        pa.null(),
        pa.duration("us"),
        pa.time64("us"),
        pa.struct([]),
    ],
    ids=str,
)
def test_types_that_cannot_be_keys_are_refused(declared: pa.DataType) -> None:
    with pytest.raises(InvalidKeyError, match="'key'"):
        storage_type(declared)
    with pytest.raises(InvalidKeyError, match=r"'key\.part'"):
        storage_type(pa.struct({"ok": pa.int64(), "part": declared}))
    with pytest.raises(InvalidKeyError, match="cannot be a key"):
        decode_keys(pa.array([], pa.int64()), declared)


DECLARED: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.bool_(), st.booleans()),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.decimal128(5, 2), st.decimals(-999, 999, places=2)),
    (pa.decimal128(38, 10), st.decimals(-(10**27), 10**27, places=10)),
    (pa.string(), st.text(st.characters(codec="utf-8"))),
    (pa.dictionary(pa.int8(), pa.string()), st.text(st.characters(codec="utf-8"))),
    (pa.binary(), st.binary()),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), st.datetimes()),
    (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(UTC))),
    (pa.timestamp("us", "Europe/Rome"), st.datetimes(datetime(1990, 1, 1), timezones=st.just(UTC))),
]
WHOLE = pa.struct([pa.field(f"f{i}", declared) for i, (declared, _) in enumerate(DECLARED)])
NESTED = pa.struct({"whole": WHOLE, "n": pa.int64()})


@given(st.data())
def test_stored_keys_come_back_as_declared(data: st.DataObject) -> None:
    parts = st.tuples(*[st.none() | values for _, values in DECLARED])
    keys = data.draw(st.lists(st.tuples(st.none() | parts, st.none() | st.integers(0, 9)), max_size=4))
    stored = encode_keys([canonical_key(key) for key in keys], NESTED)
    assert stored.type == storage_type(NESTED)
    stored.validate(full=True)
    decoded = decode_keys(stored, NESTED)
    assert decoded == keys
    assert decode_keys(pa.chunked_array([stored[:1], stored[1:]], stored.type), NESTED) == keys
    for key, back in zip(keys, decoded, strict=True):
        assert isinstance(back, Row)
        for part, part_back in zip(key[0] or (), back.whole or (), strict=True):
            assert type(part) is type(part_back)
            assert str(part) == str(part_back) or part == 0 or isinstance(part, datetime)
        assert key_hash(back) == key_hash(key)


def decoded(keys: list[Any], declared: pa.DataType) -> list[Any]:
    """Keys after they were stored."""
    return decode_keys(encode_keys([canonical_key(key) for key in keys], declared), declared)


def test_a_single_type_decodes_without_a_struct() -> None:
    assert decode_keys(encode_keys([1, 0], pa.bool_()), pa.bool_()) == [True, False]
    assert decode_keys(pa.array([None], pa.int64()), pa.date32()) == [None]
    (back,) = decoded([datetime(2013, 7, 4, 12, tzinfo=UTC)], pa.timestamp("us", "Europe/Rome"))
    assert (back.hour, back.utcoffset()) == (14, timedelta(hours=2))
    assert math.copysign(1, *decoded([-0.0], pa.float32())) == 1
