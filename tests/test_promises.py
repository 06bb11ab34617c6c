"""Every promise of the first page has a test that ``make test`` runs on the real Spark."""

from __future__ import annotations

import ast
import re

import pytest

from tests.promises import PROMISES
from tests.support.environments import REPOSITORY

README = (REPOSITORY / "README.md").read_text()
PAGES = README + (REPOSITORY / "docs" / "architecture.md").read_text()


def _plain(text: str) -> str:
    """Words alone: without line ends, emphasis and targets of links."""
    return " ".join(re.sub(r"\]\([^)]*\)|[\[*`]", "", text).split())


def _functions(path: str) -> set[str]:
    return {
        node.name
        for node in ast.parse((REPOSITORY / path).read_text()).body
        if isinstance(node, ast.FunctionDef)
    }


@pytest.mark.parametrize("promise", PROMISES)
def test_a_promise_is_on_a_page_and_its_tests_are_there(promise: str) -> None:
    assert _plain(promise) in _plain(PAGES)
    assert PROMISES[promise]
    for test in PROMISES[promise]:
        path, _, name = test.partition("::")
        assert name.partition("[")[0] in _functions(path), test


def test_what_the_first_page_emphasises_calls_and_lists_is_in_the_table() -> None:
    table = _plain(" ".join(PROMISES))
    head, _, rest = README.partition("## Five commands")
    calls = set(re.findall(r"\b(?:engine|open_state)\.\w+", rest))
    emphasised = {_plain(text).rstrip(".") for text in re.findall(r"^\* \*\*(.+?)\*\*", head, re.MULTILINE)}
    assert len(calls) > 8
    assert len(emphasised) > 3
    assert sorted(text for text in calls | emphasised if text not in table) == []
