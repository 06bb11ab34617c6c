"""``compare`` where there is nothing to compare: no session is needed for that."""

from __future__ import annotations

from typing import Any

from state_engine.backends.delta.layout import JobLayout
from state_engine.core.checkpoint import StagedSink
from state_engine.runtime.comparison import compare
from state_engine.runtime.sinks.staging import Staging
from tests.core.rows import checkpoint

NO_SPARK: Any = None


def test_a_sink_that_got_no_rows_on_either_side_is_equal() -> None:
    empty = StagedSink("out", "delta", "file:///out", "id", "{}", [])
    rows = {
        1: checkpoint(1, sinks=[empty]),
        2: checkpoint(2, 1, sinks=[empty]),
        3: checkpoint(3, 1, branch="fix", sinks=[empty]),
    }
    layout, staging = JobLayout("file:///root", "job"), Staging("file:///root")
    found = compare(NO_SPARK, layout, staging, rows, new="fix", old="main")
    assert found.is_equal
    assert found.outputs == {}
    assert found.summary() == "job job: checkpoint 2 (old) and 3 (new)"
