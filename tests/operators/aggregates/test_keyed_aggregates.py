"""Declared aggregates on a stream that changes: any history is as the rows left alone, in results and in state."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from state_engine.core.errors import ConfigurationError, RetractionError, ValueTypeError
from state_engine.core.types.every_type import StructType
from state_engine.core.types.type_parsing import to_type
from state_engine.operators.aggregates.declarations import (
    Aggregate,
    avg,
    collect_set,
    count,
    count_distinct,
    max_,
    min_,
    stddev,
    sum_,
    variance,
)
from state_engine.operators.aggregates.keyed_aggregates import KeyedAggregates
from state_engine.operators.aggregates.plan import AggregatePlan, plan
from state_engine.testing import KeyedHarness
from tests.operators.feed import Feed, apply
from tests.operators.payments import (
    AFTER,
    ALL,
    BEFORE,
    DELETE,
    INSERT,
    PAYMENT,
    history,
    left_of,
    plain,
    recomputed,
)

COLUMNS = to_type(PAYMENT, parameter="columns")
assert isinstance(COLUMNS, StructType)


def planned(aggregates: dict[str, Aggregate] = ALL, *, changing: bool = True) -> AggregatePlan:
    assert isinstance(COLUMNS, StructType)
    return plan(aggregates, COLUMNS, retract=changing)


def feed(aggregates: dict[str, Aggregate] = ALL) -> Feed:
    return Feed(KeyedAggregates(planned(aggregates), emits_changes=True))


@pytest.mark.parametrize("seed", range(10))
def test_any_history_is_as_the_rows_left_alone(seed: int) -> None:
    sent = list(history(seed))
    changing, table = feed(), dict[Any, Any]()
    for place, row in enumerate(sent, 1):
        apply(table, changing.send(row[0], row[1][0], row[1]))
        left = left_of(sent[:place])
        assert plain(sorted(table.items())) == plain(sorted(recomputed(left).items()))
        fresh = feed()
        for kept in left:
            fresh.insert(kept[0], kept)
        assert plain(sorted(changing.state().items())) == plain(sorted(by_key(changing, fresh).items()))


def by_key(changing: Feed, fresh: Feed) -> dict[str, Any]:
    """The state of fresh rows, its keys in the order in which the other one has them."""
    order = changing.state()
    return {name: {k: kept[k] for k in order[name] if k in kept} for name, kept in fresh.state().items()}


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_zero_has_no_sign_where_rows_change(zero: float) -> None:
    ends = feed({"total": sum_("x"), "mean": avg("x"), "least": min_("x"), "most": max_("x")})
    ((_, row),) = ends.send(INSERT, "a", ("a", None, zero, None, None))
    assert repr(row) == "('a', 0.0, 0.0, 0.0, 0.0)"
    ends.send(INSERT, "a", ("a", None, -zero, None, None))
    assert repr(ends.state()["values_x"]) == "{'a': {0.0: 2}}"
    ends.send(DELETE, "a", ("a", None, -zero, None, None))
    ((kind, row),) = ends.send(DELETE, "a", ("a", None, zero, None, None))
    assert (kind, repr(row)) == (DELETE, "('a', 0.0, 0.0, 0.0, 0.0)")


def test_rows_that_are_only_inserted_come_out_without_kinds_and_keep_no_values() -> None:
    appending = Feed(KeyedAggregates(planned({"least": min_("n"), "rows": count()}, changing=False)))
    sent = [("a", 3, None, None, None), ("a", None, None, None, None), ("a", 1, None, None, None)]
    assert [appending.send(INSERT, "a", row) for row in sent] == [[("a", 3, 1)], [("a", 3, 2)], [("a", 1, 3)]]
    assert appending.state() == {"aggregates": {"a": (3, (1, 0))}}


def test_kinds_of_results_and_the_last_values_of_a_delete() -> None:
    changing = feed({"rows": count(), "n": sum_("n")})
    first, second = ("a", 3, None, None, None), ("a", 4, None, None, None)
    assert changing.send(INSERT, "a", first) == [(INSERT, ("a", 1, 3))]
    assert changing.send(AFTER, "a", second) == [(BEFORE, ("a", 1, 3)), (AFTER, ("a", 2, 7))]
    assert changing.send(BEFORE, "a", first) == [(BEFORE, ("a", 2, 7)), (AFTER, ("a", 1, 4))]
    assert changing.send(DELETE, "a", second) == [(DELETE, ("a", 1, 4))]
    assert changing.send(AFTER, "a", first) == [(INSERT, ("a", 1, 3))]


@pytest.mark.parametrize(
    ("aggregates", "wrong"),
    [
        ({"rows": count()}, ("b", 1)),
        ({"n": sum_("n")}, ("a", 2)),
        ({"n": count("n")}, ("a", None)),
        ({"least": min_("n")}, ("a", 2)),
        ({"least": min_("n"), "x": sum_("x")}, ("a", 1, 0.5)),
        *(
            ({"a": one}, ("a", 2))
            for one in (count_distinct("n"), collect_set("n"), variance("n"), stddev("n"))
        ),
    ],
)
def test_what_was_never_added_is_refused_and_changes_nothing(
    aggregates: dict[str, Aggregate], wrong: tuple[Any, ...]
) -> None:
    row, taken = (("a", 1, None, None, None), (*wrong, None, None, None)[:5])
    changing = feed(aggregates).insert("a", row)
    before = repr(changing.state())
    for kind in (BEFORE, DELETE):
        with pytest.raises(RetractionError, match="never added to this key"):
            changing.send(kind, taken[0], taken)
        assert repr(changing.state()) == before


def test_a_sum_that_does_not_fit_is_refused_and_changes_nothing() -> None:
    changing = feed({"least": min_("n"), "n": sum_("n")}).insert("a", ("a", 2**63 - 1, None, None, None))
    before = repr(changing.state())
    with pytest.raises(ValueTypeError, match="does not fit into int64: make the field wider"):
        changing.send(INSERT, "a", ("a", 5, None, None, None))
    assert repr(changing.state()) == before


def test_aggregates_of_one_field_share_what_they_keep() -> None:
    shared = planned({"a": sum_("n"), "b": sum_("n"), "least": min_("n"), "most": max_("n"), "rows": count()})
    assert [step.name for step in shared.steps] == ["sum_n", "values_n"]
    renamed = planned({"other": sum_("n"), "most": max_("n")})
    assert renamed.state.column_type == shared.state.column_type
    appending = planned({"least": min_("n"), "most": max_("n")}, changing=False)
    assert [step.name for step in appending.steps] == ["min_n", "max_n"]


def test_an_aggregate_that_is_added_is_null_for_the_keys_that_are_there() -> None:
    def harness(aggregates: dict[str, Aggregate], was: KeyedHarness | None = None) -> KeyedHarness:
        function = KeyedAggregates(planned(aggregates))
        if was is None:
            return KeyedHarness(function, key_by=lambda row: row[0])
        return KeyedHarness.restored(function, was.snapshot(), key_by=lambda row: row[0])

    row = ("a", 3, 0.5, None, None)
    first = harness({"rows": count()})
    assert first.process([row]) == [("a", 1)]
    more = harness({"rows": count(), "n": sum_("n"), "least": min_("n")}, first)
    assert more.process([row, ("b", *row[1:])]) == [("a", 2, None, None), ("b", 1, 3, 3)]
    fewer = harness({"rows": count(), "n": sum_("n")}, more)
    assert fewer.process([row, ("b", *row[1:])]) == [("a", 3, None), ("b", 2, 6)]
    again = harness({"least": min_("n")}, fewer)
    assert again.process([("b", 9, None, None, None), ("c", 9, None, None, None)]) == [("b", None), ("c", 9)]


def test_values_that_a_key_left_behind_while_nobody_declared_them_are_not_those_of_its_next_row() -> None:
    changing = Feed(KeyedAggregates(planned({"least": min_("n")})), values_n={"a": {1: 1}})
    assert changing.send(INSERT, "a", ("a", 7, None, None, None)) == [("a", 7)]
    assert changing.state()["values_n"] == {"a": {7: 1}}


@pytest.mark.parametrize(
    ("aggregate", "message"),
    [
        (sum_("amount"), r"aggregate total=sum_\('amount'\): the stream has no such field; it has \['user', 'n'"),
        (sum_("name"), r"total=sum_\('name'\): the field is of type string, and this is for numbers: make it one"),
        (avg(7), r"total=avg\(7\): the stream has no such field"),
        (min_("tags"), r"total=min_\('tags'\): values of type list<item: string> have no order"),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_columns_is_refused(aggregate: Aggregate, message: str) -> None:
    columns = to_type(PAYMENT + ", tags array<string>", parameter="columns")
    assert isinstance(columns, StructType)
    with pytest.raises(ConfigurationError, match=message):
        plan({"total": aggregate}, columns, retract=True)


def test_bare_values_are_field_0() -> None:
    numbers = StructType(["value"], [to_type(int, parameter="numbers")])
    function = KeyedAggregates(plan({"total": sum_(0)}, numbers, scalar=True, retract=False))
    assert KeyedHarness(function, key_by=lambda value: value % 2).process([1, 2, 3]) == [
        (1, 1),
        (0, 2),
        (1, 4),
    ]
    with pytest.raises(ConfigurationError, match="the stream has bare values, which are field 0"):
        plan({"total": sum_("value")}, numbers, scalar=True, retract=False)


def test_a_field_of_a_wider_type_keeps_its_state() -> None:
    def function(n: str, price: str) -> KeyedAggregates:
        columns = to_type(f"user string, n {n}, price {price}", parameter="columns")
        assert isinstance(columns, StructType)
        asked = {
            "n": sum_("n"),
            "mean": avg("n"),
            "least": min_("n"),
            "price": sum_("price"),
            "most": max_("price"),
        }
        return KeyedAggregates(plan(asked, columns, retract=True), emits_changes=True)

    narrow = KeyedHarness(function("int", "decimal(4,2)"), key_by=lambda row: row[0], changing=True)
    narrow.process([(INSERT, ("a", 5, Decimal("1.25"))), (INSERT, ("a", 7, Decimal("2.25")))])
    wide = function("bigint", "decimal(12,2)")
    harness = KeyedHarness.restored(wide, narrow.snapshot(), key_by=lambda row: row[0], changing=True)
    assert harness.process([(DELETE, ("a", 5, Decimal("1.25")))])[-1] == (
        AFTER, ("a", 7, 7.0, 7, Decimal("2.25"), Decimal("2.25")),
    )  # fmt: skip
