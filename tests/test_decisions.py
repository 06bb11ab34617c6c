"""The index of decisions lists all of them, and each name of one in code and guides leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.decisions.index import HERE, INDEX, index

REPOSITORY = HERE.parents[1]
RECORDS = {int(path.name[:4]): path for path in HERE.glob("[0-9]*.md")}
READ_BY_PEOPLE = [
    *(REPOSITORY / "state_engine").rglob("*.py"),
    *(path for path in (REPOSITORY / "docs").rglob("*.md") if path.parent != HERE),
    *REPOSITORY.glob("*.md"),
]
NAMED = re.compile(r"[Dd]ecisions? \[?((?:\d+(?:, | and )?)+)")


def named_in(path: Path) -> set[int]:
    """Numbers of the decisions that a file names: ``Decision 0031.``, ``decisions 21 and 26``."""
    return {int(n) for numbers in NAMED.findall(path.read_text()) for n in re.findall(r"\d+", numbers)}


def test_the_index_is_what_the_records_say() -> None:
    assert INDEX.read_text() == index(), "write it anew: python -m docs.decisions.index"


@pytest.mark.parametrize("number", sorted(RECORDS))
def test_a_record_has_a_date_and_a_status(number: int) -> None:
    text = RECORDS[number].read_text()
    assert re.search(r"^\*\d{4}-\d\d-\d\d\. (Accepted|Superseded)", text, re.MULTILINE)


def test_every_name_of_a_decision_leads_to_one() -> None:
    named = {number: path for path in [*READ_BY_PEOPLE, *RECORDS.values()] for number in named_in(path)}
    assert {number: path for number, path in named.items() if number not in RECORDS} == {}


def test_links_between_decisions_lead_somewhere() -> None:
    links = {
        (path, link)
        for path in RECORDS.values()
        for link in re.findall(r"\]\((\d{4}-[^)]*\.md)\)", path.read_text())
    }
    assert len(links) > 0
    assert [link for path, link in links if not (path.parent / link).is_file()] == []
