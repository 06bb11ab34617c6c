"""No row gets into the table of checkpoints that breaks an invariant, and none but by ``CheckpointLog.commit``."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import state_engine
from state_engine.core.checkpoints.checkpoint import BaseRange, CheckpointRow, PinnedCheckpoint
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.invariants import _RULES, _TREE_RULES
from state_engine.core.checkpoints.updates import (
    AddCheckpoint,
    Expire,
    MoveHead,
    NewestIs,
    OnlyBackgroundSince,
    Pin,
    Requirement,
    Unpin,
    Update,
    row_of,
)
from state_engine.core.errors import InvariantError, StaleParentError
from state_engine.storage.checkpoint_log import CheckpointLog
from state_engine.storage.layout import JobLayout
from tests.core.checkpoints.rows import changes, checkpoint, operator, tree
from tests.core.checkpoints.test_invariants import BROKEN, BROKEN_IN_THE_TREE, PARENT, TREE


class Log(CheckpointLog):
    """A log without a table: rivals may commit just before it."""

    def __init__(self, rows: Mapping[int, CheckpointRow], *rivals: CheckpointRow) -> None:
        super().__init__(None, JobLayout("file:///root", "job"), "root")  # type: ignore[arg-type]
        self._history, self.rivals, self.appended = tree(rows), list(rivals), list[CheckpointRow]()

    def load(self) -> History:
        return self._history

    def _append(self, row: CheckpointRow, *, instead_of: Sequence[str] = ()) -> None:
        if self.rivals:
            rival = self.rivals.pop(0)
            self._history = self._history.with_rows([rival])
            raise StaleParentError("the id is taken")
        self._history = self._history.with_rows([row])
        self.appended.append(row)


def refused(rows: Mapping[int, CheckpointRow], row: CheckpointRow) -> list[str]:
    log = Log(rows)
    with pytest.raises(InvariantError, match="Nothing was committed") as refusal:
        log.commit([AddCheckpoint(row)], NewestIs(max(rows, default=0)))
    assert log.appended == []
    return list(refusal.value.broken)


def test_a_row_that_breaks_an_invariant_is_refused() -> None:
    rows = {1: checkpoint(1), 2: checkpoint(2, 1), 3: PARENT}
    broken = [refused(rows, row) for _, row, _ in BROKEN]
    broken += [refused(tree, row) for _, row, tree, _ in BROKEN_IN_THE_TREE]
    assert {name for names in broken for name in names} == {*_RULES, *_TREE_RULES}
    for (name, row, *_), names in zip([*BROKEN, *BROKEN_IN_THE_TREE], broken, strict=True):
        # the log looks the parent up: one that is not the head is on no branch's end
        assert name in names or "on the branch" in names, (name, row)


def test_a_row_is_checked_again_where_it_lands_after_a_conflict() -> None:
    """A row that pins a checkpoint that a retention row expired meanwhile."""
    rows = {1: checkpoint(1), 2: checkpoint(2, 1)}
    row = checkpoint(3, 2, pinned=[PinnedCheckpoint("safe", 1, "/safe")])
    log = Log(rows, checkpoint(3, 2, kind="retention", retired=[1]))
    with pytest.raises(InvariantError) as refusal:
        log.commit([AddCheckpoint(row)], OnlyBackgroundSince(2, "main"))
    assert refusal.value.broken == ("continues existing rows",)
    assert log.appended == []


def test_a_micro_batch_lands_upon_what_only_cleaned_up() -> None:
    first = checkpoint(1, operators=[operator(changes(0, (0, 63)))])
    base = BaseRange(0, 127, "w2", 1)
    folded = replace(operator(), bases=[base])
    batch = checkpoint(2, 1, write_id="mine", operators=[operator(changes(0, (0, 63)))])
    log = Log(
        {1: first},
        checkpoint(2, 1, kind="compaction", operators=[folded]),
        checkpoint(3, 1, branch="replay"),
        checkpoint(4, 2, kind="retention", operators=[folded]),
    )
    row = log.commit([AddCheckpoint(batch)], OnlyBackgroundSince(1, "main"))
    assert (row.checkpoint_id, row.parent_id, row.write_id) == (5, 4, "mine")
    assert [o.bases for o in row.operators] == [[base]]
    assert log.appended == [row]


@pytest.mark.parametrize(
    ("row", "requirement", "rival"),
    [
        (checkpoint(5, 3), OnlyBackgroundSince(3, "main"), checkpoint(5, 3)),
        (checkpoint(5, 3), OnlyBackgroundSince(3, "main"), checkpoint(5, 3, kind="rescale")),
        (checkpoint(5, 4, branch="replay"), OnlyBackgroundSince(4, "replay"), checkpoint(5, 3, retired=[4])),
        (checkpoint(5, 3, kind="rescale"), NewestIs(4), checkpoint(5, 3, kind="retention")),
        (checkpoint(5, 3, kind="rescale"), NewestIs(4), checkpoint(5, 4, branch="replay")),
    ],
)
@pytest.mark.parametrize("known", [False, True])
def test_what_came_first_leaves_nothing_to_land_on(
    row: CheckpointRow, requirement: Requirement, rival: CheckpointRow, known: bool
) -> None:
    log = Log(TREE | {5: rival}) if known else Log(TREE, rival)
    with pytest.raises(StaleParentError):
        log.commit([AddCheckpoint(row)], requirement)
    assert log.appended == []


def test_updates_are_values_that_make_a_row() -> None:
    pin = PinnedCheckpoint("safe", 2, "/safe")
    updates: list[Update] = [
        AddCheckpoint(checkpoint(5, 3)),
        Expire([1]),
        Pin(pin),
        Unpin("before"),
        MoveHead(3, []),
    ]
    row = row_of(updates)
    assert (row.retired, row.pinned, row.unpinned, row.replaced_id) == ([1], [pin], ["before"], 3)
    assert updates[1:4] == [Expire([1]), Pin(pin), Unpin("before")]
    with pytest.raises(TypeError, match="begins with AddCheckpoint"):
        row_of([Expire([1])])


# -- nobody else -------------------------------------------------------------------------------------------------------

PACKAGE = Path(state_engine.__file__).parent
WRITES = {
    ("job/job_tables.py", "uri"),  # tables of bases and of changes
    ("job/job_tables.py", "self.layout.operator_state"),
    ("job/job_tables.py", "self.layout.changelog(uid)"),
    ("microbatch/attempt_outputs.py", "uri"),  # takes out what an attempt listed there
    ("operations/file_collector.py", "uri"),  # takes out files of expired checkpoints
    ("operations/root_upgrade.py", "self._uri"),  # the rows that are there, in the form of this version
    ("sinks/delta.py", "staged.path"),
    ("storage/checkpoint_log.py", "self._uri"),
}
"""Every place that changes a table through Kernel, and which: one that is new here needs its reason."""


def calls(tree: ast.AST, names: set[str]) -> list[tuple[str, ast.Call]]:
    """Calls of methods of these names, each with the text of what they are called on."""
    method_calls = [
        n for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)
    ]
    return [(ast.unparse(n.func.value), n) for n in method_calls if n.func.attr in names]  # type: ignore[attr-defined]


def test_nobody_else_writes_to_the_table_of_checkpoints() -> None:
    writes, appends = set(), []
    for file in PACKAGE.rglob("*.py"):
        at, text = str(file.relative_to(PACKAGE)), file.read_text()
        if "ernel.append(" not in text and "ernel.change(" not in text and "._append(" not in text:
            continue
        tree = ast.parse(text)
        for on, call in calls(tree, {"append", "change"}):
            if on.removeprefix("self.").removeprefix("_").split(".")[-1].endswith("kernel"):
                writes.add((at, ast.unparse(call.args[0])))
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef):
                appends += [(at, function.name) for _ in calls(function, {"_append"})]
    assert writes == WRITES
    assert appends == [("storage/checkpoint_log.py", "commit")]
