"""The code of the guide on late rows runs, and does what the guide says."""

from __future__ import annotations

from typing import Any

from tests.support.guides import GUIDES, code_blocks

GUIDE = GUIDES / "late_rows.md"


def test_the_guide() -> None:
    (block,) = code_blocks(GUIDE, "python")
    names: dict[str, Any] = {"__name__": "guide"}
    exec(compile(block, str(GUIDE), "exec"), names)
