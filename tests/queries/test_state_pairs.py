"""Which states of two checkpoints are the same state, whatever their names."""

from __future__ import annotations

from dataclasses import replace

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.time_travel import DeclaredState
from state_engine.core.state.state_schema import StateSchema
from state_engine.queries.state_pairs import state_pairs
from tests.core.checkpoints.rows import checkpoint, operator

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
