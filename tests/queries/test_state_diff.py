"""Changes between two checkpoints, compared with the model: on any paths, from Python and from a shell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from state_engine.cli.main import app
from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.time_travel import DeclaredState
from state_engine.core.errors import ConfigurationError
from state_engine.core.state.state_schema import StateSchema
from state_engine.replay.differences import state_pairs
from tests.core.checkpoints.rows import checkpoint, operator
from tests.queries.test_open_state import BATCHES
from tests.support.remembering import Memory, model


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Memory:
    site = Memory(tmp_path_factory.mktemp("diff"), spark)
    for batch in BATCHES[:3]:
        site.run(batch)
    return site


def changes(before: dict[Any, Any], after: dict[Any, Any]) -> dict[Any, tuple[str, Any, Any]]:
    changed = {}
    for key in {*before, *after}:
        old, new = before.get(key), after.get(key)
        if old != new:
            changed[key] = "added" if old is None else "removed" if new is None else "changed", old, new
    return changed


@pytest.mark.parametrize("state", ["last", "all", "counts", "total"])
def test_changes_are_those_of_the_model(memory: Memory, state: str) -> None:
    (diff,) = memory.engine.diff("memory", 1, 3, operator="remembers", state=state)
    assert (diff.operator, diff.state) == ("remembers", state)
    expected = changes(model(BATCHES[:1])[state], model(BATCHES[:3])[state])
    assert {tuple(r)[:-3]: tuple(r)[-3:] for r in diff.changes.collect()} == expected
    kinds = [kind for kind, _, _ in expected.values()]
    assert diff.counts() == {kind: kinds.count(kind) for kind in ("added", "removed", "changed")}


def test_all_states_are_compared_and_times_name_checkpoints(memory: Memory) -> None:
    second = memory.engine.checkpoints("memory")[1].created_at
    diffs = memory.engine.diff("memory", second, second.isoformat())
    assert len(diffs) == 11
    with pytest.raises(ConfigurationError, match=r"no state 'nope' of operator 'any'.*remembers.all"):
        memory.engine.diff("memory", 1, 2, state="nope")


@pytest.mark.long
def test_checkpoints_of_a_path_that_was_left_can_be_compared(tmp_path: Path, spark: SparkSession) -> None:
    memory = Memory(tmp_path, spark)
    for batch in BATCHES[:2]:
        memory.run(batch)
    memory.engine.restore("memory", checkpoint_id=1)
    (diff,) = memory.engine.diff("memory", 2, 3, state="total")
    assert sorted(tuple(r) for r in diff.changes.collect()) == [
        ("a", 1, "changed", 14, 12),
        ("c", 1, "removed", 9, None),
    ]


@pytest.mark.long
def test_the_command_prints_what_changed(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATELAKE__ROOT", str(memory.root))
    arguments = ["state", "diff", "memory", "1", "3", "--operator", "remembers", "--state", "total"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "remembers.total: 2 added, 1 removed, 1 changed" in done.stdout
    assert ["a", "1", "changed", "12", "14"] in [line.split() for line in done.stdout.splitlines()]
    failed = CliRunner().invoke(app, ["state", "diff", "memory", "1", "x"])
    assert failed.exit_code == 1
    assert "is not a time" in str(failed.exception)


SUM, SEEN = StateSchema("sum", "value", "bigint"), StateSchema("seen", "value", "bigint")
TOTAL = StateSchema("total", "value", "bigint", stored_as="sum")


def row(checkpoint_id: int, *states: StateSchema) -> CheckpointRow:
    return checkpoint(checkpoint_id, operators=[replace(operator(), states=list(states))])


def shown(old: list[CheckpointRow], new: list[CheckpointRow]) -> list[tuple[str, str | None, str | None]]:
    """Names of pairs, and both of their sides."""

    def name(side: DeclaredState | None) -> str | None:
        return side.schema.name if side else None

    return [(pair.state, name(pair.old), name(pair.new)) for pair in state_pairs(old, new)]


def test_a_renamed_state_is_the_same() -> None:
    path = [row(1, SUM, SEEN), row(2, TOTAL, SEEN)]
    assert shown(path[:1], path) == [("seen", "seen", "seen"), ("total", "sum", "total")]
    assert shown(path, path[:1]) == [("seen", "seen", "seen"), ("sum", "total", "sum")]


def test_a_new_state_of_the_old_name_is_another_one() -> None:
    new_sum = StateSchema("sum", "value", "string", stored_as="2__sum")
    path = [row(1, SUM), row(2, TOTAL), row(3, TOTAL, new_sum)]
    assert shown(path[:1], path) == [("sum", None, "sum"), ("total", "sum", "total")]
    given_up = [row(1, SUM), row(2), row(3, new_sum)]
    assert shown(given_up[:1], given_up) == [("sum", None, "sum"), ("sum (old)", "sum", None)]


def test_a_replay_from_the_beginning_is_compared_by_the_names_of_today() -> None:
    main = [row(1, SUM), row(2, TOTAL, StateSchema("sum", "value", "bigint", stored_as="2__sum"))]
    replay = [row(3, StateSchema("total", "value", "bigint"), SUM)]
    assert shown(main, replay) == [("sum", "sum", "sum"), ("total", "total", "total")]


def test_a_replay_from_a_checkpoint_shares_what_that_held() -> None:
    begin = row(1, SUM)
    assert shown([begin, row(2, SUM)], [begin, row(3, TOTAL)]) == [("total", "sum", "total")]


def test_nothing_is_paired_with_nothing() -> None:
    assert shown([], [row(1, SUM)]) == [("sum", None, "sum")]
    assert shown([row(1, SUM)], []) == [("sum", "sum", None)]
