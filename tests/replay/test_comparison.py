"""``compare`` of equal checkpoints needs no session."""

from __future__ import annotations

from typing import Any

from state_engine.core.checkpoints.checkpoint import StagedSink
from state_engine.replay.comparison import compare
from state_engine.storage.layout import JobLayout
from tests.core.checkpoints.rows import checkpoint, tree

NO_SPARK: Any = None


def test_a_sink_that_got_no_rows_on_either_side_is_equal() -> None:
    empty = StagedSink("out", "delta", "file:///out", "id", "{}", [])
    rows = {
        1: checkpoint(1, sinks=[empty]),
        2: checkpoint(2, 1, sinks=[empty]),
        3: checkpoint(3, 1, branch="fix", sinks=[empty]),
    }
    layout = JobLayout("file:///root", "job")
    comparison = compare(NO_SPARK, layout, tree(rows), new="fix", old="main")
    assert comparison.is_equal
    assert comparison.outputs == {}
    assert comparison.summary() == "job job: checkpoint 2 (old) and 3 (new)"
