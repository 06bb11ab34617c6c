"""The order-preserving encoding: bytes sort as keys do, for all types of keys, and decode to the same keys."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_engine.core.errors import InvalidKeyError
from state_engine.core.keys.ordering import decode, encode, key_order
from state_engine.core.types.type_parsing import to_type


class Stop(NamedTuple):
    code: str | None
    minutes: int | None


@dataclass(frozen=True)
class Leg:
    origin: str
    delay: float | None


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=4) | st.text("\0a\x01\xff", max_size=4)
FLOATS = st.floats(allow_nan=False) | st.sampled_from([0.0, -0.0, math.inf, -math.inf, 5e-324, -5e-324])
LONGS = st.integers(-(2**63), 2**63 - 1) | st.integers(-300, 300)
KINDS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "int": (int, LONGS),
    "tinyint": ("tinyint", st.integers(-128, 127)),
    "float": (float, FLOATS),
    "float32": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "str": (str, TEXT),
    "bytes": (bytes, st.binary(max_size=4) | st.lists(st.sampled_from([0, 1, 255]), max_size=4).map(bytes)),
    "bool": (bool, st.booleans()),
    "date": (date, st.dates()),
    "timestamp_ntz": ("timestamp_ntz", st.datetimes()),
    "timestamp": ("timestamp", st.datetimes(timezones=st.just(UTC))),
    "decimal": ("decimal(10,3)", st.integers(-(10**10) + 1, 10**10 - 1).map(lambda n: Decimal(n).scaleb(-3))),
    "large decimal": ("decimal(38,0)", st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal)),
}


def _in_order(value: Any) -> Any:
    """A key by which Python sorts records that hold None."""
    if isinstance(value, Leg):
        value = (value.origin, value.delay)
    if isinstance(value, tuple):
        return tuple((part is not None, 0 if part is None else _in_order(part)) for part in value)
    return value


RECORDS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "tuple": (tuple[int, str], st.tuples(st.none() | LONGS, st.none() | TEXT)),
    "texts": (tuple[str, str], st.tuples(TEXT, TEXT)),
    "nested": (tuple[tuple[str, float], bool], st.tuples(st.none() | st.tuples(TEXT, FLOATS), st.booleans())),
    "NamedTuple": (Stop, st.builds(Stop, st.none() | TEXT, st.none() | st.integers(-3, 3))),
    "dataclass": (Leg, st.builds(Leg, TEXT, st.none() | FLOATS)),
}
ALL = KINDS | RECORDS


@pytest.mark.parametrize("name", list(ALL))
@settings(max_examples=150)
@given(data=st.data())
def test_bytes_sort_as_keys_do_and_come_back(name: str, data: st.DataObject) -> None:
    declared, values = ALL[name]
    kind = to_type(declared, parameter="key")
    a, b = kind.normalise(data.draw(values)), kind.normalise(data.draw(values))
    coded_a, coded_b = encode(kind, a), encode(kind, b)
    assert (coded_a < coded_b) == (_in_order(a) < _in_order(b))
    assert (coded_a == coded_b) == (_in_order(a) == _in_order(b))
    decoded = decode(kind, coded_a)
    assert decoded == a
    assert type(decoded) is type(a)
    assert coded_a == coded_b or not coded_b.startswith(coded_a), "no key is the beginning of another one"


@pytest.mark.parametrize("name", list(ALL))
@settings(max_examples=80)
@given(data=st.data())
def test_sorting_in_memory_is_the_same_order(name: str, data: st.DataObject) -> None:
    declared, values = ALL[name]
    kind = to_type(declared, parameter="key")
    keys = [kind.normalise(v) for v in data.draw(st.lists(values, max_size=6))]
    order = key_order(kind)
    in_memory = [order.encode(k) for k in sorted(keys, key=order.sort_key)]
    assert in_memory == sorted(map(order.encode, keys))


def test_negative_zero_is_zero_and_nan_has_no_place() -> None:
    kind = to_type(float, parameter="key")
    assert encode(kind, -0.0) == encode(kind, 0.0)
    assert math.copysign(1, decode(kind, encode(kind, -0.0))) == 1
    with pytest.raises(InvalidKeyError, match="NaN has no place in an order"):
        encode(kind, math.nan)


def test_instants_sort_by_time_where_clocks_run_backwards() -> None:
    kind = to_type(pa.timestamp("us", "Europe/Berlin"), parameter="key")
    zone, start = ZoneInfo("Europe/Berlin"), datetime(2023, 10, 28, 23, 30, tzinfo=UTC)
    keys = [kind.normalise((start + timedelta(minutes=20 * n)).astimezone(zone)) for n in range(9)]
    order = key_order(kind)
    assert sorted(keys[1::2] + keys[::2], key=order.sort_key) == keys
    assert [order.encode(k) for k in keys] == sorted(order.encode(k) for k in keys)
    for key in keys:
        decoded = decode(kind, order.encode(key))
        assert (decoded.astimezone(UTC), decoded.fold) == (key.astimezone(UTC), key.fold)


REFUSED: list[Callable[[], Any]] = [
    lambda: key_order(to_type(list[int], parameter="key")),
    lambda: key_order(to_type(dict[str, int], parameter="key")),
    lambda: key_order(to_type(tuple[int, list[int]], parameter="key")),
]


@pytest.mark.parametrize("call", REFUSED)
def test_what_has_no_order_is_refused(call: Callable[[], Any]) -> None:
    with pytest.raises(InvalidKeyError, match="have no order: a sorted map cannot have them"):
        call()


def test_bytes_left_over_are_an_error() -> None:
    kind = to_type(int, parameter="key")
    with pytest.raises(ValueError, match="1 byte is left over"):
        decode(kind, encode(kind, 1) + b"x")
