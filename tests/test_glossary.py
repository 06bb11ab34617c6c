"""The glossary fixes the terms: each once, by the alphabet, in use, and explained where people begin to read."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from state_engine.monitoring.job_status import State

REPOSITORY = Path(__file__).parents[1]
GLOSSARY = REPOSITORY / "docs" / "glossary.md"
TERMS = re.findall(r"^\* \*\*([^*]+)\*\*: \S", GLOSSARY.read_text(), re.MULTILINE)
FIXED = {
    "abandon", "attempt", "base", "changelog", "dead letters", "erase", "expire", "fold", "promote", "publish",
    "rebatch", "slice", "stage", "vacuum", "withdraw", "write id",
}  # fmt: skip


@cache
def written() -> str:
    """The code of the engine and the guides, in lower case, names in words."""
    files = [*(REPOSITORY / "state_engine").rglob("*.py"), *(REPOSITORY / "docs" / "guides").glob("*.md")]
    return re.sub(r"[\s_]+", " ", " ".join(file.read_text() for file in files)).lower()


def test_terms_stand_once_and_by_the_alphabet() -> None:
    assert [term for term, times in Counter(TERMS).items() if times > 1] == []
    assert sorted(TERMS) == TERMS
    assert set(TERMS) >= FIXED


@pytest.mark.parametrize("term", TERMS)
def test_a_term_is_in_use(term: str) -> None:
    assert re.search(rf"\b{term.rstrip('s')}", written())


def test_the_states_of_health_are_all_there() -> None:
    entry = GLOSSARY.read_text().partition("* **job health**")[2].partition("\n* ")[0]
    assert set(re.findall(r"`(\w+)`", entry)) == set(get_args(State))


def test_a_term_that_another_one_points_to_has_an_entry() -> None:
    assert set(re.findall(r"see \*([^*]+)\*", GLOSSARY.read_text())) <= set(TERMS)


@pytest.mark.parametrize("page", ["README.md", "docs/architecture.md", "CONTRIBUTING.md"])
def test_pages_that_people_begin_with_lead_to_it(page: str) -> None:
    assert "glossary.md)" in (REPOSITORY / page).read_text()
