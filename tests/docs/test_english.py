"""Texts are plain: no words and no orders of sentences that crept in before, short sentences, and mostly active ones.

Texts are pages, every message of the code (errors, warnings, logs, helps, progress and headings of columns), and
docstrings: of public names none may have them, of others fewer and fewer.
"""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any, get_type_hints

import pytest

import state_engine
from docs import api
from state_engine import StateEngine, errors
from tests.support.guides import DOCS

REPOSITORY = DOCS.parent
LISTS = tomllib.loads((DOCS / "words.toml").read_text())
WORDS = LISTS["words"]
ORDERS = {re.compile(order, re.IGNORECASE): instead for order, instead in LISTS["sentences"].items()}
FOR_PEOPLE = [
    *(page for page in sorted(DOCS.rglob("*.md")) if page.parent.name != "decisions"),
    *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
]
"""Decisions are records: they stay as they were written."""
MOST_WORDS, MOST_ON_AVERAGE = 36, 15
MOST_PASSIVE, FEWEST_SENTENCES = 0.25, 20
"""Manuals need the passive voice where nobody acts, so a page may use it; a share of few sentences says nothing."""
ERRORS = DOCS / "reference" / "errors.md"
"""Says of each error what did not happen: "Nothing was committed" names no actor, and needs none."""
CODE = [
    file for f in ("state_engine", "orchestration", "jobs") for file in sorted((REPOSITORY / f).rglob("*.py"))
]
ODD_DOCSTRINGS = 880
"""Words and orders of ``docs/words.toml`` in docstrings of the code."""
WORDS_OF_A_MESSAGE = 3
"""Shorter texts are names, and parts of longer ones."""


def prose(text: str) -> str:
    """A page without code, comments and the addresses of links."""
    text = re.sub(r"^```.*?^```$|(?<=\n\n)(?: {4}[^\n]*\n)+", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->|`[^`\n]*`|\]\([^)]*\)", " x ", text, flags=re.DOTALL)
    return re.sub(r"^(#|!\[).*$", "", text, flags=re.MULTILINE)


def messages(source: str) -> Iterator[tuple[int, str]]:
    """Texts in a module that people may read, each with its line: all but docstrings; values in them are ``x``."""
    tree = ast.parse(source)
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if id(node) in bare | parts:
            continue
        match node:
            case ast.JoinedStr(values=values):
                text = "".join(str(v.value) if isinstance(v, ast.Constant) else "x" for v in values)
            case ast.Constant(value=str(text)):
                pass
            case _:
                continue
        if len(text.split()) >= WORDS_OF_A_MESSAGE:
            yield node.lineno, text


def classes_in(annotation: Any) -> Iterator[type]:
    """The classes of the engine that a type names: itself, or as a part such as ``list[StateDiff]``."""
    if inspect.isclass(annotation) and annotation.__module__.startswith("state_engine"):
        yield annotation
    for part in getattr(annotation, "__args__", ()):
        yield from classes_in(part)


def public() -> list[Any]:
    """What ``docs/api.md`` names: what ``state_engine`` exports, and what its other public modules do."""
    return [
        *(getattr(state_engine, name) for name in state_engine.__all__),
        *(getattr(errors, name) for name in errors.__all__),
        *(getattr(import_module(module), name) for module, names in api.MODULES.items() for name in names),
    ]


def docstrings_of(*names: Any) -> Iterator[tuple[str, str]]:
    """Docstrings of functions and classes, and of public methods, properties and classes in these; each once."""
    seen: set[int] = set()
    left = list(names)
    while left:
        one = left.pop(0)
        documented = inspect.unwrap(getattr(one, "__func__", one))
        if id(documented) in seen:
            continue
        seen.add(id(documented))
        if text := documented.__doc__:
            yield getattr(documented, "fget", documented).__qualname__, inspect.cleandoc(text)
        ours = [
            base
            for base in getattr(one, "__mro__", ())
            if base.__module__.startswith(("state_engine", __name__))
        ]
        members = [member for base in ours for name, member in vars(base).items() if not name.startswith("_")]
        left += [member for member in members if isinstance(member, _DOCUMENTED)]


_DOCUMENTED = (type, FunctionType, property, classmethod, staticmethod)


def all_docstrings(source: str) -> Iterator[str]:
    """Docstrings of a module, and of its classes and functions, private ones included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (
            text := ast.get_docstring(node)
        ):
            yield text


def described(docstring: str) -> str:
    """A docstring as a page has it: code in single backticks, and without doctests."""
    return re.sub(r"^ *>>> .*?(?=\n\s*\n|\Z)", "", docstring, flags=re.DOTALL | re.MULTILINE).replace(
        "``", "`"
    )


_PARTICIPLES = (
    "been|begun|broken|brought|built|caught|chosen|cut|dealt|done|drawn|driven|fed|forgotten|given|held|hidden|kept|"
    "known|laid|left|lost|made|meant|met|overwritten|paid|put|read|rewritten|run|said|seen|sent|set|shown|split|spent|"
    "spread|stopped|taken|thrown|undone|understood|withdrawn|won|written"
)
_ADVERBS = "not|never|also|then|only|always|still|already|all|both|each|once|again|first|later|\\w+ly"
PASSIVE = re.compile(
    rf"\b(?:is|are|was|were|be|been|being)(?: (?:{_ADVERBS}))* (?:\w+ed|{_PARTICIPLES})\b", re.IGNORECASE
)


def whole(word: str) -> re.Pattern[str]:
    """Finds a word of the list where no letter stands beside it."""
    return re.compile(rf"(?<![\w'-])(?:{word})(?![\w'-])", re.IGNORECASE)


ANY_WORD = whole("|".join(WORDS))


def crept_in(text: str) -> list[tuple[str, str]]:
    """Words of the list in a text, each with what to write in its place."""
    plain = " ".join(prose(text).split())  # an expression may go over the end of a line
    if not ANY_WORD.search(plain):
        return []
    return [(match[0], instead) for word, instead in WORDS.items() for match in whole(word).finditer(plain)]


def oddly_ordered(text: str) -> list[tuple[str, str]]:
    """Sentences and cells of tables whose order is one of the list, each with what to write instead."""
    cells = [cell for line in prose(text).splitlines() if line.startswith("|") for cell in line.split("|")]
    parts = [re.sub(r"^[*_>\d.\s]+", "", part).strip() for part in [*sentences(text), *cells]]
    return [(part, instead) for part in parts for order, instead in ORDERS.items() if order.search(part)]


def sentences(text: str) -> list[str]:
    """Sentences of running text and of lists; rows of tables are none."""
    lines = [line for line in prose(text).splitlines() if not line.startswith("|")]
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:\*|\d+\.) )", "\n".join(lines))
    parts = [part for block in blocks for part in re.split(r"(?<=[.?!:;])[*_]*\s+", " ".join(block.split()))]
    return [part for part in parts if len(part.split()) > 1]


@pytest.mark.parametrize("page", FOR_PEOPLE, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_a_page_has_no_word_that_crept_in(page: Path) -> None:
    assert crept_in(page.read_text()) == []


@pytest.mark.parametrize(
    "page",
    [
        page for page in FOR_PEOPLE if page != DOCS / "api.md"
    ],  # made of the first lines of docstrings: noun clauses
    ids=lambda page: str(page.relative_to(REPOSITORY)),
)
def test_a_page_has_no_odd_order(page: Path) -> None:
    assert oddly_ordered(page.read_text()) == []


@pytest.mark.parametrize("page", FOR_PEOPLE, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_sentences_are_short_and_mostly_active(page: Path) -> None:
    lengths = {sentence: len(sentence.split()) for sentence in sentences(page.read_text())}
    assert {s: n for s, n in lengths.items() if n > MOST_WORDS} == {}
    assert sum(lengths.values()) / len(lengths) <= MOST_ON_AVERAGE
    passive = [sentence for sentence in lengths if PASSIVE.search(sentence)]
    if page != ERRORS and len(lengths) >= FEWEST_SENTENCES:
        assert len(passive) / len(lengths) <= MOST_PASSIVE, passive


def test_no_message_of_the_code_has_a_word_or_an_order_that_crept_in() -> None:
    read = {(file, line): text for file in CODE for line, text in messages(file.read_text())}
    assert len(read) > 1500
    assert [(f"{file.relative_to(REPOSITORY)}:{line}", *odd) for (file, line), text in read.items()
            for odd in crept_in(text) + oddly_ordered(text)] == []  # fmt: skip


def test_no_docstring_of_a_public_name_has_a_word_that_crept_in() -> None:
    named = list(docstrings_of(*public()))
    assert len(named) > 600
    assert {"StateEngine.vacuum", "StateProcessor.erase_keys", "JobSavepoints.create", "VacuumReport"} <= {
        name for name, _ in named
    }
    assert [(name, *odd) for name, text in named for odd in crept_in(described(text))] == []


def test_fewer_and_fewer_docstrings_of_the_code_have_a_word_or_an_order_that_crept_in() -> None:
    """Lower the number when you mend some; it must not rise."""
    texts = [text for file in CODE for text in all_docstrings(file.read_text())]
    assert len(texts) > 3000
    assert sum(len(crept_in(text) + oddly_ordered(text)) for text in map(described, texts)) <= ODD_DOCSTRINGS


def test_classes_that_methods_of_the_engine_return_are_looked_at() -> None:
    returned = {
        cls
        for name, function in vars(StateEngine).items()
        if inspect.isfunction(function) and not name.startswith("_")
        for cls in classes_in(get_type_hints(inspect.unwrap(function)).get("return"))
    }
    assert {state_engine.StateProcessor, state_engine.JobPublished, state_engine.RunReport} <= returned
    assert returned <= set(public())


class Odd:
    """A class that is made anew.

    Example:
        >>> "upon"
        'upon'
    """

    def method(self) -> None:
        """It writes ``upon`` a
        table in place
        of a file.
        """

    @property
    def value(self) -> str:
        """Prior to this."""
        return ""

    def _own(self) -> None:
        """Whilst private."""


def test_a_word_in_a_docstring_is_noticed() -> None:
    noticed = [(name, word) for name, text in docstrings_of(Odd) for word, _ in crept_in(described(text))]
    assert noticed == [("Odd", "anew"), ("Odd.method", "in place of"), ("Odd.value", "Prior to")]


def test_messages_are_all_texts_but_docstrings() -> None:
    source = '''"""A text about this module."""
def f(x):
    """A text about f."""
    log.warning("job '%s': made anew", x)
    raise ValueError(f"{x} is no good thing, {x!r}")
'''
    assert list(messages(source)) == [(4, "job '%s': made anew"), (5, "x is no good thing, x")]
    assert [word for _, text in messages(source) for word, _ in crept_in(text)] == ["anew", "is no good"]
    assert crept_in("There is no good thing. It is no longer there.") == []


def test_words_and_long_sentences_are_noticed() -> None:
    assert [word for word, _ in crept_in("Whilst we wait.\n\n`whilst`\n\n```\nwhilst\n```\n")] == ["Whilst"]
    assert [word for word, _ in crept_in("Write it in\nplace of that.")] == ["in place of"]
    assert crept_in("He is a meanwhilster.") == []
    assert sentences("# Title\n\nOne is here. Two\nis here.\n\n* three is here\n* four is here\n\n| a | b c |") == [
        "One is here.", "Two is here.", "* three is here", "* four is here",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "odd",
    [
        "What each error means is in the catalogue.",
        "What was committed is kept; run again.",
        "* How many keys it has does not matter.",
        "It reads the file, whoever wrote it.",
        "The state follows, and so do the sinks.",
        "So is a topic of another root.",
        "Timers get no view, nor do states that a table shows.",
        "Only then does the watermark move.",
        "Where the query is your own, allow that.",
        "A map, of whose entries few change.",
        "Run again, for it is not known.",
        "This the engine does by itself.",
        "Beside the picture stands a record.",
        "Below each picture is its record.",
        "Whether it was committed is not known.",
        "Of a large base, it needs a few rows.",
        "Had it failed, nothing was committed.",
        "The column is to be declared.",
        "| state | Where it is open, rows are late. |",
    ],
)
def test_an_odd_order_is_noticed(odd: str) -> None:
    assert oddly_ordered(odd) != []


@pytest.mark.parametrize(
    "plain",
    [
        "What does a restore do to sinks, and when?",
        "## What is in the state",
        "What every shop has sold so far.",
        "* **What it is not.** It is not a database.",
        "So a crash costs only time.",
        "Only the newest row counts.",
        "Below the root there is a directory for each job.",
        "* the directory where machines keep copies, if they keep any",
        "These are the rules.",
        "| on_path | whether it is on the path |",
        "For each key it has a row.",
    ],
)
def test_a_plain_order_is_left_alone(plain: str) -> None:
    assert oddly_ordered(plain) == []


def test_every_order_of_the_list_is_tried() -> None:
    source = Path(__file__).read_text().partition("def test_an_odd_order_is_noticed")[0]
    tried = re.findall(r'^        "[*| ]*(.+)",$', source, re.MULTILINE)
    assert [order.pattern for order in ORDERS if not any(order.search(text) for text in tried)] == []


def test_the_passive_voice_is_noticed() -> None:
    assert PASSIVE.search("The row is not committed by it.")
    assert PASSIVE.search("Files were never taken back.")
    assert not PASSIVE.search("The row is there, and it needed time.")
