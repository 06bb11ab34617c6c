"""Names and docstrings of the engine use the reader's words: results are named for what they are."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ENGINE = Path(__file__).parents[1] / "state_engine"
ODD = re.compile(r"\b(told|tells|telling|news|dear|tidied|_tidied)\b", re.IGNORECASE)
"""Say *shows*, *records*, *reports*, *notifies*, *new data*, *expensive*."""


def bound(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The names that a module gives to values, each with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def test_nothing_is_called_found() -> None:
    places = [
        f"{file.relative_to(ENGINE)}:{line}"
        for file in ENGINE.rglob("*.py")
        for line, name in bound(ast.parse(file.read_text()))
        if name in ("found", "_found")
    ]
    assert places == []


def test_sentences_use_field_terms() -> None:
    places = [
        f"{file.relative_to(ENGINE)}:{number}: {line.strip()}"
        for file in ENGINE.rglob("*.py")
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if ODD.search(line)
    ]
    assert places == []
