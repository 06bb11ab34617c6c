"""Values as the text of expressions, and stand-ins for a person's data."""

from __future__ import annotations

import datetime
import math
import zoneinfo
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from state_engine import Instant, Row, RowKind
from state_engine.core.operator.element_kinds import ElementChange
from state_engine.core.state.ttl import Stamped
from state_engine.errors import ConfigurationError
from state_engine.replay.python_literals import Literals
from state_engine.replay.stand_ins import StandIns


@dataclass(frozen=True)
class Person:
    name: str
    born: datetime.date | None = None


class Pair(NamedTuple):
    user: str
    n: int


class Opaque:
    def __init__(self, inside: object) -> None:
        self.inside = inside

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and other.inside == self.inside

    def __hash__(self) -> int:
        return 0


VALUES = [
    None,
    True,
    -7,
    1.5,
    -0.0,
    math.inf,
    "a'b\n\"漢",
    b"\x00x",
    Decimal("1.50"),
    UUID(int=7),
    datetime.date(2026, 3, 1),
    datetime.time(9, 30, 1, 5),
    datetime.timedelta(days=-1, microseconds=3),
    datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC),
    datetime.datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
    [1, [2]],
    (1,),
    (),
    {1: [2], "a": None},
    set[int](),
    {3, 1},
    frozenset({2}),
    frozenset[int](),
    Row(user="ann", n=1),
    Row("class", "two words")(1, Row(a=2)),
    Row.of_kind(RowKind.DELETE, n=1),
    RowKind.UPDATE_AFTER,
    ElementChange(RowKind.DELETE, 7),
    Stamped([1], 5),
    Stamped(1, None),
    Instant(1, 2),
    Person("ann", datetime.date(2000, 1, 2)),
    Pair("ann", 1),
    Opaque([1]),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_the_text_gives_the_value_again(value: Any) -> None:
    literals = Literals()
    text = literals.text(value)
    names: dict[str, Any] = {}
    exec("\n".join(sorted(literals.imports)), names)
    again = eval(text, names)
    assert again == value
    if not isinstance(value, ElementChange):  # a pair
        assert type(again) is type(value)
    assert repr(again) == repr(value) or isinstance(value, Opaque | ElementChange)


def test_nan_equals_nan_where_it_is_compared() -> None:
    literals = Literals()
    text = literals.text([Row(a=float("nan"))], compared=True)
    names: dict[str, Any] = {}
    exec("\n".join(sorted(literals.imports)), names)
    assert [Row(a=float("nan"))] == eval(text, names)


def test_what_no_text_gives_again_is_said() -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"a function cannot be written to a file of tests \(.*give its class a place",
    ):
        Literals().text(lambda: None)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["ann", "bob", "ann"], ["c-1", "c-2", "c-1"]),
        ([b"x", b"y"], [b"c-1", b"c-2"]),
        ([7, 4711, 4712, -8], [1, 1000, 1001, -2]),
        ([0, 9], [1, 2]),
        ([1.5, 2500.25], [1.0, 1000.0]),
        ([Decimal("12.50"), Decimal("-99.99")], [Decimal("10.00"), Decimal("-10.01")]),
        ([datetime.date(1970, 5, 5)], [datetime.date(2000, 1, 2)]),
        ([datetime.datetime(1970, 5, 5, tzinfo=datetime.UTC)], [datetime.datetime(2000, 1, 2, tzinfo=datetime.UTC)]),
        ([datetime.time(5)], [datetime.time(0, 0, 1)]),
        ([datetime.timedelta(5)], [datetime.timedelta(1)]),
        ([UUID(int=99)], [UUID(int=1)]),
        ([["ann", "bob"], {"ann": "cid"}], [["c-1", "c-2"], {"c-1": "c-3"}]),
        ([{7: 9}], [{1: 2}]),
        ([Person("ann"), None], [Person("c-1"), None]),
    ],
)  # fmt: skip
def test_stand_ins_have_the_type_of_the_value(values: list[Any], expected: list[Any]) -> None:
    stand_ins = StandIns(["c"])
    for value in values:
        stand_ins.learn(Row(c=value))
    stand_ins.check()
    shown = [stand_ins.replaced(Row(c=value)).c for value in values]
    assert shown == expected
    assert list(map(type, shown)) == list(map(type, expected))


def test_they_are_put_wherever_the_value_is() -> None:
    stand_ins = StandIns(["user", "id"])
    stand_ins.learn([Row(user="ann", id=7), Pair("li", 3), Row(user="anna", id=4711)])
    assert stand_ins.replaced({"ann": [("anna", "li")]}) == {"user-1": [("user-3", "user-2")]}
    assert stand_ins.replaced("to anna, ann and lily") == "to user-3, user-1 and lily"  # li is too short
    assert stand_ins.replaced([4711, 7]) == [1000, 7]  # 7 may be a count
    assert stand_ins.replaced(Stamped({"at": "ann"}, 4711)) == Stamped({"at": "user-1"}, 4711)
    assert stand_ins.replaced_json('{"key": "ann", "value": [4711]}') == '{"key": "user-1", "value": [1000]}'
    kept = stand_ins.replaced(Row.of_kind(RowKind.DELETE, user="ann", id=7))
    assert (kept, kept.get_row_kind()) == (Row(user="user-1", id=1), RowKind.DELETE)


def test_nothing_is_replaced_without_columns() -> None:
    value = Opaque(1)
    assert StandIns([]).replaced(value) is value


def test_what_nothing_can_stand_for_is_said() -> None:
    with pytest.raises(ConfigurationError, match="the column 'c' holds a bool, which cannot be replaced"):
        StandIns(["c"]).learn(Row(c=True))
    stand_ins = StandIns(["c"])
    stand_ins.learn(Row(c="ann"))
    with pytest.raises(
        ConfigurationError, match="a Opaque cannot be looked into, and may hold values that --replace names"
    ):
        stand_ins.replaced([Opaque("ann")])
    with pytest.raises(
        ConfigurationError,
        match=r"no input, key, state or output has a field 'd' to replace; fields are \['c'\]",
    ):
        StandIns.check(learned(StandIns(["d"]), Row(c={"secret": 1})))


def learned(stand_ins: StandIns, value: Any) -> StandIns:
    stand_ins.learn(value)
    return stand_ins
