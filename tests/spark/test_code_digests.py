"""Digests of code and versions of jobs: what changes them, and what does not; without Spark."""

from __future__ import annotations

import importlib
import itertools
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from state_engine import StatefulJob, Types
from state_engine.core.errors import CodeVersionError
from state_engine.spark.code_digests import CodeDigests
from state_engine.spark.shipped_code import shipped

MODULE = '''
import re
from dataclasses import dataclass
from state_engine import MapFunction

RATES = {"eur": 1.1}
LIMIT = 10
PATTERN = re.compile("a+")
_CACHE = {}
_calls = 0


@dataclass
class Config:
    rate: int = 3


CONFIG = Config()


def helper(value):
    global _calls
    _calls += 1
    _CACHE[value] = value
    return value * CONFIG.rate + LIMIT * RATES["eur"] if PATTERN else 0


class Double(MapFunction):
    """Doubles."""

    names = ["a"]

    def __init__(self, by=2):
        self.by = by

    def map(self, value):
        # what it does
        return helper(value) * self.by
'''
Edit = tuple[str, str]
_names = itertools.count()


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ModuleType]]:
    """Writes the module with some edits, and loads it, or loads it again."""
    name = f"digested_{next(_names)}"
    file = tmp_path / f"{name}.py"
    monkeypatch.syspath_prepend(str(tmp_path))
    clock_s = itertools.count(1_700_000_000, 2)

    def run(*edits: Edit, loaded: bool = True) -> ModuleType:
        text = MODULE
        for before, after in edits:
            assert before in text
            text = text.replace(before, after)
        file.write_text(text)
        os.utime(file, (at_s := next(clock_s), at_s))
        importlib.invalidate_caches()
        if not loaded:
            return sys.modules[name]
        return importlib.reload(sys.modules[name]) if name in sys.modules else importlib.import_module(name)

    yield run
    sys.modules.pop(name, None)


def job(module: ModuleType, **given: Any) -> StatefulJob:
    job_of_module = StatefulJob("j", **given)
    job_of_module.from_collection([1], Types.INT()).map(module.Double(), output_type=Types.INT())
    return job_of_module


def digests(module: ModuleType) -> dict[str, str]:
    visited = CodeDigests(lambda name: name == module.__name__)
    visited.visit(module.Double())
    return visited.by_name


EDITS = {
    "a number in a method": ("* self.by", "* 3"),
    "a constant of the module": ("LIMIT = 10", "LIMIT = 11"),
    "a dict of the module": ('"eur": 1.1', '"eur": 1.2'),
    "a pattern": ("a+", "b+"),
    "a field of a global object": ("rate: int = 3", "rate: int = 4"),
    "a default": ("by=2", "by=3"),
    "a list of a class": ('names = ["a"]', 'names = ["b"]'),
    "a function that a method calls": ("_calls += 1", "_calls += 2"),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=list(EDITS))
def test_an_edit_that_is_loaded_is_another_version(load: Callable[..., ModuleType], edit: Edit) -> None:
    module = load()
    before, version = digests(module), job(module).code_version
    load(edit, loaded=False)
    assert (digests(module), job(module).code_version) == (before, version)
    load(edit)
    assert digests(module) != before
    assert job(module).code_version != version
    load()
    assert (digests(module), job(module).code_version) == (before, version)


def test_a_comment_is_another_source_and_the_same_code(load: Callable[..., ModuleType]) -> None:
    module = load()
    before, version = digests(module), job(module).code_version
    load(("# what it does", "# what else it does\n"))
    assert digests(module) == before
    assert job(module).code_version != version


def test_what_is_changed_by_hand_is_another_version(
    load: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = load()
    before, version = digests(module), job(module).code_version
    with monkeypatch.context() as patch:
        patch.setattr(module.Double, "map", lambda self, value: value)
        assert digests(module) != before
        assert job(module).code_version != version
    with monkeypatch.context() as patch:
        patch.setattr(module, "LIMIT", 99)
        assert digests(module) != before
        assert job(module).code_version != version
    assert (digests(module), job(module).code_version) == (before, version)


def test_much_data_costs_little(load: Callable[..., ModuleType]) -> None:
    module = load()
    large = [list(range(1_000_000)) for _ in range(3)]
    visited: list[Any] = []

    class Counted(CodeDigests):
        def visit(self, thing: Any) -> None:
            visited.append(thing)
            super().visit(thing)

    counted = Counted(lambda name: name == module.__name__)
    counted.visit(module.Double(by=large))
    assert f"{module.__name__}.Double.map" in counted.by_name
    assert len(visited) < 20_000


def test_what_functions_keep_is_no_code(load: Callable[..., ModuleType]) -> None:
    module = load()
    before, version = digests(module), job(module).code_version
    module.Double(5).map(1)  # fills a cache, counts its calls
    pickle.dumps(module.Double())  # leaves a mark in the class
    assert (digests(module), job(module).code_version) == (before, version)


def test_edited_before_anybody_asked(load: Callable[..., ModuleType]) -> None:
    module = load()
    load(("LIMIT = 10", "LIMIT = 11"), loaded=False)
    os.utime(str(module.__file__))
    stale = job(module).code_version  # the file cannot say any more what was loaded
    load(("LIMIT = 10", "LIMIT = 11"))
    assert job(module).code_version != stale


def test_a_stated_version_stands(load: Callable[..., ModuleType]) -> None:
    assert job(load(), code_version="v7").code_version == "v7"


def test_another_process_computes_the_same(load: Callable[..., ModuleType]) -> None:
    module = load()
    code = (
        f"import sys; sys.path.insert(0, {str(Path(str(module.__file__)).parent)!r}); import {module.__name__}\n"
        "from tests.spark import test_code_digests as t\n"
        f"m = sys.modules[{module.__name__!r}]; print([t.job(m).code_version, sorted(t.digests(m).items())])"
    )
    for seed in ("1", "2"):
        shown = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": seed},
        )  # fmt: skip
        assert shown.stdout.strip() == str([job(module).code_version, sorted(digests(module).items())])


def test_a_worker_with_other_code_refuses(load: Callable[..., ModuleType]) -> None:
    module = load()
    sent = shipped(module.Double(), module.Double(), what="the code")
    load(("LIMIT = 10", "LIMIT = 11"))  # as a worker that imported another version
    with pytest.raises(CodeVersionError, match=f"another version of it: {module.__name__}.LIMIT"):
        sent.unpacked()
    load()
    assert sent.unpacked().by == 2
    del sys.modules[module.__name__]
    Path(str(module.__file__)).unlink()
    importlib.invalidate_caches()
    with pytest.raises(CodeVersionError, match=f"cannot import it: No module named '{module.__name__}'"):
        sent.unpacked()
    load()
    assert sent.unpacked().by == 2
