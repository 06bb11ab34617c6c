"""The examples of the guide on rules beside a stream run as they stand there, in order."""

from __future__ import annotations

from typing import Any

from tests.support.guides import GUIDES, code_blocks

GUIDE = GUIDES / "broadcast.md"


def test_the_examples_run() -> None:
    blocks = code_blocks(GUIDE, "python")
    assert len(blocks) == 3
    names: dict[str, Any] = {"__name__": "guide"}
    for block in blocks:
        exec(compile(block, str(GUIDE), "exec"), names)
