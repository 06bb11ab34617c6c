"""Commands and calls that a message, a help or a sentence names exist, and take the options that it gives."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest

from state_engine import JobSavepoints, StateEngine, StateProcessor
from tests.docs.test_blocks import PAGES, REPOSITORY, SHELL, parse
from tests.docs.test_blocks import commands as lines
from tests.support.commands import every_command
from tests.support.guides import blocks_of

ROOTS = ("state_engine", "orchestration", "jobs", "examples")
PLACEHOLDER = "1"
"""Stands for what a message fills in: a number, a name and a path."""
NAMED = re.compile(r"(?<![\w./-])statelake ((?:[a-z][\w-]*|--[\w-]+|[A-Z][A-Z_]*|\d+|<\w+>)(?: +\S+)*)")
PROGRAM = re.compile(r"(?<![\w./-])statelake ([a-z][\w-]*)")
PROSE = {"again", "for", "in", "there"}
"""Words that follow the name of the program or package, as in "install statelake again"."""
OF_ALL = {"--csv", "--json", "--help"}
"""Options of all commands: tests/cli/test_forms_of_commands.py runs all with each form, and the help is Click's."""
MADE = re.compile(r"(?:^|`)make ([a-z][a-z-]*)(?=`|$)")
CALLED = re.compile(r"(?<![\w.])engine\.(?:(savepoints|state_processor)\([^()]*\)\.)?(\w+)\(([^()]*)\)")


def texts_of(path: Path) -> Iterator[str]:
    """Every text of a module, with placeholders for what it fills in; of a page, each piece of code in a sentence."""
    if path.suffix == ".md":
        prose = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
        yield from re.findall(r"`([^`]+)`", prose)
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            parts = (v.value if isinstance(v, ast.Constant) else PLACEHOLDER for v in node.values)
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@cache
def texts() -> list[tuple[str, str]]:
    modules = [path for root in ROOTS for path in sorted((REPOSITORY / root).rglob("*.py"))]
    return [
        (str(p.relative_to(REPOSITORY)), " ".join(t.split())) for p in [*PAGES, *modules] for t in texts_of(p)
    ]


@cache
def all_commands() -> dict[str, Any]:
    return every_command()


def words_of(text: str) -> list[str]:
    """The words of a command at the beginning of a text: its name, options with values, and arguments in capitals."""
    known = all_commands()
    words: list[str] = []
    for word in text.split(" "):
        bare = re.split(r"[`'\"):;,]|\.$|\.\s", word)[0]
        path = " ".join([*words, bare])
        is_name = any(name == path or name.startswith(f"{path} ") for name in known)
        is_argument = re.fullmatch(r"[A-Z][A-Z_]*|[\w.:-]*1[\w.:-]*|--[\w-]+(=\S+)?|<\w+>|\d+", bare)
        is_value = bool(words) and takes_value(words)
        if not bare or not (is_name or (words and (is_argument or is_value))):
            break
        words.append(bare)
        if bare != word:
            break
    return words


def takes_value(words: list[str]) -> bool:
    """Whether the last word is an option with a value."""
    command = next(
        (c for name, c in all_commands().items() if words[: len(name.split())] == name.split()), None
    )
    options = command.params if command is not None else []
    return any(words[-1] in one.opts and not getattr(one, "is_flag", False) for one in options)


def commands() -> Iterator[tuple[str, tuple[str, ...]]]:
    for place, text in texts():
        for named in NAMED.finditer(text):
            if words := words_of(named[1]):
                yield place, tuple(words)


def unknown_commands() -> Iterator[tuple[str, str]]:
    """What follows the program's name and is no command: a word of prose is in ``PROSE``."""
    first = {name.split(" ")[0] for name in all_commands()}
    for place, text in texts():
        for word in PROGRAM.findall(text):
            if word not in first | PROSE:
                yield place, word


Uses = set[tuple[str, str]]
"""A command and an option of it, or nothing for the command alone."""


def uses_in(words: Sequence[str]) -> Uses:
    """The first command in some words, with its options."""
    known = all_commands()
    for start in range(len(words)):
        for size in (2, 1):
            name = " ".join(words[start : start + size])
            if name in known:
                options = [word.split("=")[0] for word in words[start + size :] if word.startswith("--")]
                return {(name, ""), *((name, option) for option in options)}
    return set()


def named_uses() -> Uses:
    """Commands and options that texts and blocks of pages name."""
    in_blocks = [
        line
        for page in PAGES
        for block in blocks_of(page)
        if block.language in SHELL
        for line in lines(block)
    ]
    in_texts = [list(words) for _, words in commands()]
    return set[tuple[str, str]]().union(
        *map(uses_in, [line[1:] for line in in_blocks if line[0] == "statelake"] + in_texts)
    )


def tried_uses() -> Uses:
    """Commands and options that tests, and the Makefile before them, run: in texts, lists and arguments of calls."""
    made = re.findall(r"\$\(BIN\)/statelake (.+)", (REPOSITORY / "Makefile").read_text())
    tried = set[tuple[str, str]]().union(*(uses_in(line.split()) for line in made))
    for path in sorted((REPOSITORY / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                tried |= uses_in(node.value.split())
            elif isinstance(node, ast.List | ast.Tuple):
                tried |= uses_in([str(getattr(one, "value", PLACEHOLDER)) for one in node.elts])
            elif isinstance(node, ast.Call):
                tried |= uses_in(
                    [ast.unparse(node.func), *(str(getattr(one, "value", PLACEHOLDER)) for one in node.args)]
                )
    return tried


def problem(words: tuple[str, ...]) -> str:
    """Why the command does not take these words; what a sentence leaves out is no problem."""
    given = [PLACEHOLDER if re.fullmatch(r"[A-Z][A-Z_]*|<\w+>", word) else word for word in words]
    try:
        parse(given)
    except (click.MissingParameter, click.exceptions.NoArgsIsHelpError):
        return ""
    except click.UsageError as error:
        text = error.format_message()
        return "" if text.endswith("requires an argument.") else text
    return ""


def test_every_command_that_a_text_names_is_taken_by_the_command_line() -> None:
    named = set(commands())
    assert len({words for _, words in named}) > 60
    assert {(place, words, why) for place, words in named if (why := problem(words))} == set()


def test_a_word_behind_the_program_is_a_command() -> None:
    assert set(unknown_commands()) == set()


def test_every_command_and_option_that_a_text_names_is_run_by_a_test() -> None:
    named = {(name, option) for name, option in named_uses() if option not in OF_ALL}
    assert len(named) > 60
    assert named - tried_uses() == set()


def test_a_command_that_is_not_there_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "to repair it run statelake mend JOB, or statelake restore JOB"
    monkeypatch.setattr("tests.docs.test_named_commands.texts", lambda: [("here", text)])
    assert [*unknown_commands()] == [("here", "mend")]
    for text in (
        "restore sums --try",
        "branch compare sums 1 --limit 3",
        "savepoint make",
        "rescale JOB --to 3",
    ):
        assert problem(tuple(text.split())), text
    assert words_of("restore JOB 1, which drops them") == ["restore", "JOB", "1"]
    assert words_of("doctor says what is missing") == ["doctor"]


def test_every_target_of_make_that_a_text_names_is_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    named = {(place, m[1]) for place, text in texts() for m in MADE.finditer(text)}
    assert len({target for _, target in named}) > 5
    assert {(place, target) for place, target in named if target not in targets} == set()


def test_every_call_of_an_engine_that_a_text_names_is_one() -> None:
    called = {(place, m[1] or "", m[2], m[3]) for place, text in texts() for m in CALLED.finditer(text)}
    assert len({name for _, _, name, _ in called}) > 15
    kinds = {"": StateEngine, "savepoints": JobSavepoints, "state_processor": StateProcessor}
    wrong = []
    for place, of, name, arguments in called:
        method = getattr(kinds[of], name, None)
        options = re.findall(r"(?:^|, )(\w+)=", arguments)
        if method is None or (callable(method) and set(options) - {*inspect.signature(method).parameters}):
            wrong.append((place, of, name, arguments))
    assert wrong == []
