"""What one row stages and publishes, and which files it lists."""

from __future__ import annotations

from state_engine.core.checkpoints.checkpoint import DataFile, StagedSink
from state_engine.core.checkpoints.row_outputs import (
    DEAD_LETTERS,
    dead_letters_sink,
    publications,
    sink_key,
    staged_sinks,
    withdrawing,
    without_sink,
)
from state_engine.core.checkpoints.table_names import OPERATOR_STATE, listed_in_tables
from tests.core.checkpoints.rows import checkpoint


def file(path: str) -> DataFile:
    return DataFile(path, bytes=1, rows=1, subtask=0)


def sink(name: str, *files: str, withdrawn: tuple[str, ...] = ()) -> StagedSink:
    return StagedSink(
        name, "delta", f"file:///{name}", "id", "{}", [*map(file, files)], [*map(file, withdrawn)]
    )


ROW = checkpoint(1, sinks=[sink("a", "a1"), sink("b")], dead_letters=[file("d1")])


def test_dead_letters_are_published_like_a_sink_and_empty_sinks_are_not() -> None:
    assert [s.name for s in staged_sinks(ROW)] == ["a", "b", DEAD_LETTERS]
    assert publications(ROW) == [sink("a", "a1"), dead_letters_sink([file("d1")])]
    assert publications(checkpoint(2, 1, sinks=[sink("a", withdrawn=("a1",))])) == [
        sink("a", withdrawn=("a1",))
    ]


def test_a_row_on_a_branch_stages_and_publishes_nothing() -> None:
    row = checkpoint(1, branch="replay", sinks=[sink("a", "a1")], dead_letters=[file("d1")])
    assert len(staged_sinks(row)) == 2
    assert publications(row) == []


def test_the_dead_letters_are_the_same_sink_wherever_the_root_was() -> None:
    there = StagedSink(DEAD_LETTERS, DEAD_LETTERS, "file:///root/job/dead_letters", "", "", [])
    assert sink_key(there) == sink_key(dead_letters_sink())
    assert sink_key(sink("a")) == ("a", "file:///a")


def test_a_row_without_a_sink_lists_the_rest() -> None:
    assert without_sink(ROW, "a") == checkpoint(1, sinks=[sink("b")], dead_letters=[file("d1")])
    assert without_sink(ROW, DEAD_LETTERS) == checkpoint(1, sinks=[sink("a", "a1"), sink("b")])


def test_what_leaves_sinks_besides_goes_into_the_same_row() -> None:
    assert withdrawing(ROW, []) is ROW
    changed = withdrawing(ROW, [sink("a", withdrawn=("a0",)), sink("c", withdrawn=("c0",))])
    assert changed.sinks == [sink("a", "a1", withdrawn=("a0",)), sink("b"), sink("c", withdrawn=("c0",))]
    assert changed.dead_letters == ROW.dead_letters


def test_dead_letters_come_and_go_in_one_commit() -> None:
    stale = StagedSink(DEAD_LETTERS, DEAD_LETTERS, "", "", "", [], [file("d0")])
    changed = withdrawing(ROW, [stale])
    assert changed.dead_letters == []
    assert changed.sinks[-1] == StagedSink(DEAD_LETTERS, DEAD_LETTERS, "", "", "", [file("d1")], [file("d0")])
    assert publications(changed) == [sink("a", "a1"), changed.sinks[-1]]


def test_the_files_of_a_row_are_listed_by_table() -> None:
    assert dict(listed_in_tables(ROW)) == {OPERATOR_STATE: []}
