"""Sinks show the outputs of the path to the head, whatever operations moved it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from state_engine.core.checkpoints.checkpoint import CheckpointRow, DataFile, StagedSink
from state_engine.core.checkpoints.history import History as Tree
from state_engine.core.checkpoints.row_outputs import publications
from state_engine.core.checkpoints.sink_moves import kept_outputs, moves, published
from state_engine.core.errors import SinkIdentityError
from tests.core.checkpoints.histories import History, histories
from tests.core.checkpoints.rows import tree

Sink = dict[tuple[str, str], set[str]]


def simulated(rows: Tree) -> Sink:
    """Sinks that applied each row, and refuse a change that is not possible."""
    sinks: Sink = {}
    for _, row in sorted(rows.items()):
        for staged in publications(row):
            shown = sinks.setdefault((staged.name, staged.path), set())
            out, new = {f.path for f in staged.withdrawn}, {f.path for f in staged.files}
            assert out <= shown, "withdraws what is not there"
            assert not new & (shown - out), "adds what is there"
            sinks[staged.name, staged.path] = (shown - out) | new
    return {key: files for key, files in sinks.items() if files}


def wanted(rows: Tree, head: CheckpointRow | None) -> Sink:
    """The files that micro-batches on the path staged, computed without the functions under test."""
    sinks: Sink = {}
    at = head
    while at is not None:
        if at.kind == "checkpoint":
            for staged in at.sinks:
                sinks.setdefault((staged.name, staged.path), set()).update(f.path for f in staged.files)
            sinks.setdefault(("dead_letters", ""), set()).update(f.path for f in at.dead_letters)
        at = rows[at.parent_id] if at.parent_id is not None else None
    return {key: files for key, files in sinks.items() if files}


@settings(max_examples=300)
@given(histories())
def test_sinks_show_the_path_to_the_head_and_nothing_else(history: History) -> None:
    assert simulated(history.rows) == wanted(history.rows, history.head)
    assert kept_outputs(history.rows, history.head.checkpoint_id if history.head else None) == {}


def three_batches() -> History:
    history = History()
    for group in range(3):
        history.batch((group,))
    return history


def names(staged: list[DataFile]) -> list[str]:
    return [f.path for f in staged]


def moved(sinks: list[StagedSink]) -> dict[str, tuple[list[str], list[str]]]:
    return {s.name: (names(s.withdrawn), names(s.files)) for s in sinks}


def test_a_restore_withdraws_what_is_not_on_the_new_path_and_the_way_back_puts_it_back() -> None:
    history = three_batches()
    assert moved(moves(history.rows, 3, 1)) == {
        "out": (["out-w2-1", "out-w3-2"], []), "side": (["side-w2-1", "side-w3-2"], [])
    }  # fmt: skip
    history.move("restore", history.rows[1])
    history.batch((3,))
    assert moved(moves(history.rows, 5, 2))["out"] == (["out-w5-3"], ["out-w2-1"])
    assert moved(moves(history.rows, 5, None))["out"] == (["out-w1-0", "out-w5-3"], [])
    assert moves(history.rows, 5, 5) == []


def test_a_row_records_what_locates_a_sink() -> None:
    (out, _) = moves(three_batches().rows, 3, 2)
    assert (out.kind, out.path, out.identity, out.schema) == ("delta", "/out", "id", "{}")


def test_kept_outputs_stay_and_are_not_added_twice() -> None:
    history = three_batches()
    history.move("restore", history.rows[1], keep=True)
    assert all(not s.withdrawn for s in history.rows[4].sinks)
    history.batch((3,))
    assert simulated(history.rows)["out", "/out"] == {"out-w1-0", "out-w2-1", "out-w3-2", "out-w5-3"}
    assert moved(moves(history.rows, 5, 1))["out"] == (["out-w5-3"], [])  # and not what was kept
    history.move("restore", history.rows[3])
    assert simulated(history.rows) == wanted(history.rows, history.rows[3])
    assert moved(moves(history.rows, 6, 1))["out"] == (["out-w2-1", "out-w3-2"], [])  # on the path again


def test_outputs_of_some_checkpoints_can_be_kept_and_be_withdrawn_when_they_are_replaced() -> None:
    history = three_batches()
    assert [r.checkpoint_id for r in history.rows.leaving(3, 1)] == [2, 3]
    history.append(history.rows[1], "restore", replaced_id=3, sinks=moves(history.rows, 3, 1, kept=[3]))
    assert simulated(history.rows)["out", "/out"] == {"out-w1-0", "out-w3-2"}
    stale = kept_outputs(history.rows, 4)
    assert {i: moved(sinks)["out"] for i, sinks in stale.items()} == {3: (["out-w3-2"], [])}
    new = replace(stale[3][0], files=[DataFile("new", 1, 1, 0)])
    history.append(history.rows[4], "checkpoint", sinks=[new])
    assert simulated(history.rows)["out", "/out"] == {"out-w1-0", "new"}
    assert list(kept_outputs(history.rows, 5)) == [3]  # of the other sink


def test_outputs_that_were_put_back_are_still_those_of_the_checkpoint_that_staged_them() -> None:
    history = three_batches()
    history.move("restore", history.rows[1])
    history.move("restore", history.rows[3])
    assert moves(history.rows, 5, 1, kept=[2, 3]) == []


def recreated() -> History:
    """Three batches; the table was created again before the last one."""
    history = three_batches()
    last = history.rows[3]
    history.put(replace(last, sinks=[replace(s, identity="other") for s in last.sinks]))
    return history


def test_what_went_with_a_table_that_was_re_created_is_not_withdrawn() -> None:
    (out, _) = moves(recreated().rows, 3, 1)
    assert (out.identity, names(out.withdrawn)) == ("other", ["out-w3-2"])


def test_outputs_are_never_put_into_another_table_than_theirs() -> None:
    history = three_batches()
    history.move("restore", history.rows[1])
    history.append(
        history.rows[4], "checkpoint", sinks=[replace(history.rows[3].sinks[0], identity="x", files=[])]
    )
    with pytest.raises(SinkIdentityError, match=r"sink 'out'.*re-created after checkpoints \[2\]"):
        moves(history.rows, 5, 2)


def test_a_sink_that_got_another_path_keeps_its_old_outputs_in_the_old_one() -> None:
    history = three_batches()
    last = history.rows[3]
    history.put(replace(last, sinks=[replace(last.sinks[0], path="/elsewhere")]))
    moves_by_path = {s.path: moved([s])["out"] for s in moves(history.rows, 3, 1) if s.name == "out"}
    assert moves_by_path == {"/out": (["out-w2-1"], []), "/elsewhere": (["out-w3-2"], [])}


def test_nothing_moves_without_rows() -> None:
    assert moves(tree({}), None, None) == []
    assert published(tree({})) == {}
    assert tree({}).head is None
