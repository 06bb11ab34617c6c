"""The code of the guide on event time runs, and says what it says."""

from __future__ import annotations

from typing import Any

from tests.support.guides import GUIDES, code_blocks


def test_the_code_of_the_guide_runs() -> None:
    blocks = code_blocks(GUIDES / "event_time.md", "python")
    assert len(blocks) == 3
    names: dict[str, Any] = {"__name__": "event_time_guide"}
    for block in blocks:
        exec(compile(block, "docs/guides/event_time.md", "exec"), names)
