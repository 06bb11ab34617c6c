"""Plain values: which values are plain, their form as JSON, and a round trip with their types."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_engine.core.errors import ValueTypeError
from state_engine.core.types.plain_type import PlainType
from tests.core.types.type_samples import Point, Visit

PLAIN = PlainType()
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5) | st.sampled_from(["$", "$tuple", "$x"])
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), TEXT, st.binary(max_size=5), st.dates(),
    st.datetimes(), st.datetimes(timezones=st.just(UTC)), st.decimals(allow_nan=False),
)  # fmt: skip
KEYS = st.one_of(TEXT, st.integers(), st.tuples(st.integers(), TEXT), st.booleans())


def _deeper(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(inner, max_size=3)
    return lists | lists.map(tuple) | st.dictionaries(KEYS, inner, max_size=3)


VALUES = st.recursive(SCALARS, _deeper, max_leaves=6)


def types_of(value: Any) -> Any:
    """A value with the class of everything in it: 1, 1.0 and True are equal in Python."""
    if isinstance(value, dict):
        return dict, [(types_of(k), types_of(v)) for k, v in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [types_of(v) for v in value]
    return type(value), value


@given(VALUES)
def test_values_come_back_with_their_types(value: Any) -> None:
    normal = PLAIN.normalise(value)
    text = PLAIN.to_text(normal)

    assert types_of(normal) == types_of(value)
    assert types_of(PLAIN.from_text(text)) == types_of(normal)
    assert PLAIN.to_text(PLAIN.from_text(text)) == text
    json.loads(text, parse_constant=pytest.fail)


@given(VALUES)
def test_columns_hold_the_texts(value: Any) -> None:
    values = [None if value is None else PLAIN.normalise(value), None]
    assert PLAIN.from_arrow(PLAIN.to_arrow(values, storage=True)) == values


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": [1, 2.5, None, True]}, '{"a": [1, 2.5, null, true]}'),
        ({1: "x"}, '{"$dict": [[1, "x"]]}'),
        ({"$a": 1}, '{"$dict": [["$a", 1]]}'),
        ({}, "{}"),
        ((), '{"$tuple": []}'),
        (b"x", '{"$bytes": "eA=="}'),
        (date(2013, 1, 2), '{"$date": "2013-01-02"}'),
        (datetime(2013, 1, 2, 3), '{"$datetime": "2013-01-02T03:00:00"}'),
        (Decimal("1.50"), '{"$decimal": "1.50"}'),
        (math.inf, '{"$float": "inf"}'),
    ],
)
def test_texts_are_pinned(value: Any, text: str) -> None:
    """A change here changes the format of stored roots."""
    assert PLAIN.to_text(PLAIN.normalise(value)) == text


def test_nan_comes_back() -> None:
    assert math.isnan(PLAIN.from_text(PLAIN.to_text(math.nan)))


class Colour(str, Enum):  # noqa: UP042, not StrEnum, which prints as its value
    RED = "red"


class Level(IntEnum):
    HIGH = 3


@pytest.mark.parametrize(
    ("given_value", "normal"),
    [
        (np.int64(3), 3),
        (np.float64(1.5), 1.5),
        (Level.HIGH, 3),
        (Colour.RED, "red"),
        (bytearray(b"x"), b"x"),
        (datetime(2013, 1, 1, 9, tzinfo=timezone(timedelta(hours=9))), datetime(2013, 1, 1, tzinfo=UTC)),
    ],
)
def test_near_relatives_become_plain(given_value: Any, normal: Any) -> None:
    plain = PLAIN.normalise(given_value)
    assert types_of(plain) == types_of(normal)


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, Point(1, "a"), Visit("JFK"), time(1), 1j, [object()], OrderedDict(a=1)]
)
def test_anything_else_is_refused_with_the_way_out(value: Any) -> None:
    with pytest.raises(ValueTypeError, match="state_type = int"):
        PLAIN.normalise(value)


def test_text_that_cannot_be_written_is_refused_at_once() -> None:
    with pytest.raises(ValueTypeError, match="surrogates"):
        PLAIN.normalise("\ud800")


def test_values_are_copied_whole() -> None:
    value = PLAIN.normalise({"a": [1, ([2],)]})
    copy = PLAIN.copy(value)
    copy["a"][1][0].append(3)
    assert value == {"a": [1, ([2],)]}
