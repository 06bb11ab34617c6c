"""Names and sentences are plain: results are named for what they are, texts use field terms, counts agree."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("state_engine", "tests", "benchmarks", "examples", "jobs", "orchestration")
FILES = [f for folder in FOLDERS for f in sorted((ROOT / folder).rglob("*.py")) if f != Path(__file__)]

NAMES = {"found", "told", "dear", "news", "tidied", "losing"}
"""No value, argument, field or function is called this, with or without underscores around it."""
ODD = re.compile(r"(?<![a-z])(told|tells|telling|news|dear|tidied)(?![a-z])", re.IGNORECASE)
"""Say *shows*, *records*, *reports*, *notifies*, *new data*, *expensive*; also inside of names."""


def bound(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The names that a module gives to values, functions and classes, each with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name


def badly_named(source: str) -> list[tuple[int, str]]:
    return [(line, name) for line, name in bound(ast.parse(source)) if name.strip("_").lower() in NAMES]


def oddly_said(source: str) -> list[tuple[int, str]]:
    return [(n, line.strip()) for n, line in enumerate(source.splitlines(), 1) if ODD.search(line)]


COUNTED = "state_engine", "orchestration", "jobs"
NOUN = re.compile(
    r" (?:(?:more|dead|key|other) )?(rows|files|bytes|entries|keys|key groups|micro-batches|tasks|partitions|letters|"
    r"checkpoints|timers|elements|inputs|fields|values|sources|savepoints|slots|offsets|changes|subtasks|expectations|minutes|hours)\b"
)
"""What texts count; "1 rows" is none of their sentences."""
NO_COUNT_OF_ONE = {
    "records no key groups",
    "rows have the key",  # two or more
    "timers",  # of a domain
    "hours ago",  # with a decimal
    "hours an attempt stops",  # a constant
    "rows, not",  # the edition of a data set
}


def by_hand(source: str) -> list[tuple[int, str]]:
    """Counts that an f-string puts before a plural noun; ``counted`` gives 1 its singular."""
    return [
        (node.lineno, str(behind.value))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.JoinedStr)
        for count, behind in itertools.pairwise(node.values)
        if isinstance(count, ast.FormattedValue) and isinstance(behind, ast.Constant)
        if NOUN.match(str(behind.value))
        and not any(str(behind.value).strip().startswith(text) for text in NO_COUNT_OF_ONE)
    ]


def test_counts_agree_with_their_nouns() -> None:
    files = [f for f in FILES if f.relative_to(ROOT).parts[0] in COUNTED]
    assert len(files) > 300
    assert [(str(f.relative_to(ROOT)), *p) for f in files for p in by_hand(f.read_text())] == []


def test_a_count_before_a_plural_is_reported() -> None:
    assert by_hand("f'{n} rows, {m:,} dead letters and {k} of them'") == [
        (1, " rows, "),
        (1, " dead letters and "),
    ]
    assert by_hand("f'{n} rowsets, {hours} hours ago'") == []


def test_results_are_named_for_what_they_are() -> None:
    assert [(str(f.relative_to(ROOT)), *p) for f in FILES for p in badly_named(f.read_text())] == []


def test_sentences_use_field_terms() -> None:
    assert [(str(f.relative_to(ROOT)), *p) for f in FILES for p in oddly_said(f.read_text())] == []


@pytest.mark.parametrize(
    "source",
    [
        "found = 1",
        "self.told = 1",
        "def found(): ...",
        "def f(told): ...",
        "class Found: ...",
        "for _found in x: ...",
    ],
)
def test_a_bad_name_is_reported(source: str) -> None:
    assert len(badly_named(source)) == 1


def test_odd_words_are_reported_in_texts_and_in_names() -> None:
    assert len(oddly_said("# nobody told us\ndef test_the_row_tells_all(): ...\nNEWS = 1")) == 3
    assert oddly_said("deareaction = newsletter = 'found by its name'") == []
