"""``LastRow`` holds what a table with a primary key would hold, whatever the cut and, by a sequence, the order."""

from __future__ import annotations

import copy
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_engine.core.errors import ConfigurationError, InvalidKeyError, ValueTypeError
from state_engine.core.state.ttl import StateTtlConfig
from state_engine.core.types.row import Row, RowKind
from state_engine.operators.last_rows import DELETED, ROW, LastRow
from state_engine.testing import KeyedHarness
from tests.operators.histories import (
    DELETE,
    INSERT,
    UPDATE_AFTER,
    UPDATE_BEFORE,
    after,
    batches,
    cuts,
    in_turns,
    keyed_by_id,
    of_kind,
    shown,
    stored,
)

NAN = float("nan")
COLUMNS = "id bigint, price double, tags array<string>"
SEQUENCED = "id bigint, price double, at bigint, part bigint"

# -- feeds of changes --------------------------------------------------------------------------------------------------

_values = st.tuples(
    st.sampled_from([0.0, 1.5, NAN, None]), st.sampled_from([None, [], ["new"], ["old", None]])
)
_changes = st.tuples(
    st.sampled_from(["put", "delete", "move"]), st.integers(1, 4), st.integers(1, 4), _values
)
_commits = st.lists(st.lists(_changes, min_size=1, max_size=4), min_size=1, max_size=6)


def commit(table: dict[int, Any], changes: list[Any]) -> list[Row]:
    """Changes a table, each row at most once, and gives the rows that a change feed has of it, in its order."""
    removed: list[Row] = []
    added: list[Row] = []
    touched: set[int] = set()

    def row(kind: RowKind, id_: int) -> Row:
        return of_kind(kind, id=id_, price=table[id_][0], tags=table[id_][1])

    for change, one, other, values in changes:
        ids = {one, other} if change == "move" else {one}
        if touched & ids or (change != "put" and one not in table):
            continue
        touched |= ids
        if change == "delete":
            removed.append(row(DELETE, one))
            del table[one]
            continue
        was_there = [id_ for id_ in sorted(ids) if id_ in table]
        removed += [row(UPDATE_BEFORE, id_) for id_ in was_there]
        if change == "put":
            table[one] = values
        else:  # two rows change places, or one takes another key
            swapped = {other: table.pop(one), **({one: table.pop(other)} if other in table else {})}
            table.update(swapped)
        kind = UPDATE_AFTER if was_there else INSERT
        added += [row(kind, id_) for id_ in sorted(ids) if id_ in table]
    return removed + added


@settings(max_examples=200)
@given(_commits, cuts)
def test_after_every_commit_of_a_feed_the_state_is_the_table(commits: list[Any], sizes: list[int]) -> None:
    table: dict[int, Any] = {}
    harness = keyed_by_id(LastRow(COLUMNS, key=["id"]))
    for changes in commits:
        for batch in batches(
            commit(table, changes), sizes
        ):  # also between an update_before and its update_after
            harness.process(batch)
        expected = {id_: Row(price=price, tags=tags) for id_, (price, tags) in table.items()}
        assert stored(harness, ROW) == {id_: shown(row) for id_, row in expected.items()}


def test_between_update_before_and_update_after_the_row_is_absent() -> None:
    harness = keyed_by_id(LastRow("id bigint, name string", key=["id"]))
    harness.process([Row(id=1, name="ada")])
    harness.process([of_kind(UPDATE_BEFORE, id=1, name="ada")])
    assert harness.state(ROW) == {}
    harness.process([of_kind(UPDATE_AFTER, id=1, name="eva")])
    assert harness.state(ROW) == {1: Row(name="eva")}


def test_an_update_before_of_a_row_that_is_no_longer_there_is_ignored() -> None:
    harness = keyed_by_id(LastRow("id bigint, name string", key=["id"]))
    harness.process([Row(id=2, name="eva"), of_kind(UPDATE_BEFORE, id=2, name="ada")])
    assert harness.state(ROW) == {2: Row(name="eva")}


def test_a_delete_needs_no_more_than_the_key() -> None:
    harness = keyed_by_id(LastRow("id bigint, name string", key=["id"]))
    harness.process([Row(id=2, name="eva"), of_kind(DELETE, id=2, name=None)])
    assert harness.state(ROW) == {}


# -- by a sequence -----------------------------------------------------------------------------------------------------

_kinds = st.sampled_from([INSERT, INSERT, UPDATE_AFTER, UPDATE_BEFORE, DELETE])
_sequenced = st.builds(
    of_kind,
    _kinds,
    id=st.integers(1, 3),
    price=st.sampled_from([0.0, 1.5, NAN, None]),
    at=st.integers(-2, 3),
    part=st.integers(0, 1),
)


def last_of(rows: list[Row]) -> dict[int, Row]:
    """Of each key the row with the greatest sequence, of several the last one, if it is one that is there."""
    last: dict[int, Row] = {}
    for row in sorted(rows, key=lambda row: (row.at, row.part)):
        last[row.id] = row
    return {
        id_: Row(price=row.price, at=row.at, part=row.part)
        for id_, row in last.items()
        if row.get_row_kind() in (INSERT, UPDATE_AFTER)
    }


@settings(max_examples=200)
@given(st.lists(_sequenced, max_size=16), cuts)
def test_the_row_with_the_greatest_sequence_is_kept(rows: list[Row], sizes: list[int]) -> None:
    harness = after(LastRow(SEQUENCED, key=["id"], sequence=["at", "part"]), rows, sizes)
    expected = {id_: shown(row) for id_, row in last_of(rows).items()}
    assert stored(harness, ROW) == expected
    assert set(stored(harness, DELETED)) == {row.id for row in rows} - set(expected)


@settings(max_examples=200)
@given(_commits, cuts, st.randoms(use_true_random=False))
def test_a_feed_with_a_sequence_ends_at_its_table_in_any_order(
    commits: list[Any], sizes: list[int], random: Any
) -> None:
    table: dict[int, Any] = {}
    # rows of one commit have its number: those that are gone come first, as in the feed
    parts = [
        [of_kind(row.get_row_kind(), **row.as_dict(), at=number) for row in commit(table, changes)]
        for number, changes in enumerate(commits)
    ]
    random.shuffle(parts)
    last = LastRow(f"{COLUMNS}, at bigint", key=["id"], sequence="at")
    shown_rows = {id_: row[:2] for id_, row in stored(after(last, in_turns(parts), sizes), ROW).items()}
    expected = {id_: Row(price=price, tags=tags) for id_, (price, tags) in table.items()}
    assert shown_rows == {id_: shown(row) for id_, row in expected.items()}


@pytest.mark.parametrize("kind", [INSERT, DELETE, UPDATE_BEFORE])
def test_a_row_without_a_place_in_the_sequence_is_refused(kind: RowKind) -> None:
    harness = keyed_by_id(LastRow("id bigint, name string, at double", key=["id"], sequence="at"))
    harness.process([Row(id=1, name="ada", at=1.0)])
    with pytest.raises(ValueTypeError, match="the sequence column 'at' is null"):
        harness.process([of_kind(kind, id=1, name="eva", at=None)])
    with pytest.raises(InvalidKeyError, match="NaN"):
        harness.process([of_kind(kind, id=1, name="eva", at=NAN)])
    assert harness.state(ROW) == {1: Row(name="ada", at=1.0)}


def test_a_refused_row_becomes_a_dead_letter() -> None:
    last = LastRow("id bigint, at bigint", key=["id"], sequence="at")
    harness = keyed_by_id(last, on_error="dead_letter")
    harness.process([Row(id=1, at=1), Row(id=1, at=None), Row(id=1, at=2)])
    assert [refusal.index for refusal in harness.refused] == [1]
    assert harness.state(ROW) == {1: Row(at=2)}


# -- time to live ------------------------------------------------------------------------------------------------------

_SECOND = StateTtlConfig.new_builder(timedelta(seconds=1)).build()


def test_rows_expire_and_then_have_no_sequence() -> None:
    harness = keyed_by_id(LastRow("id bigint, at bigint", key=["id"], sequence="at", ttl=_SECOND))
    harness.process([Row(id=1, at=5)])
    harness.set_clock(999)
    harness.process([Row(id=1, at=3)])
    assert harness.state(ROW) == {1: Row(at=5)}
    harness.set_clock(1000)
    harness.process([Row(id=1, at=3)])
    assert harness.state(ROW) == {1: Row(at=3)}


def test_the_sequence_of_a_deletion_expires_by_its_own_time() -> None:
    last = LastRow("id bigint, at bigint", key=["id"], sequence="at", deleted_ttl=_SECOND)
    harness = keyed_by_id(last)
    harness.process([of_kind(DELETE, id=1, at=5), Row(id=2, at=5)])
    harness.set_clock(999)
    harness.process([Row(id=1, at=3)])
    assert harness.state(ROW) == {2: Row(at=5)}
    harness.set_clock(1000)
    harness.process([Row(id=1, at=3), Row(id=2, at=3)])
    assert harness.state(ROW) == {1: Row(at=3), 2: Row(at=5)}


# -- what elements are -------------------------------------------------------------------------------------------------


class City(NamedTuple):
    id: int
    name: str


@pytest.mark.parametrize(
    ("row_type", "element"),
    [
        ("id bigint, name string", Row(name="Turin", id=1)),
        ("id bigint, name string", {"name": "Turin", "id": 1}),
        (City, City(1, "Turin")),
    ],
)
def test_elements_are_records_of_any_class(row_type: Any, element: Any) -> None:
    harness = KeyedHarness(LastRow(row_type, key=["id"]), key_by=lambda _: 1)
    harness.process([element])
    assert harness.state(ROW) == {1: Row(name="Turin")}


def test_without_names_of_the_key_whole_rows_are_kept() -> None:
    harness = keyed_by_id(LastRow("id bigint, name string"))
    harness.process([Row(id=1, name="Turin")])
    assert harness.state(ROW) == {1: Row(id=1, name="Turin")}


def test_a_row_of_another_type_is_refused() -> None:
    with pytest.raises(ValueTypeError, match="field 'name'"):
        keyed_by_id(LastRow("id bigint, name string")).process([Row(id=1, name=7)])


def test_the_element_keeps_its_kind() -> None:
    element = of_kind(DELETE, id=1, name="Turin")
    keyed_by_id(LastRow("id bigint, name string")).process([element])
    assert element.get_row_kind() is DELETE


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"row_type": int}, "LastRow needs rows with named columns, not elements of type int64"),
        ({"key": ["name"]}, r"LastRow: there is no column \['name'\]; a row has \['id', 'at', 'tags'\]"),
        ({"sequence": "when"}, r"there is no column \['when'\]"),
        ({"sequence": "tags"}, "the sequence column 'tags' has the type .* no order: choose another one"),
        ({"sequence": ["at", "id"]}, r"the sequence \['id'\] is part of the key: it orders nothing"),
        ({"key": ["id", "at", "tags"]}, "a row has no column besides"),
        ({"deleted_ttl": _SECOND}, "deleted_ttl needs a sequence"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_built(arguments: dict[str, Any], message: str) -> None:
    wanted = {"row_type": "id bigint, at bigint, tags array<string>", "key": ["id"], **arguments}
    with pytest.raises(ConfigurationError, match=message):
        LastRow(wanted.pop("row_type"), **wanted)


def test_it_takes_changes_and_has_one_state_without_a_sequence() -> None:
    last = LastRow("id bigint, name string", key=["id"])
    assert last.accepts_changes
    harness = keyed_by_id(copy.deepcopy(last))
    harness.process([Row(id=1, name="ada")])
    assert set(harness.snapshot().keyed.entries) == {ROW}
