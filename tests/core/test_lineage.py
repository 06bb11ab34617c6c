"""The tree of checkpoints: heads, ids and paths."""

from __future__ import annotations

import pytest

from state_engine.core import lineage
from state_engine.core.errors import ConfigurationError
from tests.core.rows import checkpoint

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
