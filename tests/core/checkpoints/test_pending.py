"""Which sinks of a path are checked, and which checkpoints they may not show yet."""

from __future__ import annotations

from state_engine.core.checkpoints.checkpoint import CheckpointRow, DataFile, StagedSink
from state_engine.core.checkpoints.pending import (
    Seen,
    in_order,
    last_of_sinks,
    newest_in_foreground,
    path_changes,
)
from state_engine.core.checkpoints.row_outputs import DEAD_LETTERS
from tests.core.checkpoints.rows import checkpoint


def sink(name: str, *, files: int = 1, withdrawn: int = 0) -> StagedSink:
    some = [DataFile(f"f{i}", 1, 1, 0) for i in range(files + withdrawn)]
    return StagedSink(name, "delta", f"file:///{name}", "id", "{}", some[:files], some[files:])


def has_seen(checkpoint_id: int) -> Seen:
    return lambda staged: checkpoint_id


PATH: list[CheckpointRow] = [
    checkpoint(1, sinks=[sink("a"), sink("b")]),
    checkpoint(2, 1, sinks=[sink("a"), sink("b", files=0)], dead_letters=[DataFile("f", 1, 1, 0)]),
    checkpoint(3, 2, kind="compaction"),
    checkpoint(4, 3, kind="restore", sinks=[sink("a", files=0, withdrawn=1)]),
    checkpoint(5, 4, kind="retention"),
]
A, B, LETTERS = ("a", "file:///a"), ("b", "file:///b"), (DEAD_LETTERS, "")


def test_at_most_the_last_row_in_the_foreground_waits() -> None:
    assert [newest_in_foreground(PATH[:n]) for n in range(6)] == [0, 1, 2, 2, 4, 4]


def test_without_code_only_what_the_newest_row_changes_is_looked_at() -> None:
    changes_of_path = path_changes(PATH)
    assert {key: [c.checkpoint_id for c in changes] for key, changes in changes_of_path.by_sink.items()} == {
        A: [1, 2, 4], B: [1], LETTERS: [2],
    }  # fmt: skip
    assert changes_of_path.looked_at() == [A]
    assert changes_of_path.looked_at(since=2) == [A, LETTERS]
    assert changes_of_path.left_alone() == []


def test_of_known_code_all_sinks_are_looked_at_and_others_are_left_alone() -> None:
    changes_of_path = path_changes(PATH, declared={B, LETTERS, ("new", "file:///new")})
    assert changes_of_path.looked_at() == [B, LETTERS]
    assert [(c.staged.name, c.checkpoint_id) for c in changes_of_path.left_alone()] == [("a", 4)]


def test_what_a_sink_does_not_show_is_waiting_or_was_there_before() -> None:
    changes_of_path = path_changes(PATH)
    for seen, unseen, behind in ((4, [], []), (3, [4], []), (1, [2, 4], [2]), (0, [1, 2, 4], [1, 2])):
        [shown] = changes_of_path.shown(has_seen(seen))
        assert (shown.key, shown.seen) == (A, seen)
        assert [c.checkpoint_id for c in shown.changes] == [1, 2, 4]
        assert [c.checkpoint_id for c in shown.unseen] == unseen
        assert [c.checkpoint_id for c in shown.behind] == behind


def test_what_waits_is_in_the_order_of_checkpoints_over_all_sinks() -> None:
    shown = path_changes(PATH).shown(has_seen(0), since=1)
    assert [(c.checkpoint_id, c.staged.name) for c in in_order(shown)] == [
        (1, "a"), (1, "b"), (2, "a"), (2, DEAD_LETTERS), (4, "a"),
    ]  # fmt: skip


def test_the_last_rows_of_sinks_tell_who_is_left_alone() -> None:
    on_branch = [checkpoint(6, 5, branch="replay", sinks=[sink("a"), sink("b")]), checkpoint(7, 6, sinks=[])]
    for path in (PATH[:1], PATH[:2], PATH, [*PATH, *on_branch], PATH[:2], [*PATH[:2], *on_branch]):
        for declared in ({A}, {B}, {A, B, LETTERS}, set[tuple[str, str]]()):
            whole = path_changes(path, declared=declared).left_alone()
            of_last = path_changes(last_of_sinks(path), declared=declared).left_alone()
            assert {(c.checkpoint_id, c.staged.name) for c in of_last} == {
                (c.checkpoint_id, c.staged.name) for c in whole
            }
    assert [row.checkpoint_id for row in last_of_sinks([*PATH, *on_branch])] == [1, 2, 4, 6]
