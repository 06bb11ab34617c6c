"""Code blocks of the guides, for tests that run them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

GUIDES = Path(__file__).parents[2] / "docs" / "guides"


def fenced_blocks(guide: Path) -> list[tuple[str, str]]:
    """Language and text of every fenced block, in order; the language is empty where none is given."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", guide.read_text(), re.DOTALL | re.MULTILINE)


def code_blocks(guide: Path, language: str) -> list[str]:
    """Texts of the fenced blocks of one language, in order."""
    return [text for kind, text in fenced_blocks(guide) if kind == language]


def run_examples(guide: Path, *, blocks: int) -> None:
    """Run the Python examples of a guide as they stand there, in order, in one module; there are so many."""
    examples = code_blocks(guide, "python")
    assert len(examples) == blocks
    names: dict[str, Any] = {"__name__": "guide"}
    for example in examples:
        exec(compile(example, str(guide), "exec"), names)
