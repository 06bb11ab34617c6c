"""The tree of checkpoints: heads, branches, paths, and the parents that a row may have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from state_engine.core.checkpoints.checkpoint import BaseRange, CheckpointRow, OperatorCheckpoint
from state_engine.core.errors import ConfigurationError
from tests.core.checkpoints.rows import checkpoint, operator, tree

# 1 - 2 - 3 and, after a restore to 2, 2 - 4 - 6; a replay branched off at 1: 1 - 5
ROWS = {
    row.checkpoint_id: row
    for row in (
        checkpoint(1), checkpoint(2, 1), checkpoint(3, 2), checkpoint(4, 2, kind="restore"),
        checkpoint(5, 1, branch="replay"), checkpoint(6, 4),
    )
}  # fmt: skip


def ids(checkpoint_id: int | None) -> list[int]:
    return [row.checkpoint_id for row in tree(ROWS).path(checkpoint_id)]


def test_the_path_is_what_parents_say_oldest_first() -> None:
    assert ids(6) == [1, 2, 4, 6]
    assert ids(3) == [1, 2, 3]
    assert ids(5) == [1, 5]
    assert ids(1) == [1]
    assert ids(None) == []


def test_a_head_is_the_newest_row_of_its_branch() -> None:
    main, replay = tree(ROWS).head, tree(ROWS).head_of("replay")
    assert main is not None
    assert replay is not None
    assert (main.checkpoint_id, replay.checkpoint_id) == (6, 5)
    assert tree(ROWS).head_of("other") is None
    assert tree({}).head is None


def test_ids_grow_over_all_branches() -> None:
    assert tree(ROWS).next_id == 7
    assert tree({5: ROWS[5]}).next_id == 6
    assert tree({}).next_id == 1


def test_an_unknown_checkpoint_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ConfigurationError, match="no checkpoint 7; known ids: 1 to 6"):
        tree(ROWS).path(7)
    with pytest.raises(ConfigurationError, match="none yet"):
        tree({}).path(1)


def test_the_heads_of_branches() -> None:
    assert {name: row.checkpoint_id for name, row in tree(ROWS).branches.items()} == {
        "main": 6,
        "replay": 5,
    }


@pytest.mark.parametrize(("a", "b", "expected"), [(6, 3, 2), (3, 6, 2), (5, 6, 1), (4, 6, 4), (3, 3, 3)])
def test_the_common_ancestor_is_the_newest_shared_row(a: int, b: int, expected: int) -> None:
    ancestor = tree(ROWS).common_ancestor(a, b)
    assert ancestor is not None
    assert ancestor.checkpoint_id == expected


def test_trees_that_began_apart_share_nothing() -> None:
    rows = ROWS | {7: checkpoint(7, None, kind="import")}
    assert tree(rows).common_ancestor(7, 6) is None


def test_a_branch_is_open_until_promoted_or_expired() -> None:
    def names(*more: CheckpointRow) -> set[str]:
        return set(tree(ROWS | {row.checkpoint_id: row for row in more}).open_branches)

    assert names() == {"main", "replay"}
    assert names(checkpoint(7, 5, kind="promote", replaced_id=6)) == {"main"}
    assert names(checkpoint(7, 6, kind="retention", retired=[5])) == {"main"}
    assert names(checkpoint(7, 6, kind="retention", retired=[6])) == {"main", "replay"}
    assert names(checkpoint(7, 1, branch="other")) == {"main", "replay", "other"}


def test_what_expired_stays_expired_when_the_head_leaves_the_row_that_says_so() -> None:
    rows = {
        row.checkpoint_id: row
        for row in (
            checkpoint(1), checkpoint(2, 1), checkpoint(3, 2, kind="retention", retired=[1]),
            checkpoint(4, 2, kind="restore", replaced_id=3),
        )
    }  # fmt: skip
    assert tree(rows).expired == {1}


@pytest.mark.parametrize(
    ("since", "expected"),
    [
        ([], 6),
        ([("compaction", 6, "main")], 7),
        ([("compaction", 6, "main"), ("retention", 7, "main")], 8),
        ([("checkpoint", 5, "replay")], 6),  # another branch is no matter
        ([("checkpoint", 5, "replay"), ("compaction", 6, "main"), ("checkpoint", 7, "replay")], 8),
        ([("checkpoint", 6, "main")], None),
        ([("restore", 6, "main")], None),
        ([("rescale", 6, "main")], None),
        ([("transform", 6, "main")], None),
        ([("compaction", 6, "main"), ("transform", 7, "main")], None),
        ([("import", None, "main")], None),
        ([("promote", 5, "main")], None),
        ([("restore", 3, "main"), ("compaction", 7, "main")], None),
    ],
)
def test_a_batch_goes_onto_compactions_and_retentions_alone(
    since: list[tuple[str, int | None, str]], expected: int | None
) -> None:
    new = {7 + i: checkpoint(7 + i, p, kind=k, branch=b) for i, (k, p, b) in enumerate(since)}
    head = tree(ROWS | new).may_reparent(6)
    assert (head.checkpoint_id if head else None) == expected


def test_a_batch_of_a_replay_minds_its_own_branch() -> None:
    rows = ROWS | {7: checkpoint(7, 6), 8: checkpoint(8, 7, kind="restore")}
    assert tree(rows).may_reparent(5, "replay") is rows[5]
    assert tree(rows).may_reparent(1, "new") is rows[1]
    assert tree(rows | {9: checkpoint(9, 5, branch="replay")}).may_reparent(5, "replay") is None


def test_no_batch_goes_onto_what_is_expired_or_not_there() -> None:
    rows = ROWS | {7: checkpoint(7, 6, kind="retention", retired=[1, 2])}
    assert tree(rows).may_reparent(1, "new") is None
    assert tree(rows).may_reparent(None) is None
    assert tree({}).may_reparent(1) is None


def compaction(
    of: int, parent_id: int, *ranges: tuple[int, int], max_parallelism: int = 128
) -> CheckpointRow:
    bases = [BaseRange(start, end, "new", of) for start, end in ranges]
    return checkpoint(
        9, parent_id, kind="compaction", write_id="new", operators=[keyed(*bases, groups=max_parallelism)]
    )


def keyed(*bases: BaseRange, groups: int = 128) -> OperatorCheckpoint:
    return replace(operator(), bases=list(bases), max_parallelism=groups)


def with_state(*bases: BaseRange) -> dict[int, CheckpointRow]:
    """The tree above with an operator whose bases at 4 and later are as given."""
    return {i: replace(row, operators=[keyed(*bases) if i in (4, 6) else keyed()]) for i, row in ROWS.items()}


def test_a_compaction_is_applied_where_its_checkpoint_is_on_the_path() -> None:
    rows = with_state()
    assert tree(rows).may_apply_compaction(2, compaction(2, 6, (0, 127)))
    assert tree(rows).may_apply_compaction(6, compaction(6, 6, (0, 127)))
    assert not tree(rows).may_apply_compaction(3, compaction(3, 6, (0, 127)))
    assert not tree(rows).may_apply_compaction(5, compaction(5, 6, (0, 127)))
    assert tree(rows).may_apply_compaction(3, compaction(3, 3, (0, 127)))


def test_a_compaction_never_takes_the_place_of_a_later_base() -> None:
    rows = with_state(BaseRange(64, 127, "b", 4))
    assert not tree(rows).may_apply_compaction(2, compaction(2, 6, (0, 127)))
    assert not tree(rows).may_apply_compaction(2, compaction(2, 6, (0, 64)))
    assert not tree(rows).may_apply_compaction(2, compaction(2, 6, (127, 127)))
    assert tree(rows).may_apply_compaction(2, compaction(2, 6, (0, 63)))
    assert tree(rows).may_apply_compaction(4, compaction(4, 6, (0, 127)))
    carried = replace(compaction(2, 6), operators=[keyed(BaseRange(64, 127, "b", 4))])
    assert tree(rows).may_apply_compaction(2, carried)


def test_a_base_that_only_stands_for_a_later_checkpoint_takes_no_newer_ones_place() -> None:
    rows = with_state(BaseRange(64, 127, "b", 4))
    advanced = keyed(BaseRange(0, 63, "new", 2), BaseRange(64, 127, "a", 2))
    assert not tree(rows).may_apply_compaction(2, replace(compaction(2, 6, (0, 63)), operators=[advanced]))


def test_a_compaction_is_dropped_where_the_max_parallelism_changed_or_the_operator_is_new() -> None:
    rows = with_state()
    assert not tree(rows).may_apply_compaction(2, compaction(2, 6, (0, 127), max_parallelism=256))
    changed_and_back = rows | {4: replace(rows[4], operators=[keyed(groups=256)])}
    assert not tree(changed_and_back).may_apply_compaction(2, compaction(2, 6, (0, 127)))
    assert not tree(rows | {2: replace(rows[2], operators=[])}).may_apply_compaction(
        2, compaction(2, 6, (0, 127))
    )


def test_what_was_asked_once_is_not_worked_out_again_and_cannot_be_spoilt() -> None:
    history = tree(ROWS)
    history.path(6).clear()
    assert [row.checkpoint_id for row in history.path(6)] == ids(6)
    assert history.main_path == history.path(6)
    assert history.expired is history.expired
    later = history.with_rows([checkpoint(7, 6, kind="retention", retired=[1])])
    assert (len(history.expired), list(later.expired), later.newest_id) == (0, [1], 7)
    assert later.before(7) == history == ROWS


def test_rows_are_in_the_order_of_their_ids() -> None:
    history = tree(reversed(ROWS.values()))
    assert list(history) == sorted(ROWS)
    assert history.head is not None
    assert history.head.checkpoint_id == 6
    assert history.leaving(3, 6) == [ROWS[3]]
    assert history.ids_to(5) == {1, 5}
