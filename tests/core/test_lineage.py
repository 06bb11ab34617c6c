"""The tree of checkpoints: heads, branches, paths, and what may be committed on what."""

from __future__ import annotations

from dataclasses import replace

import pytest

from state_engine.core.checkpoints import lineage
from state_engine.core.checkpoints.checkpoint import BaseRange, CheckpointRow, OperatorCheckpoint
from state_engine.core.errors import ConfigurationError
from tests.core.rows import checkpoint, operator

# 1 - 2 - 3 and, after a restore to 2, 2 - 4 - 6; a replay branched off at 1: 1 - 5
ROWS = {
    row.checkpoint_id: row
    for row in (
        checkpoint(1), checkpoint(2, 1), checkpoint(3, 2), checkpoint(4, 2, kind="restore"),
        checkpoint(5, 1, branch="replay"), checkpoint(6, 4),
    )
}  # fmt: skip


def ids(checkpoint_id: int | None) -> list[int]:
    return [row.checkpoint_id for row in lineage.path(ROWS, checkpoint_id)]


def test_the_path_is_what_parents_say_oldest_first() -> None:
    assert ids(6) == [1, 2, 4, 6]
    assert ids(3) == [1, 2, 3]
    assert ids(5) == [1, 5]
    assert ids(1) == [1]
    assert ids(None) == []


def test_a_head_is_the_newest_row_of_its_branch() -> None:
    main, replay = lineage.head(ROWS), lineage.head(ROWS, "replay")
    assert main is not None
    assert replay is not None
    assert (main.checkpoint_id, replay.checkpoint_id) == (6, 5)
    assert lineage.head(ROWS, "other") is None
    assert lineage.head({}) is None


def test_ids_grow_over_all_branches() -> None:
    assert lineage.next_id(ROWS) == 7
    assert lineage.next_id({5: ROWS[5]}) == 6
    assert lineage.next_id({}) == 1


def test_an_unknown_checkpoint_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ConfigurationError, match="no checkpoint 7; known ids: 1 to 6"):
        lineage.path(ROWS, 7)
    with pytest.raises(ConfigurationError, match="none yet"):
        lineage.path({}, 1)


def test_branches_and_what_is_on_none() -> None:
    assert {name: row.checkpoint_id for name, row in lineage.branches(ROWS).items()} == {
        "main": 6,
        "replay": 5,
    }
    assert lineage.abandoned(ROWS) == {3}
    assert lineage.abandoned({}) == set()


@pytest.mark.parametrize(("a", "b", "expected"), [(6, 3, 2), (3, 6, 2), (5, 6, 1), (4, 6, 4), (3, 3, 3)])
def test_the_common_ancestor_is_the_newest_shared_row(a: int, b: int, expected: int) -> None:
    found = lineage.common_ancestor(ROWS, a, b)
    assert found is not None
    assert found.checkpoint_id == expected


def test_trees_that_began_apart_share_nothing() -> None:
    rows = ROWS | {7: checkpoint(7, None, kind="import")}
    assert lineage.common_ancestor(rows, 7, 6) is None


def test_rows_since_are_those_of_all_branches() -> None:
    assert [row.checkpoint_id for row in lineage.rows_since(ROWS, 3)] == [4, 5, 6]
    assert lineage.rows_since(ROWS, 6) == []


def test_a_branch_is_open_until_promoted_or_retired() -> None:
    def names(*more: CheckpointRow) -> set[str]:
        return set(lineage.open_branches(ROWS | {row.checkpoint_id: row for row in more}))

    assert names() == {"main", "replay"}
    assert names(checkpoint(7, 5, kind="promote", replaced_id=6)) == {"main"}
    assert names(checkpoint(7, 6, kind="retention", retired=[5])) == {"main"}
    assert names(checkpoint(7, 6, kind="retention", retired=[6])) == {"main", "replay"}
    assert names(checkpoint(7, 1, branch="other")) == {"main", "replay", "other"}


def test_retirement_outlives_the_path_of_the_row_that_tells_it() -> None:
    rows = {
        row.checkpoint_id: row
        for row in (
            checkpoint(1), checkpoint(2, 1), checkpoint(3, 2, kind="retention", retired=[1]),
            checkpoint(4, 2, kind="restore", replaced_id=3),
        )
    }  # fmt: skip
    assert lineage.retired(rows) == {1}


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
    found = lineage.may_reparent(ROWS | new, 6)
    assert (found.checkpoint_id if found else None) == expected


def test_a_batch_of_a_replay_minds_its_own_branch() -> None:
    rows = ROWS | {7: checkpoint(7, 6), 8: checkpoint(8, 7, kind="restore")}
    assert lineage.may_reparent(rows, 5, "replay") is rows[5]
    assert lineage.may_reparent(rows, 1, "new") is rows[1]
    assert lineage.may_reparent(rows | {9: checkpoint(9, 5, branch="replay")}, 5, "replay") is None


def test_no_batch_goes_onto_what_is_retired_or_not_there() -> None:
    rows = ROWS | {7: checkpoint(7, 6, kind="retention", retired=[1, 2])}
    assert lineage.may_reparent(rows, 1, "new") is None
    assert lineage.may_reparent(rows, None) is None
    assert lineage.may_reparent({}, 1) is None


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
    assert lineage.may_apply_compaction(rows, 2, compaction(2, 6, (0, 127)))
    assert lineage.may_apply_compaction(rows, 6, compaction(6, 6, (0, 127)))
    assert not lineage.may_apply_compaction(rows, 3, compaction(3, 6, (0, 127)))
    assert not lineage.may_apply_compaction(rows, 5, compaction(5, 6, (0, 127)))
    assert lineage.may_apply_compaction(rows, 3, compaction(3, 3, (0, 127)))


def test_a_compaction_never_takes_the_place_of_a_later_base() -> None:
    rows = with_state(BaseRange(64, 127, "b", 4))
    assert not lineage.may_apply_compaction(rows, 2, compaction(2, 6, (0, 127)))
    assert not lineage.may_apply_compaction(rows, 2, compaction(2, 6, (0, 64)))
    assert not lineage.may_apply_compaction(rows, 2, compaction(2, 6, (127, 127)))
    assert lineage.may_apply_compaction(rows, 2, compaction(2, 6, (0, 63)))
    assert lineage.may_apply_compaction(rows, 4, compaction(4, 6, (0, 127)))
    carried = replace(compaction(2, 6), operators=[keyed(BaseRange(64, 127, "b", 4))])
    assert lineage.may_apply_compaction(rows, 2, carried)


def test_a_base_that_only_stands_for_a_later_checkpoint_takes_no_newer_ones_place() -> None:
    rows = with_state(BaseRange(64, 127, "b", 4))
    advanced = keyed(BaseRange(0, 63, "new", 2), BaseRange(64, 127, "a", 2))
    assert not lineage.may_apply_compaction(rows, 2, replace(compaction(2, 6, (0, 63)), operators=[advanced]))


def test_a_compaction_is_dropped_where_the_max_parallelism_changed_or_the_operator_is_new() -> None:
    rows = with_state()
    assert not lineage.may_apply_compaction(rows, 2, compaction(2, 6, (0, 127), max_parallelism=256))
    changed_and_back = rows | {4: replace(rows[4], operators=[keyed(groups=256)])}
    assert not lineage.may_apply_compaction(changed_and_back, 2, compaction(2, 6, (0, 127)))
    assert not lineage.may_apply_compaction(
        rows | {2: replace(rows[2], operators=[])}, 2, compaction(2, 6, (0, 127))
    )
