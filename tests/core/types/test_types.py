"""Types: how a value is normalised, how Arrow stores it, and that it is read back equal."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_engine.core.errors import ConfigurationError, ValueTypeError
from state_engine.core.types import every_type as types
from state_engine.core.types.ddl import parse_ddl
from state_engine.core.types.every_type import DictType, ListType, StructType, TypeInformation
from state_engine.core.types.row import Row
from state_engine.core.types.type_parsing import to_type
from tests.core.types.type_samples import ANYTHING, LEAVES, Leg, Point, Sample, Visit, samples


@given(data=st.data(), sample=samples())
def test_a_slice_of_a_column_gives_its_own_values(data: st.DataObject, sample: Sample) -> None:
    kind, strategy = sample
    values = [
        None if v is None else kind.normalise(v)
        for v in data.draw(st.lists(st.none() | strategy, max_size=6))
    ]
    start = data.draw(st.integers(0, len(values)))
    end = data.draw(st.integers(start, len(values)))

    array = kind.to_arrow(values, storage=True)
    array.validate(full=True)
    array = array.slice(start, end - start)

    assert kind.from_arrow(array) == values[start:end]


@given(data=st.data(), sample=samples())
def test_values_of_a_type_are_kept_and_normal_ones_stay_the_same(data: st.DataObject, sample: Sample) -> None:
    kind, strategy = sample
    value = data.draw(strategy)

    normal = kind.normalise(value)

    assert normal == value
    assert kind.normalise(normal) == normal
    assert type(kind.normalise(normal)) is type(normal)


@given(data=st.data(), sample=samples())
def test_copies_share_nothing_mutable(data: st.DataObject, sample: Sample) -> None:
    kind, strategy = sample
    value = kind.normalise(data.draw(strategy))

    copied = kind.copy(value)

    assert copied == value
    assert not _mutable_parts(copied) & _mutable_parts(value)
    assert not _mutable_parts(kind.normalise(value)) & _mutable_parts(value)


@given(data=st.data(), sample=samples(), value=ANYTHING)
def test_the_fast_way_decides_as_the_slow_one(data: st.DataObject, sample: Sample, value: Any) -> None:
    kind, strategy = sample
    if data.draw(st.booleans()):
        value = data.draw(strategy)
    assert _outcome(kind.compiled(), value) == _outcome(kind.normalise, value)


@given(sample=samples(), value=ANYTHING)
def test_a_value_is_accepted_or_refused_and_never_anything_else(sample: Sample, value: Any) -> None:
    kind, _ = sample
    try:
        normal = kind.normalise(value)
    except ValueTypeError:
        return
    (back,) = kind.from_arrow(kind.to_arrow([normal], storage=True))
    assert back == normal or _is_nan(normal)


def test_nan_and_the_infinities_are_values() -> None:
    kind = parse_ddl("double")
    back = kind.from_arrow(kind.to_arrow([math.nan, math.inf, -math.inf, -0.0], storage=True))
    assert math.isnan(back[0])
    assert back[1:] == [math.inf, -math.inf, 0.0]
    assert math.copysign(1, back[3]) == -1


WRITTEN = [
    ("bigint", np.int64(7), 7),
    ("tinyint", -128, -128),
    ("double", 3, 3.0),
    ("decimal(5,2)", 7, Decimal("7.00")),
    ("decimal(5,2)", Decimal("1.5"), Decimal("1.50")),
    (
        "timestamp",
        datetime(2013, 1, 1, 5, tzinfo=timezone(timedelta(hours=5))),
        datetime(2013, 1, 1, tzinfo=UTC),
    ),
    ("array<bigint>", (1, None), [1, None]),
    ("map<string, double>", {"a": 1}, {"a": 1.0}),
    ("a bigint, b string", [1, None], (1, None)),
    ("x bigint, label string", Point(1, "p"), (1, "p")),
    ("label string, x bigint", Point(1, "p"), ("p", 1)),
    ("airport string, delays array<bigint>", Visit("JFK", [1]), ("JFK", [1])),
]


@pytest.mark.parametrize(("ddl", "written", "stored"), WRITTEN)
def test_a_value_becomes_its_declared_type(ddl: str, written: Any, stored: Any) -> None:
    normal = parse_ddl(ddl).normalise(written)
    assert normal == stored
    assert type(normal) is type(stored) or isinstance(normal, Row)


def test_a_written_value_is_a_copy() -> None:
    kind, given_value = to_type(dict[str, list[int]], parameter="p"), {"a": [1]}
    stored = kind.normalise(given_value)
    given_value["a"].append(2)
    assert stored == {"a": [1]}


def test_records_come_back_as_the_class_that_was_declared() -> None:
    for cls, value in ((Point, Point(1, None)), (Visit, Visit("EWR", [3])), (Leg, Leg("LGA", 2.0))):
        kind = to_type(cls, parameter="p")
        (back,) = kind.from_arrow(kind.to_arrow([kind.normalise(value)], storage=True))
        assert type(back) is cls
        assert back == value


REFUSED = [
    ("tinyint", 128, "between -128 and 127"),
    ("bigint", 2**63, "between"),
    ("bigint", -(2**63) - 1, "between"),
    ("bigint", True, r"True \(bool\) is not a value of type int64"),
    ("bigint", None, "NoneType"),
    ("double", 10**400, "too large"),
    ("float", 1e39, "too large"),
    ("string", "\ud800", "surrogates"),
    ("timestamp", datetime(2013, 1, 1), "with a time zone is needed"),
    ("timestamp_ntz", datetime(2013, 1, 1, tzinfo=UTC), "without a time zone is needed"),
    ("timestamp", datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5))), "out of range"),
    ("decimal(5,2)", Decimal("1000"), "too many digits"),
    ("decimal(5,2)", Decimal("0.001"), "more fraction digits"),
    ("decimal(5,2)", Decimal("Infinity"), "digits"),
    ("array<bigint>", [1, "x"], "'x'"),
    ("map<string, bigint>", {None: 1}, "keys must not be None"),
    ("map<string, bigint>", {"a": "b"}, "'b'"),
    ("a bigint, b string", (1,), "it has 1 field, 2 are declared"),
    ("a bigint, b string", {"a": 1, "c": 2}, r"missing fields \['b'\], unknown fields \['c'\]"),
    ("a bigint, b string", ("x", "y"), "field 'a'"),
    ("a struct<b: tinyint>", ((300,),), "field 'a': field 'b'"),
]


@pytest.mark.parametrize(("ddl", "value", "message"), REFUSED)
def test_what_does_not_fit_is_refused_with_the_reason(ddl: str, value: Any, message: str) -> None:
    for normalise in (parse_ddl(ddl).normalise, parse_ddl(ddl).compiled()):
        with pytest.raises(ValueTypeError, match=message):
            normalise(value)


def test_a_refusal_shows_only_the_beginning_of_a_large_value() -> None:
    with pytest.raises(ValueTypeError) as caught:
        parse_ddl("bigint").normalise("x" * 10_000)
    assert len(str(caught.value)) < 200


def test_states_are_stored_in_the_widest_type_of_their_kind() -> None:
    declared = parse_ddl(
        "a tinyint, b float, c decimal(5,2), d array<int>, e map<smallint, float>, f timestamp_ntz"
    )
    widest = parse_ddl(
        "a bigint, b double, c decimal(38,2), d array<bigint>, e map<bigint, double>, f timestamp_ntz"
    )
    assert declared.storage == widest.arrow
    assert widest.storage == widest.arrow


def test_widening_a_type_changes_no_stored_column() -> None:
    for narrow, wide in (("tinyint", "bigint"), ("float", "double"), ("decimal(5,2)", "decimal(20,2)")):
        assert parse_ddl(narrow).storage == parse_ddl(wide).storage


def test_two_fields_cannot_have_one_name() -> None:
    with pytest.raises(ConfigurationError, match="unique"):
        StructType(["a", "a"], [LEAVES["bigint"][0]] * 2)


def test_plain_form_names_the_fields() -> None:
    kind = to_type(Point, parameter="p")
    assert kind.to_plain(Point(1, "a")) == {"x": 1, "label": "a"}
    assert kind.to_plain(None) is None


def test_types_are_equal_where_their_columns_are() -> None:
    assert parse_ddl("bigint") == to_type(int, parameter="p")
    assert hash(parse_ddl("bigint")) == hash(to_type(int, parameter="p"))
    assert parse_ddl("bigint") != parse_ddl("int")
    assert parse_ddl("bigint") != pa.int64()


def _mutable_parts(value: Any) -> set[int]:
    """Identities of all mutable parts of a value."""
    parts: set[int] = set()
    if isinstance(value, list | dict | Visit):
        parts.add(id(value))
    if isinstance(value, Visit):
        value = [value.airport, value.delays]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            parts |= _mutable_parts(part)
    return parts


def _outcome(normalise: Callable[[Any], Any], value: Any) -> Any:
    try:
        normal = normalise(copy.deepcopy(value))
    except ValueTypeError:
        return "refused"
    return "NaN" if _is_nan(normal) else (repr(type(normal)), normal)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and value != value


def test_every_kind_of_type_is_sampled() -> None:
    declared = {getattr(types, name) for name in types.__all__}
    leaves = {type(kind) for kind, _ in LEAVES.values()}
    assert declared - leaves == {TypeInformation, ListType, DictType}
