"""Rows: tuples with names, by position, name and attribute."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle

from state_engine.core.errors import ValueTypeError
from state_engine.core.types.ddl import parse_ddl
from state_engine.core.types.every_type import StructType
from state_engine.core.types.row import Row, RowKind, rows_from_columns
from state_engine.core.types.type_parsing import to_type


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
    with pytest.raises(TypeError, match="2 fields are named, 1 value given"):
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


@pytest.mark.parametrize("name", ["as_dict", "set_row_kind", "get_row_kind", "replace", "of_kind"])
def test_a_column_named_like_a_method_of_rows_leaves_the_method_alone(name: str) -> None:
    row = Row(name, "b")(1, 2)
    assert row.as_dict() == {name: 1, "b": 2}
    assert row[name] == 1
    assert callable(getattr(row, name))


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
    with pytest.raises(AttributeError, match="replace"):
        row.a = 2
    with pytest.raises(AttributeError, match="replace"):
        row.c = 2
    for item in ("a", 0):
        with pytest.raises(TypeError, match="replace"):
            row[item] = 2


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

    monkeypatch.setattr("state_engine.core.types.row.keyword.iskeyword", collecting)
    row = Row(collected_while=1, it_was_made=2)
    assert (row.collected_while, row.it_was_made) == (1, 2)


def test_rows_inside_become_dicts_only_where_asked() -> None:
    inner = Row(city="Turin")
    row = Row(a=inner, b=[inner, 1], c={"k": inner}, d=(inner,))
    assert row.as_dict()["a"] is inner
    plain = {"city": "Turin"}
    fields = row.as_dict(recursive=True)
    assert fields == {"a": plain, "b": [plain, 1], "c": {"k": plain}, "d": (inner,)}
    assert {type(fields["a"]), type(fields["b"][0]), type(fields["c"]["k"])} == {dict}


def test_a_row_may_be_named_later() -> None:
    row = Row(1, 2)
    other = Row(1, 2)
    row.set_field_names(["x", "y"])
    assert (row.x, row["y"], row.as_dict()) == (1, 2, {"x": 1, "y": 2})
    assert other.as_dict() == {"f0": 1, "f1": 2}
    for wrong in (["x"], ["x", "x"]):
        with pytest.raises(ValueError, match="2 different field names"):
            row.set_field_names(wrong)


def test_in_looks_for_a_name_or_without_names_for_a_value() -> None:
    assert "name" in Row(name="Ada")
    assert "Ada" not in Row(name="Ada")
    assert "name" in Row("name", "age")
    assert 1 in Row(1, 2)
    assert 3 not in Row(1, 2)


@pytest.mark.parametrize("name", ["_kind", "_fields"])
def test_a_column_named_like_an_inner_attribute_is_found_by_name(name: str) -> None:
    row = Row("a", name)(1, 2)
    assert (row[name], row.get_row_kind(), row.as_dict()) == (2, RowKind.INSERT, {"a": 1, name: 2})
    assert type(pickle.loads(pickle.dumps(row))) is type(row)


def test_fields_by_names() -> None:
    assert Row(a=1, b=2, c=3).get_fields_by_names(["c", "a"]) == [3, 1]
    with pytest.raises(KeyError, match="no field 'd'"):
        Row(a=1).get_fields_by_names(["d"])


def test_other_values_make_another_row() -> None:
    row = Row("self", "b")(1, 2)
    assert row.replace(self=3).as_dict() == {"self": 3, "b": 2}
    assert row["self"] == 1
    assert Row.of_kind(RowKind.DELETE, a=1).replace(a=2).get_row_kind() is RowKind.DELETE
    with pytest.raises(KeyError, match="no field 'c'"):
        row.replace(c=1)


@pytest.mark.parametrize("kind", RowKind)
def test_a_row_has_a_kind_of_its_own(kind: RowKind) -> None:
    row, other = Row(a=1), Row(a=1)
    assert row.get_row_kind() is RowKind.INSERT
    row.set_row_kind(kind)
    for same in (row, Row.of_kind(kind, a=1), pickle.loads(pickle.dumps(row)), copy.deepcopy(row)):
        assert same.get_row_kind() is kind
        assert (same, same.a, same.as_dict()) == (row, 1, {"a": 1})
    assert other.get_row_kind() is RowKind.INSERT
    row.set_field_names(["b"])
    assert (row.get_row_kind(), row.b) == (kind, 1)
    row.set_row_kind(RowKind.INSERT)
    assert type(row) is type(Row(b=1))


def test_row_kinds_are_written_as_flink_does() -> None:
    assert [str(k) for k in RowKind] == ["+I", "-U", "+U", "-D"]


def test_a_row_that_is_no_insert_is_refused_and_never_taken_for_one() -> None:
    kind = parse_ddl("a bigint")
    for normalise in (kind.normalise, kind.compiled()):
        assert normalise(Row.of_kind(RowKind.INSERT, a=1)) == (1,)
        with pytest.raises(ValueTypeError, match="row kind is -D"):
            normalise(Row.of_kind(RowKind.DELETE, a=1))


@pytest.mark.more
def test_rows_of_a_type_that_travelled_are_of_the_class_that_is_there(tmp_path: Path) -> None:
    """A worker gets types by cloudpickle, and its rows from files; a fast test knows these only by their class."""
    kind = to_type("a bigint, b struct<c: bigint>", parameter="rows")
    assert isinstance(kind, StructType)
    assert kind.made_by == "row"
    (tmp_path / "kind").write_bytes(cloudpickle.dumps(kind))
    program = """if True:
        import pickle, sys
        from pathlib import Path
        from state_engine.core.types.row import Row, row_class
        kind = pickle.loads(Path(sys.argv[1]).read_bytes())
        (row,) = kind.from_arrow(kind.to_arrow([Row(a=1, b=Row(c=2))], storage=True))
        assert type(row) is row_class(("a", "b")), type(row)
        kind.normalise = None  # the slow way
        assert kind.compiled()(row) is row
    """
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "kind")], check=True)
