"""Rows: tuples with names, by position, name and attribute."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_engine.core.row import Row, rows_from_columns


def test_a_field_is_found_by_position_name_and_attribute() -> None:
    row = Row(a=1, b="x")
    assert (row[0], row["b"], row.b, row[-1], row[0:1]) == (1, "x", "x", "x", (1,))
    assert row.as_dict() == {"a": 1, "b": "x"}
    assert list(row) == [1, "x"]


def test_positional_rows_have_default_names() -> None:
    assert Row(1, 2).as_dict() == {"f0": 1, "f1": 2}
    assert Row(1, 2).f1 == 2


def test_a_row_of_names_makes_rows() -> None:
    person = Row("id", "name")
    assert person(7, "ada").as_dict() == {"id": 7, "name": "ada"}
    with pytest.raises(TypeError, match="2 fields are named, 1 values given"):
        person(7)


def test_positional_and_named_fields_do_not_mix() -> None:
    with pytest.raises(TypeError, match="not both"):
        Row(1, b=2)


def test_a_missing_field_is_named_with_those_that_are_there() -> None:
    with pytest.raises(KeyError, match=r"no field 'c'.*\['a', 'b'\]"):
        Row(a=1, b=2)["c"]
    with pytest.raises(AttributeError, match=r"no field 'c'.*\['a', 'b'\]"):
        _ = Row(a=1, b=2).c
    assert not hasattr(Row(a=1), "c")


@pytest.mark.parametrize(
    "name",
    ["count", "index", "class", "two words", "a.b", "with`tick", "émoji", "_x", "self", "f0", "__len__"],
)
def test_any_column_name_works_even_those_that_tuples_use(name: str) -> None:
    row = Row("first", name)(0, 5)
    assert row[name] == 5
    assert row.as_dict() == {"first": 0, name: 5}
    if not name.startswith("__"):
        assert getattr(row, name) == 5
    assert len(row) == 2


def test_a_column_named_like_a_method_of_rows_leaves_the_method_alone() -> None:
    row = Row("as_dict", "b")(1, 2)
    assert row.as_dict() == {"as_dict": 1, "b": 2}
    assert row["as_dict"] == 1


@given(
    values=st.dictionaries(st.text(min_size=1, max_size=5), st.integers() | st.text(), min_size=1, max_size=4)
)
def test_pickles_and_copies_are_equal_rows(values: dict[str, Any]) -> None:
    row = Row(*values)(*values.values())
    for again in (pickle.loads(pickle.dumps(row)), copy.copy(row), copy.deepcopy(row)):
        assert again == row
        assert type(again) is type(row)
        assert again.as_dict() == values


def test_rows_cannot_be_changed() -> None:
    row: Any = Row(a=1)
    with pytest.raises(AttributeError):
        row.a = 2
    with pytest.raises(AttributeError):
        row.c = 2
    with pytest.raises(TypeError):
        row["a"] = 2


def test_rows_are_tuples() -> None:
    assert Row(a=1, b=2) == (1, 2) == Row(x=1, y=2)
    assert hash(Row(a=1, b=2)) == hash((1, 2))
    first, second = Row(a=1, b=2)
    assert (first, second) == (1, 2)
    assert repr(Row(a=1, b="x")) == "Row(a=1, b='x')"


def test_columns_become_rows() -> None:
    rows = rows_from_columns(("a", "b"), [[1, 2], ["x", None]])
    assert [r.as_dict() for r in rows] == [{"a": 1, "b": "x"}, {"a": 2, "b": None}]
    assert rows_from_columns(("a",), [[]]) == []


def test_making_a_row_class_survives_garbage_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    def collecting(name: str) -> bool:
        gc.collect()
        return False

    monkeypatch.setattr("state_engine.core.row.keyword.iskeyword", collecting)
    row = Row(collected_while=1, it_was_made=2)
    assert (row.collected_while, row.it_was_made) == (1, 2)
