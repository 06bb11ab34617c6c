"""Evolution: supported changes read old values as a plain-Python model says, all others are refused with a way out."""

from __future__ import annotations

import io
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_engine.core.errors import ConfigurationError, StateMigrationError, ValueTypeError
from state_engine.core.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    SortedMapStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from state_engine.core.state.evolution import column_type_of, evolve, evolve_state, recorded_schema
from state_engine.core.state.state_schema import StateSchema
from state_engine.core.state.ttl import StateTtlConfig
from state_engine.core.types.column_forms import in_form, with_defaults
from state_engine.core.types.durations import Instant, Time
from state_engine.core.types.json_values import from_json
from state_engine.core.types.stored_form import added_fields, conform, grown
from state_engine.core.types.type_parsing import to_type
from state_engine.core.types.type_text import shown_storage, type_to_text
from state_engine.core.types.types_namespace import Types
from tests.core.state.evolution_samples import Evolved, converted, evolutions
from tests.core.types.type_samples import Sample, samples


@given(data=st.data(), change=evolutions())
def test_values_of_the_old_type_are_read_as_the_model_says(data: st.DataObject, change: Evolved) -> None:
    values = data.draw(st.lists(st.none() | change.values, max_size=4))
    normal = [None if v is None else change.old.normalise(v) for v in values]
    column = _through_parquet(change.old.to_arrow(normal, storage=True))

    evolution = evolve(type_to_text(change.old), change.new)
    read = evolution.read(column)

    read.validate(full=True)
    assert read.type == change.new.storage
    expected = [None if v is None else change.new.normalise(converted(change, v)) for v in normal]
    assert change.new.from_arrow(read) == expected
    assert bool(evolution.changes) == (type_to_text(change.old) != type_to_text(change.new)) or _reordered(
        change
    )


@given(data=st.data(), change=evolutions())
def test_one_table_holds_the_old_values_and_the_new(data: st.DataObject, change: Evolved) -> None:
    values = [change.old.normalise(v) for v in data.draw(st.lists(change.values, max_size=3))]
    old = change.old.to_arrow(values, storage=True)
    evolution = evolve(type_to_text(change.old), change.new)

    table = grown(change.old.storage, evolution.storage)

    assert grown(table, evolution.storage) == table
    assert all(path[-1].startswith("more") for path, _ in added_fields(old.type, table))
    expected = [change.new.normalise(change.convert(v)) for v in values]
    new = change.new.to_arrow(expected, storage=True)
    for column in (old, new):
        in_table = conform(column, table)
        assert in_table.type == table
        assert change.new.from_arrow(evolution.read(in_table)) == expected


@given(first=samples(), second=samples())
def test_a_change_is_supported_or_refused_with_both_types_and_a_way_out(
    first: Sample, second: Sample
) -> None:
    old, new = type_to_text(first[0]), type_to_text(second[0])
    try:
        evolution = evolve(old, second[0])
    except StateMigrationError as error:
        assert old != new
        assert f"stored as {old}, the function declares {new}" in str(error)  # noqa: PT017 - one of two outcomes
        assert "give the new state another name" in str(error)  # noqa: PT017
    else:
        assert (evolution.recorded, evolution.declared, evolution.storage) == (old, new, second[0].storage)


def _reordered(change: Evolved) -> bool:
    return sorted(type_to_text(change.old)) == sorted(type_to_text(change.new))


def _through_parquet(column: pa.Array) -> pa.Array:
    file = io.BytesIO()
    pq.write_table(pa.table({"v": column}), file)
    return pq.read_table(file)["v"].combine_chunks()


REFUSED = [
    ("bigint", "int", "bigint cannot become int"),
    ("double", "float", "double cannot become float"),
    ("int", "double", "int cannot become double"),
    ("bigint", "decimal(38,0)", "cannot become"),
    ("decimal(9,2)", "decimal(5,2)", "cannot become"),
    ("decimal(5,2)", "decimal(9,3)", "cannot become"),
    ("string", "bigint", "string cannot become bigint"),
    ("timestamp", "timestamp_ntz", "cannot become"),
    ("bigint", Types.SQL_TIME(), "bigint cannot become time_of_day"),
    ("time_of_day", "bigint", "time_of_day cannot become bigint"),
    ("character", "string", "character cannot become string"),
    ("instant", "timestamp", "instant cannot become timestamp"),
    ("big_integer", "decimal(38,0)", r"big_integer cannot become decimal\(38,0\)"),
    ("decimal(38,0)", Types.BIG_INT(), "cannot become big_integer"),
    ("pickled", "binary", "pickled cannot become binary"),
    ("binary", Types.PICKLED_BYTE_ARRAY(allow_pickle=True), "binary cannot become pickled"),
    ("bigint", "array<bigint>", "cannot become array<bigint>"),
    ("array<bigint>", "bigint", "cannot become bigint"),
    ("array<bigint>", "array<int>", "in 'element': bigint cannot become int"),
    ("struct<a: bigint>", "bigint", "cannot become bigint"),
    ("struct<a: bigint>", "struct<b: bigint>", r"no field is left of \['a'\]; a renamed field needs an alias"),
    ("struct<a: bigint, b: array<struct<c: string>>>", "a bigint, b array<struct<c: date>>", r"in 'b.element.c'"),
    ("map<string, bigint>", "map<string, string>", "in 'value'"),
    ("map<bigint, bigint>", "map<int, bigint>", "in 'key': bigint cannot become int"),
    ("map<struct<a: int>, bigint>", "map<struct<a: int, b: int>, bigint>", "in 'key': the fields of a key"),
    ("map<struct<a: int, b: int>, int>", "map<struct<b: int, a: int>, int>", "the fields of a key"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "message"), REFUSED)
def test_other_changes_are_refused(old: str, new: Any, message: str) -> None:
    with pytest.raises(StateMigrationError, match=message):
        evolve(old, to_type(new, parameter="new"))


def test_changes_are_reported_as_text() -> None:
    evolution = evolve(
        "struct<a: int, b: string, c: array<struct<d: float>>>",
        to_type("a bigint, c array<struct<d: double, e: date>>", parameter="p"),
    )
    assert evolution.changes == (
        "'a' is widened from int to bigint",
        "'c.element.d' is widened from float to double",
        "'c.element.e' is added",
        "'b' is dropped",
    )


def test_a_field_that_comes_back_gets_a_column_of_its_own() -> None:
    declared = to_type("a bigint, b struct<c: date>", parameter="p")
    was = ["struct<a: bigint, b: struct<c: date>>", "struct<a: bigint>"]
    back = evolve(was[1], declared, earlier=was)
    assert back.changes == ("'b' is added",)
    assert back.declared == "struct<`a`: bigint, `b` as `b__2`: struct<`c`: date>>"
    old = pa.array([{"a": 1, "b": {"c": date(2013, 1, 1)}}])
    assert declared.from_arrow(back.read(old)) == [(1, None)]
    assert grown(old.type, back.storage).names == ["a", "b", "b__2"]
    # the name of a column is kept, whatever comes later
    again = evolve(
        back.declared, to_type("b struct<c: date, d: string>", parameter="p"), earlier=[*was, back.declared]
    )
    assert again.declared == "struct<`b` as `b__2`: struct<`c`: date, `d`: string>>"
    assert evolve(was[1], declared, earlier=was[1:]).declared == type_to_text(declared)
    assert evolve(was[0], declared, earlier=was).changes == ()
    # tables do not distinguish upper and lower case
    upper = evolve(
        "struct<a: int>", to_type("a int, B int", parameter="p"), earlier=["struct<a: int, b: string>"]
    )
    assert upper.declared == "struct<`a`: int, `B` as `B__2`: int>"


@dataclass
class Visit:
    minutes: int = field(metadata={"alias": "delay"})
    origin: str | None = None


def test_a_field_is_renamed_by_an_alias() -> None:
    old, kind = "struct<delay: bigint>", to_type(Visit, parameter="p")
    evolution = evolve(old, kind)
    assert evolution.changes == ("'delay' is renamed to 'minutes'", "'origin' is added")
    assert evolution.declared == "struct<`minutes` as `delay`: bigint, `origin`: string>"
    assert evolution.type.from_arrow(evolution.read(pa.array([{"delay": 7}]))) == [Visit(7, None)]
    written = evolution.type.to_arrow([Visit(8, "JFK")], storage=True)
    assert written.to_pylist() == [{"delay": 8, "origin": "JFK"}]
    assert str(shown_storage(evolution.declared)) == "struct<minutes: int64, origin: string>"
    # the alias may go once a checkpoint knows the new name, and another field may have the old one
    later = evolve(evolution.declared, to_type("minutes bigint, delay string", parameter="p"), earlier=[old])
    assert later.declared == "struct<`minutes` as `delay`: bigint, `delay` as `delay__2`: string>"
    assert later.changes == ("'origin' is dropped", "'delay' is added")


class Place(NamedTuple):
    city: str
    zip: int = 0


DEFAULTS: dict[str, tuple[Any, Any]] = {
    "int": (int, 5),
    "zero": (int, 0),
    "False": (bool, False),
    "double": (float, 0.5),
    "infinity": (float, float("inf")),
    "text": (str, "it`s \"q\" <>: default ''"),
    "empty text": (str, ""),
    "bytes": (bytes, b"\x00\xff"),
    "decimal": (Decimal, Decimal("1.5")),
    "date": (date, date(2024, 2, 29)),
    "instant": (datetime, datetime(2024, 1, 5, 10, 0, 0, 1, tzinfo=UTC)),
    "exact instant": (Instant, Instant.of_epoch_milli(7)),
    "time of day": (time, time(10, 30)),
    "list": (list[int], [1, None]),
    "empty list": (list[str], []),
    "map": (dict[int, str], {7: "x"}),
    "record": (Place, Place("Rome", 1)),
    "records": (list[Place], [Place("Rome")]),
    "pair": (tuple[int, str], (1, "x")),
}
"""By name, the type of an added field and its default."""


@pytest.mark.parametrize("what", DEFAULTS)
def test_what_was_stored_before_a_field_was_added_has_its_default(what: str) -> None:
    annotation, default = DEFAULTS[what]
    given = (
        field(default_factory=lambda: default) if isinstance(default, list | dict) else field(default=default)
    )
    record = make_dataclass("Made", [("a", int), ("b", annotation, given)])
    old = pa.array([{"a": 1}, None])
    evolution = evolve("struct<a: bigint>", to_type(record, parameter="p"))
    (change,) = evolution.changes
    assert change.startswith("'b' is added, as ")
    kind = evolution.type
    assert kind.from_arrow(evolution.read(old)) == [record(1, default), None]
    filled = with_defaults(evolution.read(old), kind)
    assert filled.type == kind.storage
    assert filled.field("b").null_count == 0
    assert kind.from_arrow(filled) == [record(1, default), None]
    # what is written later is what it is, and a compaction or a wider table changes nothing
    written = kind.to_arrow([kind.normalise(record(2, default))], storage=True)
    both = conform(pa.concat_arrays([evolution.read(old), written]), grown(old.type, evolution.storage))
    assert kind.from_arrow(evolution.read(both)) == [record(1, default), None, record(2, default)]
    with pytest.raises(ValueTypeError, match="field 'b': None cannot be kept apart from what was stored"):
        kind.normalise(record(3, None))
    assert in_form(written, kind, stored=True).equals(written)
    with pytest.raises(ValueTypeError, match="field 'b': None cannot be kept apart from what was stored"):
        in_form(evolution.read(old), kind, stored=True)
    # the default is recorded: that of a later class is for what is made later
    later = make_dataclass("Later", [("b", annotation), ("a", int)])
    again = evolve(evolution.declared, to_type(later, parameter="p"))
    assert again.changes == ()
    assert again.type.from_arrow(again.read(old)) == [later(default, 1), None]
    assert evolve(evolution.declared, to_type(record, parameter="p")).declared == evolution.declared


def test_a_default_holds_at_any_depth_and_under_another_name() -> None:
    old = "struct<`many`: array<struct<`x`: int>>, `by_key`: map<string, struct<`x`: int>>>"
    inner = make_dataclass("Inner", [("x", int), ("n", int, 3)])
    record = make_dataclass("Made", [("many", list[inner]), ("by_key", dict[str, inner])])  # type: ignore[valid-type]
    evolution = evolve(old, to_type(record, parameter="p"))
    stored = pa.array(
        [{"many": [{"x": 1}, None], "by_key": [("k", {"x": 2})]}], to_type(old, parameter="p").storage
    )
    assert evolution.type.completes
    (read,) = evolution.type.from_arrow(evolution.read(stored))
    assert (read.many, read.by_key) == ([inner(1, 3), None], {"k": inner(2, 3)})
    renamed = make_dataclass("Renamed", [("x", int), ("m", int, field(default=9, metadata={"alias": "n"}))])
    wider = make_dataclass("Wider", [("many", list[renamed]), ("by_key", dict[str, renamed])])  # type: ignore[valid-type]
    again = evolve(evolution.declared, to_type(wider, parameter="p"))
    (read,) = again.type.from_arrow(again.read(stored))
    assert read.many == [renamed(1, 3), None]
    (filled,) = with_defaults(again.read(stored), again.type).to_pylist()
    assert filled == {"many": [{"x": 1, "n": 3}, None], "by_key": [("k", {"x": 2, "n": 3})]}


def test_a_field_without_default_or_with_none_is_none_and_one_of_another_type_is_refused() -> None:
    for kind in (to_type(Place, parameter="p"), to_type("city string, zip bigint", parameter="p")):
        evolution = evolve("struct<zip: bigint>", kind)
        assert evolution.type.from_arrow(evolution.read(pa.array([{"zip": 1}])))[0][0] is None
    evolution = evolve("struct<city: string>", to_type(Place, parameter="p"))
    assert evolution.type.from_arrow(evolution.read(pa.array([{"city": "Rome"}]))) == [Place("Rome", 0)]
    wrong = make_dataclass("Wrong", [("a", int), ("b", int, "x")])
    with pytest.raises(StateMigrationError, match="the default 'x' of the added field 'b' cannot be"):
        evolve("struct<a: bigint>", to_type(wrong, parameter="p"))


def test_elements_of_operator_state_have_the_default() -> None:
    record = make_dataclass("Made", [("a", int), ("b", int, 5)])
    evolution = evolve("struct<`a`: bigint>", to_type(record, parameter="p"))
    assert from_json(evolution.type, ['{"a": 1}', '{"a": 1, "b": 2}']) == [record(1, 5), record(1, 2)]


def test_two_fields_cannot_become_one() -> None:
    with pytest.raises(StateMigrationError, match=r"both 'minutes' and its alias 'delay' are stored"):
        evolve("struct<delay: bigint, minutes: bigint>", to_type(Visit, parameter="p"))


def test_an_alias_is_a_name_that_no_field_has() -> None:
    for wrong in (7, "b"):
        record = make_dataclass("Made", [("a", int, field(metadata={"alias": wrong})), ("b", int)])
        with pytest.raises(ConfigurationError, match="field 'a' has the alias"):
            to_type(record, parameter="p")


def test_a_dot_in_a_name_is_no_nesting() -> None:
    declared = to_type("a struct<x: bigint>, `a.b` bigint", parameter="p")
    earlier = ["struct<a: struct<x: bigint, b: bigint>>"]
    assert evolve("struct<a: struct<x: bigint>>", declared, earlier=earlier).changes == ("'a.b' is added",)


STATES: list[StateDescriptor] = [
    ValueStateDescriptor("s", time),
    ListStateDescriptor("s", "a smallint"),
    MapStateDescriptor("s", int, float),
    SortedMapStateDescriptor("s", tuple[int, str], "a date"),
]


@pytest.mark.parametrize("state", STATES, ids=lambda s: s.kind)
def test_the_column_of_a_state_is_stored_as_its_descriptor_says(state: StateDescriptor) -> None:
    assert column_type_of(state).storage == state.column_type
    assert evolve_state(recorded_schema(state), state, operator="o").changes == ()


def test_states_evolve_in_their_items() -> None:
    was, now = ListStateDescriptor("s", "a int"), ListStateDescriptor("s", "a bigint, b string")
    evolution = evolve_state(recorded_schema(was), now, operator="o")
    assert evolution.changes == (
        "'element.value.a' is widened from int to bigint",
        "'element.value.b' is added",
    )
    assert evolution.storage == now.column_type
    entries = evolve_state(
        recorded_schema(MapStateDescriptor("s", "int", "a int, b int")),
        MapStateDescriptor("s", "bigint", "a int"),
        operator="o",
    )
    assert entries.changes == ("'key' is widened from int to bigint", "'value.b' is dropped")


@pytest.mark.parametrize(
    ("was", "now", "message"),
    [
        (ValueStateDescriptor("s", int), ListStateDescriptor("s", int), "stored as value of bigint"),
        (
            MapStateDescriptor("s", int, int),
            SortedMapStateDescriptor("s", int, int),
            "declares sorted_map of",
        ),
        (
            MapStateDescriptor("s", int, int),
            MapStateDescriptor("s", str, int),
            "in 'key': bigint cannot become",
        ),
        (
            MapStateDescriptor("s", "a int", int),
            MapStateDescriptor("s", "a int, b int", int),
            "in 'key': the fields of a key cannot change",
        ),
    ],
)
def test_another_state_is_refused_and_named(was: StateDescriptor, now: StateDescriptor, message: str) -> None:
    with pytest.raises(StateMigrationError, match=f"operator 'o': state 's' .*{message}"):
        evolve_state(recorded_schema(was), now, operator="o")


def test_time_to_live_may_come_and_go() -> None:
    for make in (lambda: ValueStateDescriptor("s", int), lambda: ListStateDescriptor("s", int)):
        plain, expiring = make(), make()
        expiring.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
        assert recorded_schema(expiring).ttl
        for was, now in ((plain, expiring), (expiring, plain)):
            assert evolve_state(recorded_schema(was), now, operator="o").changes == ()


def test_a_field_of_a_state_comes_back_empty() -> None:
    before = StateSchema("s", "value", "struct<`a`: bigint, `b`: bigint>")
    parent = StateSchema("s", "value", "struct<`a`: bigint>")
    state = ValueStateDescriptor("s", "a bigint, b bigint")
    evolution = evolve_state(parent, state, operator="o", earlier=[before, parent])
    assert evolution.read(pa.array([{"a": 1, "b": 2}])).to_pylist() == [{"a": 1, "b__2": None}]
