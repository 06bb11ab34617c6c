"""Documents in a form of their own: the index of decisions, the changelog and the glossary."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections import Counter
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest

from docs.decisions.index import HERE, INDEX, index
from state_engine import (
    Cumulating,
    KeyedStream,
    Session,
    Sliding,
    Tumbling,
    WindowedStream,
    avg,
    collect_list,
    collect_set,
    count,
    count_distinct,
    first,
    last,
    max_,
    max_by,
    min_,
    min_by,
    stddev,
    sum_,
    variance,
)
from state_engine.monitoring.job_status import State

REPOSITORY = Path(__file__).parents[1]
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


TEXT = (REPOSITORY / "CHANGELOG.md").read_text()
KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]


def test_versions_stand_newest_first_below_what_is_unreleased() -> None:
    unreleased, *released = re.findall(r"^## (.*)$", TEXT, re.MULTILINE)
    assert unreleased == "Unreleased"
    parts = [re.fullmatch(r"(\d+)\.(\d+)\.(\d+) - (\d{4}-\d\d-\d\d)", title) for title in released]
    versions = [tuple(int(n) for n in part.groups()[:3]) for part in parts if part is not None]
    assert len(versions) == len(released) > 0
    assert versions == sorted(set(versions), reverse=True)
    assert all(date.fromisoformat(part[4]) for part in parts if part is not None)


def test_each_kind_of_change_stands_once_a_version_in_one_order() -> None:
    for section in re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]:
        kinds = re.findall(r"^### (.*)$", section, re.MULTILINE)
        assert kinds == [kind for kind in KINDS if kind in kinds], section.partition("\n")[0]


def test_the_version_of_the_package_has_a_section() -> None:
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    assert f"\n## {version} - " in TEXT


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


OPERATORS: list[Any] = [
    Tumbling, Sliding, Cumulating, Session, KeyedStream.window, KeyedStream.count_window, KeyedStream.scd2,
    KeyedStream.top_n, KeyedStream.join, KeyedStream.join_asof, KeyedStream.over, KeyedStream.sequence,
    KeyedStream.drop_duplicates, KeyedStream.silent, KeyedStream.aggregate, WindowedStream.top_n, count, sum_,
    avg, min_, max_, count_distinct, first, last, min_by, max_by, collect_list, collect_set, stddev, variance,
]  # fmt: skip
OBJECTS = {
    "steps",
    "self",
    "windows",
    "n",
    "field",
    "aggregates",
    "function",
    "accumulator_type",
    "output_type",
    "other",
}
"""What a call is about, which needs no word."""


def test_parameters_of_operators_are_explained_once_and_all_of_them() -> None:
    section = GLOSSARY.read_text().partition("## Parameters of operators")[2]
    rows = re.findall(r"^\| (`.+?) \|", section, re.MULTILINE)
    explained = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert len(set(explained)) == len(explained)
    parameters = {name for one in OPERATORS for name in inspect.signature(one).parameters} - OBJECTS
    assert set(explained) == parameters


@pytest.mark.parametrize("page", ["README.md", "docs/architecture.md", "CONTRIBUTING.md"])
def test_pages_that_people_begin_with_lead_to_it(page: str) -> None:
    assert "glossary.md)" in (REPOSITORY / page).read_text()
