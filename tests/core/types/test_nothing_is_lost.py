"""What becomes a declared type is the same value afterwards, or it is refused: one by one and as a column."""

from __future__ import annotations

import enum
import math
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_engine import Instant, Row, Types
from state_engine.core.errors import ValueTypeError
from state_engine.core.types.column_forms import in_form
from state_engine.core.types.plain_type import PlainType
from state_engine.core.types.type_parsing import to_type


class Color(str, enum.Enum):  # noqa: UP042 - prints as its name
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Word(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "another text"


class Pair(NamedTuple):
    k: str
    n: int


@dataclass
class Wider:
    k: str
    n: int
    more: int


FINE = pd.Timestamp("2020-01-01 00:00:00.000000001")
PAIR = Types.ROW_NAMED(["k", "n"], [Types.STRING(), Types.LONG()])
REFUSED: dict[str, tuple[Any, list[Any]]] = {
    "double": ("double", [2**53 + 1, -(2**63) + 1, 10**400, Fraction(1, 3), np.longdouble("0.1"), Decimal("0.1"), True,
                          np.True_, "1.5", b"1", np.datetime64("2020-01-01"), np.array([1.5]), 1j, None.__class__]),
    "float": ("float", [2**24 + 1, np.int64(2**24 + 1), 1e39, Decimal(1), np.True_, 1 / 3, 0.123456789, 1e-46, math.pi,
                        np.float64(1 / 3), 16777216.5]),
    "int": ("int", [1.0, 1.5, np.float64(2), Decimal(1), True, np.True_, "1", 2**31, np.array([1]), Fraction(2)]),
    "bigint": ("bigint", [2**63, 1.0, np.uint64(2**63)]),
    "big integer": (Types.BIG_INT(), [1.0, 10**38, True]),
    "decimal": ("decimal(5,2)", [1.25, Decimal("1.005"), 1000, True, np.float64(1), float("nan")]),
    "boolean": ("boolean", [0, 1, "true", np.int64(1)]),
    "text": ("string", [1, b"x", None.__class__, "\ud800"]),
    "bytes": ("binary", ["x", [1, 2]]),
    "date": ("date", [datetime(2020, 1, 1), FINE, "2020-01-01", np.datetime64("2020-01-01")]),
    "instant": ("timestamp", [datetime(2020, 1, 1), FINE.tz_localize("UTC"), date(2020, 1, 1), pd.NaT, 0,
                              np.datetime64("2020-01-01T00")]),
    "local time": ("timestamp_ntz", [datetime(2020, 1, 1, tzinfo=UTC), FINE, date(2020, 1, 1)]),
    "Instant": (Types.INSTANT(), [Instant(0, 1), Instant(0, 1_001), datetime(2020, 1, 1, tzinfo=UTC)]),
    "time of day": (time, [time(1, tzinfo=UTC), timedelta(hours=1), datetime(2020, 1, 1)]),
    "list": (list[int], [{1, 2}, frozenset([1]), {1: 2}, "12", b"12", bytearray(b"1"), memoryview(b"1"), 3,
                         np.array(3), [1, 2.0]]),
    "dict": (dict[str, int], [[("a", 1)], {None: 1}, {"a": True}]),
    "dict of floats": (Types.MAP(Types.FLOAT(), Types.INT()), [{0.1: 1, 0.1000000001: 2}]),
    "record": (PAIR, [("a", 1, 2), ("a",), {"k": "a", "n": 1, "more": 2}, {"k": "a"}, Wider("a", 1, 2), {"a", 1}, "ab",
                      Row(n="a", m=1), Row(m="a", k=1), Row(x="a", y=1), Row(k="a", m=1), 7]),
    "plain": (PlainType(), [FINE, pd.NaT, np.array([1, 2]), {1}, Fraction(1, 3), 1j]),
}  # fmt: skip
SAME: dict[str, tuple[Any, list[tuple[Any, Any]]]] = {
    "double": ("double", [(2**53, 2.0**53), (2**60, 2.0**60), (np.float32(0.5), 0.5), (Level.HIGH, 3.0),
                          (Fraction(1, 4), 0.25)]),
    "float": ("float", [(2**24, 2.0**24), (0.5, 0.5), (0.1, float(np.float32(0.1))), (math.inf, math.inf),
                         (np.float32(1 / 3), float(np.float32(1 / 3))), (1e-5, float(np.float32(1e-5)))]),
    "int": ("int", [(Level.HIGH, 3), (np.int8(3), 3)]),
    "boolean": ("boolean", [(np.True_, True)]),
    "text": ("string", [(Color.RED, "red"), (Word("a"), "a"), (np.str_("é"), "é")]),
    "bytes": ("binary", [(bytearray(b"x"), b"x"), (memoryview(b"xy")[:1], b"x")]),
    "list": (list[int], [((1, 2), [1, 2]), (range(2), [0, 1]), ({3: 0, 1: 0}.keys(), [3, 1]), (array("i", [1]), [1]),
                         (np.array([1, 2]), [1, 2]), ((n for n in (1, 2)), [1, 2])]),
    "instant": ("timestamp", [(pd.Timestamp(1_000, tz="UTC"), datetime(1970, 1, 1, 0, 0, 0, 1, UTC))]),
    "record": (PAIR, [(Row(n=1, k="a"), ("a", 1)), (Row("a", 1), ("a", 1)), (Pair("a", 1), ("a", 1)),
                      ({"n": 1, "k": "a"}, ("a", 1))]),
    "plain": (PlainType(), [(Color.RED, "red"), (np.True_, True), (Level.HIGH, 3), (np.int64(2**62), 2**62)]),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_would_lose_something_is_refused(what: str) -> None:
    declared, values = REFUSED[what]
    kind = to_type(declared, parameter="p") if not isinstance(declared, PlainType) else declared
    for value in values:
        for normalise in (kind.normalise, kind.compiled()):
            with pytest.raises(ValueTypeError, match=r"is not a value of type|field '\w+'"):
                pytest.fail(f"{value!r} became {normalise(value)!r}")


@pytest.mark.parametrize("what", SAME)
def test_what_fits_is_the_same_value(what: str) -> None:
    declared, values = SAME[what]
    kind = to_type(declared, parameter="p") if not isinstance(declared, PlainType) else declared
    for value, expected in values:
        made = kind.normalise(value)
        assert made == expected
        assert type(made) is type(expected) or isinstance(made, tuple)


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_whole_number_is_a_double_on_both_ways_or_on_none(number: int) -> None:
    kind = to_type("double", parameter="p")

    def outcome(make: Callable[[], Any]) -> Any:
        try:
            return make()
        except ValueTypeError:
            return None

    one = outcome(lambda: kind.normalise(number))
    column = outcome(lambda: in_form(pa.array([number, None]), kind).to_pylist()[0])
    assert one == column
    assert one is None or one == number


COLUMNS: dict[str, tuple[Any, list[pa.Array]]] = {
    "double": ("double", [pa.array([2**53 + 1]), pa.array([2**63 - 1]), pa.array([Decimal("0.1")]), pa.array(["1"]),
                          pa.array([True])]),
    "float": ("float", [pa.array([2**24 + 1]), pa.array([1e39]), pa.array([0.5, None, 1 / 3]), pa.array([1e-46])]),
    "bigint": ("bigint", [pa.array([1.0]), pa.array([Decimal(1)]), pa.array(["1"]), pa.array([True]),
                          pa.array([datetime(2020, 1, 1)]), pa.array([2**63], pa.uint64())]),
    "decimal": ("decimal(5,2)", [pa.array([1.25]), pa.array([Decimal("1.005")]), pa.array([1000]), pa.array(["1"])]),
    "text": ("string", [pa.array([1]), pa.array([b"x"]), pa.array([date(2020, 1, 1)]), pa.array([True])]),
    "bytes": ("binary", [pa.array(["x"]), pa.array([1])]),
    "date": ("date", [pa.array([datetime(2020, 1, 1)]), pa.array([1], pa.int32()), pa.array(["2020-01-01"])]),
    "instant": ("timestamp", [pa.array([datetime(2020, 1, 1)]), pa.array([1]), pa.array([date(2020, 1, 1)]),
                              pa.array([1], pa.timestamp("ns", "UTC")), pa.array(["2020-01-01T00:00:00Z"])]),
    "local time": ("timestamp_ntz", [pa.array([datetime(2020, 1, 1, tzinfo=UTC)]), pa.array([1], pa.timestamp("ns"))]),
    "time of day": (time, [pa.array([1], pa.time64("ns")), pa.array([1.0]), pa.array(["01:00"])]),
    "list": (list[int], [pa.array([[1.0]]), pa.array([["1"]])]),
    "record": (PAIR, [pa.array([{"k": "a", "n": 1, "m": 1}]), pa.array([{"k": "a", "n": 1.0}])]),
}  # fmt: skip


@pytest.mark.parametrize("what", COLUMNS)
def test_a_column_that_would_lose_something_is_refused(what: str) -> None:
    declared, columns = COLUMNS[what]
    kind = to_type(declared, parameter="p")
    for column in columns:
        with pytest.raises(ValueTypeError, match=r"type"):
            pytest.fail(f"{column} became {in_form(column, kind)}")


def test_columns_that_fit_are_the_same_values() -> None:
    def made(column: pa.Array, declared: Any) -> list[Any]:
        return in_form(column, to_type(declared, parameter="p")).to_pylist()

    assert made(pa.array([2**60, None]), "double") == [2.0**60, None]
    assert made(pa.array([], pa.int64()), "float") == []
    assert made(pa.array([None], pa.int64()), "double") == [None]
    assert made(pa.array(["a", "b", "a"]).dictionary_encode(), "string") == ["a", "b", "a"]
    assert made(pa.array(["a"], pa.large_string()), "string") == ["a"]
    assert made(pa.array([1], pa.timestamp("s", "America/New_York")), "timestamp") == [
        datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    ]
    assert made(pa.array([time(0, 0, 1)], pa.time32("s")), time) == [1_000_000]
    assert made(pa.array([3]), "decimal(5,2)") == [Decimal("3.00")]
    assert made(pa.array([0.1, None, 0.5]), "float") == [float(np.float32(0.1)), None, 0.5]
    assert made(pa.array([math.inf]), "float") == [math.inf]
    assert math.isnan(made(pa.array([math.nan]), "float")[0])
