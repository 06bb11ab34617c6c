"""The collector deletes exactly the files that nobody needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from state_engine.core.checkpoints.checkpoint import (
    CheckpointRow,
    DataFile,
)
from state_engine.core.checkpoints.needed_files import listed, unreachable
from state_engine.core.checkpoints.retention import RetentionPolicy
from state_engine.core.checkpoints.sink_kind import SinkKind
from state_engine.core.checkpoints.sink_moves import content, moves
from tests.core.checkpoints.histories import GROUPS, START, History, histories
from tests.core.checkpoints.rows import tree

CHANGELOG, BASE = "operators/counter/changelog", "operators/counter/base"


def read(rows: Mapping[int, CheckpointRow], checkpoint_id: int) -> dict[str, set[str]]:
    """The files that a reader of a checkpoint opens: the definition of the state, one key group at a time."""
    at = rows[checkpoint_id]
    on_path = tree(rows).path(checkpoint_id)
    files_of: dict[str, set[str]] = {CHANGELOG: set(), BASE: set(), "operator_state": set()}
    by_attempt = {row.write_id: row for row in on_path}
    for group in range(GROUPS) if at.operators else []:
        base = next((b for b in at.operators[0].bases if b.key_group_start <= group <= b.key_group_end), None)
        if base:
            files = by_attempt[base.base_id].operators[0].base_files
            files_of[BASE] |= {f.path for f in files if f.key_group_min == group}
        after = [row for row in on_path if base is None or row.checkpoint_id > base.checkpoint_id]
        changes = [f for row in after for o in row.operators for f in o.changelog]
        files_of[CHANGELOG] |= {f.path for f in changes if f.key_group_min == group}
    held = {write_id for ref in at.operator_state for write_id in ref.write_ids()}
    whole = [n for n, row in enumerate(on_path) if row.kind == "compaction" and row.operator_state_files]
    for n, row in enumerate(on_path):
        for file in row.operator_state_files:
            if row.write_id in held if ".counter." in file.path else n >= max(whole, default=0):
                files_of["operator_state"].add(file.path)
        for staged in row.sinks if row.kind == "checkpoint" else []:
            files_of.setdefault(staged.path, set()).update(f.path for f in staged.files)
        files_of.setdefault("dead_letters", set()).update(f.path for f in row.dead_letters)
    return files_of


def replayed(history: History) -> set[str]:
    """The source positions that a replay from the oldest restorable checkpoint goes through."""
    on_path = history.rows.path(history.head.checkpoint_id if history.head else None)
    restorable = {row.checkpoint_id for row in history.restorable()}
    first = min((row.checkpoint_id for row in on_path if row.checkpoint_id in restorable), default=0)
    after = [row for row in on_path if row.checkpoint_id > first]
    return {f.path for row in after for f in row.operator_state_files if ".counter." not in f.path}


def paths(files: dict[str, set[DataFile]]) -> dict[str, set[str]]:
    return {table: {f.path for f in of_table} for table, of_table in files.items()}


@settings(max_examples=300)
@given(histories())
def test_no_file_that_a_checkpoint_needs_is_collected(history: History) -> None:
    gone = paths(unreachable(history.rows))
    for row in history.restorable():
        for table, needed in read(history.rows, row.checkpoint_id).items():
            assert not needed & gone.get(table, set()), (row.checkpoint_id, table)
    assert not replayed(history) & gone.get("operator_state", set())


@settings(max_examples=200)
@given(histories())
def test_what_no_checkpoint_needs_and_no_sink_shows_is_collected(history: History) -> None:
    needed: dict[str, set[str]] = {"operator_state": replayed(history)}
    for row in history.restorable():
        for table, files in read(history.rows, row.checkpoint_id).items():
            needed.setdefault(table, set()).update(files)
    if history.head:  # sinks show the path to the head
        for table, files in read(history.rows, history.head.checkpoint_id).items():
            needed.setdefault(table, set()).update(files)
    every = paths(listed(history.rows.values()))
    left = {table: files - needed.get(table, set()) for table, files in every.items()}
    gone = unreachable(history.rows)
    assert paths(gone) == {table: files for table, files in left.items() if files}
    assert unreachable(history.rows, as_of=START + timedelta(minutes=len(history.rows))) == gone


@settings(max_examples=200)
@given(histories(), st.integers(0, 20))
def test_what_was_needed_since_a_time_is_not_collected(history: History, minute: int) -> None:
    as_of = START + timedelta(minutes=minute)
    late = paths(unreachable(history.rows, as_of=as_of))
    for now in range(minute, len(history.rows) + 1):  # as of every row committed since
        rows = {i: row for i, row in history.rows.items() if i <= now}
        gone = tree(rows).expired
        for i in set(rows) - gone:
            for table, needed in read(rows, i).items():
                assert not needed & late.get(table, set()), (now, i, table)


def test_outputs_that_a_restore_kept_stay_though_their_checkpoint_is_expired() -> None:
    history = History()
    for group in range(2):
        history.batch((group,))
    history.move("restore", history.rows[1], keep=True)
    history.retain(RetentionPolicy(keep_last=1))
    assert "/out" not in paths(unreachable(history.rows))


def test_outputs_of_a_replay_that_was_given_up_go() -> None:
    history = History()
    history.batch((0,))
    history.batch((1, 2), "replay", history.rows[1])
    history.append(history.rows[1], "retention", retired=[2])
    gone = paths(unreachable(history.rows))
    assert gone["/out"] == {"out-w2-1", "out-w2-2"}
    assert gone["dead_letters"] == {"write_id=w2/d"}
    assert unreachable(history.rows, unpublished=[2]) == {}


def test_no_rows_need_no_files() -> None:
    assert unreachable(tree({})) == {}


# -- sinks that hold a copy --------------------------------------------------------------------------------------------


def copied(history: History, kind: str = "sql") -> History:
    """The same with sinks that hold a copy of what was staged for them."""
    rows = {
        i: replace(row, sinks=[replace(sink, kind=kind) for sink in row.sinks])
        for i, row in history.rows.items()
    }
    return History(tree(rows))


def outputs_gone(history: History, unpublished: tuple[int, ...] = ()) -> set[str]:
    return paths(unreachable(history.rows, unpublished=unpublished)).get("/out", set())


def four_batches(retained: int = 1) -> History:
    history = History()
    for _ in range(4):
        history.batch((0,))
    history.retain(RetentionPolicy(keep_last=retained))
    return history


def test_staged_files_that_were_taken_over_go_with_their_checkpoints() -> None:
    for kind in (one for one in SinkKind if one.holds_copy):
        assert outputs_gone(copied(four_batches(), kind)) == {f"out-w{i}-0" for i in (1, 2, 3, 4)}
        assert outputs_gone(copied(four_batches(3), kind)) == {"out-w1-0", "out-w2-0"}
    assert outputs_gone(four_batches()) == set(), "what a sink shows itself"


def test_staged_files_stay_where_a_move_may_put_them_back_or_a_sink_has_not_seen_them() -> None:
    assert outputs_gone(copied(four_batches()), unpublished=(4,)) == {f"out-w{i}-0" for i in (1, 2, 3)}
    everything = History()
    for _ in range(4):
        everything.batch((0,))
    assert outputs_gone(copied(everything)) == set(), "a replay may begin at the very beginning"
    pinned = History()
    pinned.batch((0,))
    pinned.batch((0,))
    pinned.pin("safe", pinned.rows[2])
    pinned.batch((0,))
    pinned.retain(RetentionPolicy(keep_last=1))
    assert outputs_gone(copied(pinned)) == {"out-w1-0", "out-w2-0"}
    left = History()
    for _ in range(3):
        left.batch((0,))
    left.retain(RetentionPolicy(keep_last=2))
    left.move("restore", left.rows[2])
    assert outputs_gone(copied(left)) == {"out-w1-0", "out-w2-0"}, "a restore may undo the restore"


@settings(max_examples=50)
@given(histories())
def test_no_staged_file_goes_that_a_move_of_the_head_or_a_comparison_needs(history: History) -> None:
    history = copied(history)
    gone = unreachable(history.rows)
    for first in history.restorable():
        moved = History(history.rows)
        moved.move("restore", first)
        assert moved.head is not None
        for second in history.restorable():
            for head, rows in ((history.head, history.rows), (moved.head, moved.rows)):
                assert head is not None
                for sink in moves(rows, head.checkpoint_id, second.checkpoint_id):
                    assert not set(sink.files) & gone.get(sink.path, set())
    tops = history.rows.open_branches.values()
    for one in tops:
        for other in tops:
            ancestor = history.rows.common_ancestor(one.checkpoint_id, other.checkpoint_id)
            since = history.rows.path(one.checkpoint_id)
            since = since[since.index(ancestor) + 1 :] if ancestor else since
            for (_, path), files in content(since).items():
                assert not set(files) & gone.get(path, set())
