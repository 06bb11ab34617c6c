"""The tutorial runs from beginning to end: its files, tests, commands and outputs."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.guides import DOCS, Reader, blocks_of

STEPS = sorted((DOCS / "tutorial").glob("[0-9]*.md"))
IN_MEMORY = STEPS[:6]


def test_there_are_ten_steps_and_each_leads_to_the_next() -> None:
    assert len(STEPS) == 10
    overview = (DOCS / "tutorial" / "README.md").read_text()
    assert all(f"]({step.name})" in overview for step in STEPS)
    assert all(f"]({after.name})" in step.read_text() for step, after in pairwise(STEPS))


@pytest.mark.parametrize("step", IN_MEMORY, ids=lambda step: step.stem)
def test_a_step_in_memory(step: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(tmp_path, monkeypatch)
    reader.read(step)
    assert reader.blocks_run >= 2


def test_all_steps_in_one_directory(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader(tmp_path, monkeypatch)
    for step in STEPS:
        reader.read(step)
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["inbox", "state", "tables"]


@pytest.mark.parametrize("step", STEPS[1:], ids=lambda step: step.stem)
def test_highlighted_lines_are_those_that_changed(step: Path) -> None:
    before = next(text for s in reversed(STEPS[: STEPS.index(step)]) if (text := job_of(s)[1]))
    options, after = job_of(step)
    if after:
        assert lines_of(options) == changed(before, after)


def job_of(step: Path) -> tuple[str, str]:
    """Options and text of the block that is saved as the job; empty where a step leaves the job as it is."""
    for block in blocks_of(step):
        if block.title == "orders.py":
            return block.options, block.text
    return "", ""


def lines_of(options: str) -> str:
    highlighted = re.search(r'hl_lines="([^"]+)"', options)
    return highlighted[1] if highlighted else ""


def changed(before: str, after: str) -> str:
    """The lines of a text that another one has not, as mkdocs takes them: ``6-16 21``; blank lines do not count."""
    lines = after.splitlines()
    old = before.splitlines()
    numbers: list[int] = []
    for tag, _, _, first, last in SequenceMatcher(None, old, lines, autojunk=False).get_opcodes():
        numbers += [n + 1 for n in range(first, last) if tag != "equal" and lines[n].strip()]
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
