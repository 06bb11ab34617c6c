"""Columns of one form as columns of another, and what a table's column must grow by."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from state_engine.core.errors import StateMigrationError
from state_engine.core.types.ddl import parse_ddl
from state_engine.core.types.stored_form import added_fields, columns_text, conform, grown


def arrow(ddl: str) -> pa.DataType:
    return parse_ddl(ddl).arrow


def test_a_column_of_the_form_wanted_is_left_alone() -> None:
    array = pa.array([{"a": [1]}], arrow("a array<bigint>"))
    assert conform(array, array.type) is array


def test_fields_are_matched_by_name_at_every_depth_and_nulls_stay_nulls() -> None:
    old = arrow(
        "a bigint, gone string, l array<struct<x: bigint>>, m map<string, struct<x: bigint, y: date>>"
    )
    new = arrow(
        "m map<string, struct<x: bigint>>, l array<struct<z: double, x: bigint>>, a bigint, n boolean"
    )
    rows = [
        {"a": 1, "gone": "g", "l": [{"x": 1}, None], "m": [("k", {"x": 2, "y": None}), ("q", None)]},
        None,
        {"a": None, "gone": None, "l": None, "m": None},
        {"a": 4, "gone": "g", "l": [], "m": []},
        {"a": 5, "gone": "g", "l": [{"x": 5}], "m": [("z", {"x": 6, "y": None})]},
    ]
    expected: list[Any] = [
        {"m": [("k", {"x": 2}), ("q", None)], "l": [{"z": None, "x": 1}, None], "a": 1, "n": None},
        None,
        {"m": None, "l": None, "a": None, "n": None},
        {"m": [], "l": [], "a": 4, "n": None},
        {"m": [("z", {"x": 6})], "l": [{"z": None, "x": 5}], "a": 5, "n": None},
    ]
    array = pa.array(rows, old)
    for start in range(6):
        conformed = conform(array.slice(start), new)
        conformed.validate(full=True)
        assert conformed.type == new
        assert conformed.to_pylist() == expected[start:]
    chunked = conform(pa.chunked_array([array[:1], array[1:]], old), new)
    assert (chunked.type, chunked.to_pylist()) == (new, expected)
    assert conform(pa.chunked_array([], old), new).type == new


def test_what_hides_below_a_null_does_not_come_out() -> None:
    hidden = pa.ListArray.from_arrays(
        pa.array([0, 2, 3], pa.int32()),
        pa.array([{"a": 1}, {"a": 2}, {"a": 3}]),
        mask=pa.array([True, False]),
    )
    assert conform(hidden, arrow("array<struct<a: bigint, b: string>>")).to_pylist() == [
        None,
        [{"a": 3, "b": None}],
    ]


@pytest.mark.parametrize(
    ("have", "want"),
    [
        ("bigint", "double"),
        ("a bigint", "a string"),
        ("array<bigint>", "bigint"),
        ("map<string, int>", "a int"),
    ],
)
def test_values_of_another_kind_are_refused(have: str, want: str) -> None:
    with pytest.raises(StateMigrationError, match="something else wrote this file"):
        conform(pa.nulls(1, arrow(have)), arrow(want))


GROWN = [
    ("bigint", "bigint", "bigint", []),
    ("a bigint, b string", "a bigint", "a bigint, b string", []),
    ("a bigint", "b string, a bigint", "a bigint, b string", [("v", "b")]),
    (
        "array<struct<a: int>>",
        "array<struct<b: int>>",
        "array<struct<a: int, b: int>>",
        [("v", "element", "b")],
    ),
    (
        "map<string, struct<a: int>>",
        "map<string, struct<b: int>>",
        "map<string, struct<a: int, b: int>>",
        [("v", "value", "b")],
    ),
    (
        "a struct<x: int>, c date",
        "c date, a struct<y: struct<z: int>>, b int",
        "a struct<x: int, y: struct<z: int>>, c date, b int",
        [("v", "a", "y"), ("v", "b")],
    ),
]


@pytest.mark.parametrize(("column", "needed", "expected", "added"), GROWN)
def test_a_column_grows_by_what_it_lacks_and_loses_nothing(
    column: str, needed: str, expected: str, added: list[tuple[str, ...]]
) -> None:
    column_now = grown(arrow(column), arrow(needed))
    assert column_now == arrow(expected)
    assert [path for path, _ in added_fields(arrow(column), column_now, ("v",))] == added
    assert grown(column_now, arrow(needed)) == column_now


CONFLICTS = [
    ("a bigint", "a string", "field 'a'.*bigint.*string"),
    ("a bigint, b array<int>", "b array<string>", "field 'b'"),
    ("a bigint, size bigint", "a bigint, Size bigint", "field 'size'.*upper and lower case"),
    ("map<string, int>", "map<int, int>", "cannot hold"),
]


@pytest.mark.parametrize(("column", "needed", "message"), CONFLICTS)
def test_a_column_that_cannot_grow_says_why_and_what_to_do(column: str, needed: str, message: str) -> None:
    with pytest.raises(StateMigrationError, match=f"{message}.*Give the new field another name"):
        grown(arrow(column), arrow(needed))


def test_a_whole_table_is_a_record_of_its_columns() -> None:
    table = arrow("key struct<k: string>, v_last struct<a: bigint>")
    wanted = arrow("v_last struct<b: date>, v_new array<bigint>")
    added = added_fields(table, grown(table, wanted))
    assert columns_text(added) == "`v_last`.`b` date, `v_new` array<bigint>"
    assert columns_text([(("a`b", "c d"), pa.int64())]) == "`a``b`.`c d` bigint"
    with pytest.raises(StateMigrationError, match="field 'v_last': field 'a'"):
        grown(table, arrow("v_last struct<a: string>"))
