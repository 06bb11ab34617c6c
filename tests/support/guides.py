"""Code blocks of the documentation, for tests that run them."""

from __future__ import annotations

import importlib
import re
import runpy
import shlex
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from pyspark import cloudpickle
from typer.testing import CliRunner

from state_engine.cli.main import app

DOCS = Path(__file__).parents[2] / "docs"
GUIDES = DOCS / "guides"
_FENCE = re.compile(r"^```(\w*)(?: +([^\n]*))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """A fenced block: its language, which may be empty, what stands behind that, and its text."""

    language: str
    options: str
    text: str

    @property
    def title(self) -> str:
        """The name of the file that the reader saves it as; empty where there is none."""
        titled = re.search(r'title="([^"]+)"', self.options)
        return titled[1] if titled else ""


def blocks_of(page: Path) -> list[Block]:
    """Every fenced block of a page, in order."""
    return [Block(*parts) for parts in _FENCE.findall(page.read_text())]


def fenced_blocks(guide: Path) -> list[tuple[str, str]]:
    """Language and text of every fenced block without options, in order."""
    return [(block.language, block.text) for block in blocks_of(guide) if not block.options]


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


class Reader:
    """Does what a page asks of its reader, in a directory: saves files, runs commands and examples, looks at outputs.

    A block with a title is saved under it; of a file of tests each test is run. Other Python blocks of a page run in
    order, in one module. Commands (``sh``) run in this process: ``statelake …`` and ``python file.py``; those of
    others are passed over. A command ends with 0, or as its remark says (``# ends with 1``). Every line of a ``text``
    block stands in the output of the block before it.
    """

    _PASSED_OVER = ("pip", "pytest", "dagster", "cd", "mkdir")

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self.directory, self._patch, self._output = directory, patch, ""
        self.blocks_run = 0
        patch.chdir(directory)
        patch.syspath_prepend(str(directory))
        patch.setattr(sys, "dont_write_bytecode", True)  # a file is rewritten faster than its time changes

    def read(self, page: Path, **names: Any) -> dict[str, Any]:
        """Do what one page says; the names of its module."""
        guide = ModuleType("guide")
        self._patch.setitem(sys.modules, guide.__name__, guide)
        cloudpickle.register_pickle_by_value(guide)  # workers cannot import it
        module: dict[str, Any] = vars(guide)
        module.update(names)
        try:
            for block in blocks_of(page):
                if block.options != "no-run":
                    self._do(block, page, module)
        finally:
            self._begin()
        return module

    def _do(self, block: Block, page: Path, module: dict[str, Any]) -> None:
        self._begin()
        if block.title:
            self._save(block)
        elif block.language == "python":
            self._output = _printed(lambda: exec(compile(block.text, str(page), "exec"), module))
        elif block.language == "sh":
            self._output = "".join(self._command(line) for line in block.text.splitlines())
        elif block.language == "text":
            missing = [line for line in block.text.splitlines() if _plain(line) not in _plain(self._output)]
            assert missing == [], f"{page.name}: {self._output}"
        else:
            return
        self.blocks_run += 1

    def _begin(self) -> None:
        """Forget the modules of the directory, as a new process would."""
        importlib.invalidate_caches()
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None)).startswith(f"{self.directory}/"):
                del sys.modules[name]

    def _save(self, block: Block) -> None:
        file = self.directory / block.title
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block.text)
        if file.name.startswith("test_"):
            tests = [test for name, test in runpy.run_path(str(file)).items() if name.startswith("test_")]
            assert tests, f"{block.title} has no tests"
            self._output = _printed(lambda: [test() for test in tests])

    def _command(self, line: str) -> str:
        command, _, remark = line.partition("  # ")
        program, *arguments = shlex.split(command)
        if program in self._PASSED_OVER:
            return ""
        if program == "python":
            self._patch.setattr(sys, "argv", arguments)
            return _printed(lambda: runpy.run_path(arguments[0], run_name="__main__"))
        assert program == "statelake", line
        self._begin()
        done = CliRunner().invoke(app, arguments)
        ends_with = re.match(r"ends with (\d)", remark)
        assert done.exit_code == int(ends_with[1] if ends_with else 0), (line, done.output, done.exception)
        return done.output


def _printed(act: Any) -> str:
    output = StringIO()
    with redirect_stdout(output):
        act()
    return output.getvalue()


def _plain(text: str) -> str:
    """A text without its layout."""
    return " ".join(re.sub(r"[│┃┏┓┗┛┡┩╇━─┼┴┬├┤└┘]+", " ", text).split())
