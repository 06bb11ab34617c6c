"""How many entries states have, from rows alone."""

from __future__ import annotations

from dataclasses import replace

from state_engine.core.checkpoints.checkpoint import BaseFile, BaseRange, CheckpointRow, OperatorCheckpoint
from state_engine.core.checkpoints.entry_counts import EntryCount, entries_after, entry_counts
from state_engine.core.state.state_schema import StateSchema
from tests.core.checkpoints.rows import changes, checkpoint

SUM, SEEN = StateSchema("sum", "value", "bigint"), StateSchema("seen", "value", "boolean", ttl="{}")
OLD = StateSchema("new", "value", "bigint", stored_as="old")


def operator(*states: StateSchema, **fields: object) -> OperatorCheckpoint:
    made = OperatorCheckpoint("counter", 2, 128, "struct<`k`: bigint>", list(states), [], [], 0)
    return replace(made, **fields)  # type: ignore[arg-type]


def path(*operators: OperatorCheckpoint | None) -> list[CheckpointRow]:
    return [
        checkpoint(n, n - 1 or None, operators=[one] if one else [])
        for n, one in enumerate(operators, start=1)
    ]


def based(*states: StateSchema, at: int, **entries: int) -> OperatorCheckpoint:
    """With a base of all key groups that the row itself wrote."""
    files = [
        BaseFile("b", 1, 1, 0, 5, 5, 0, 0, entries=entries),
        BaseFile("c", 1, 1, 0, 9, 9, 0, 0, entries=entries),
    ]
    return operator(*states, bases=[BaseRange(0, 127, f"w{at + 1}", at)], base_files=files)


def test_a_new_operator_begins_with_nothing() -> None:
    assert entries_after([], "counter", [SUM], {"sum": 3}) == {"sum": 3}
    assert entries_after(path(None), "counter", [SUM], {"sum": 3}) == {"sum": 3}


def test_what_comes_and_goes_is_added_up() -> None:
    before = path(operator(SUM, entries={"sum": 3}))
    assert entries_after(before, "counter", [SUM], {"sum": -2}) == {"sum": 1}


def test_a_state_that_the_code_does_not_ask_for_keeps_its_number_and_a_new_one_begins() -> None:
    before = path(operator(SUM, entries={"sum": 3}))
    assert entries_after(before, "counter", [SUM, OLD], {"old": 2}) == {"sum": 3, "old": 2}


def test_a_state_is_counted_by_the_name_of_its_column() -> None:
    rows = path(operator(OLD, entries={"old": 4}))
    assert entries_after(rows, "counter", [OLD], {"old": 1}) == {"old": 5}
    assert entry_counts(rows, "counter") == {"new": EntryCount(4, 1)}


def test_what_is_written_without_reading_is_not_counted_any_more() -> None:
    before = path(operator(SUM, entries={"sum": 3}))
    assert entries_after(before, "counter", [SUM], {"sum": None}) == {}
    assert entries_after(path(operator(SUM)), "counter", [SUM], {"sum": 1}) == {}


def test_a_compaction_says_how_many_there_were_and_are_if_nothing_changed_since() -> None:
    rows = path(operator(SUM, SEEN), based(SUM, SEEN, at=1, sum=2, seen=1))
    assert entry_counts(rows, "counter") == {"sum": EntryCount(4, 2), "seen": EntryCount(2, 1)}
    assert entries_after(rows, "counter", [SUM, SEEN], {"sum": 1, "seen": None}) == {"sum": 5}


def test_with_changes_upon_it_the_number_is_that_of_the_compaction() -> None:
    later = replace(based(SUM, SEEN, at=1), base_files=[], changelog=[changes(0, (5, 5))], changed_entries=1)
    rows = path(operator(SUM, SEEN), based(SUM, SEEN, at=1, sum=2, seen=1), later)
    assert entry_counts(rows, "counter") == {"sum": EntryCount(4, 1), "seen": EntryCount(2, 1)}
    assert entries_after(rows, "counter", [SUM], {"sum": 1}) == {}


def test_nothing_is_known_of_bases_that_nobody_counted_and_of_parts() -> None:
    without = based(SUM, at=1)
    uncounted = [replace(file, entries=None) for file in without.base_files]
    assert entry_counts(path(operator(SUM), replace(without, base_files=uncounted)), "counter") == {}
    part = replace(based(SUM, at=1, sum=1), bases=[BaseRange(0, 63, "w2", 1)])
    assert entry_counts(path(operator(SUM), part), "counter") == {}
    assert entry_counts([], "counter") == {}
