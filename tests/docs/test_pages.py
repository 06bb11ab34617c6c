"""The pages on writing jobs, concepts, questions and other systems do what they say: a test reads each of them."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from docs import drawings
from docs.api import GROUPS, MODULES
from state_engine import errors
from tests.docs.building import build, built_site
from tests.support.environments import REPOSITORY
from tests.support.guides import DOCS, Reader, blocks_of
from tests.ui import pictures

FOLDERS = ("writing", "concepts", "questions", "from", "reference")
PAGES = [page for folder in FOLDERS for page in sorted((DOCS / folder).glob("*.md"))]
WITH_EXAMPLES = [page for page in PAGES if any(b.language == "python" for b in blocks_of(page))]
ON_SPARK = {
    page for page in WITH_EXAMPLES if "StateEngine(" in page.read_text() or "```sh" in page.read_text()
}
SET_BY_PAGES = ("spark.sql.streaming.stateStore.providerClass", "spark.sql.shuffle.partitions")
"""Options of the shared session that a page changes."""


def name_of(page: Path) -> str:
    return f"{page.parent.name}-{page.stem}"


@pytest.mark.parametrize("page", [p for p in WITH_EXAMPLES if p not in ON_SPARK], ids=name_of)
def test_a_page(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(tmp_path, monkeypatch)
    reader.read(page)
    assert reader.blocks_run >= 1


@pytest.mark.parametrize("page", sorted(ON_SPARK), ids=name_of)
def test_a_page_that_needs_spark(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    before = {name: spark.conf.get(name, None) for name in SET_BY_PAGES}
    reader = Reader(tmp_path, monkeypatch)
    try:
        reader.read(page)
    finally:
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)
    assert reader.blocks_run >= 1


@pytest.mark.parametrize("name", drawings.PICTURES)
def test_a_picture_is_drawn_by_the_code_of_today(name: str) -> None:
    assert drawings.file_of(name).read_text() == drawings.drawn(name), "run: python -m docs.drawings"


WITH_PICTURES = [*DOCS.rglob("*.md"), DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md"]


def test_every_picture_is_shown() -> None:
    texts = "".join(page.read_text() for page in WITH_PICTURES)
    files = sorted(path.name for path in (DOCS / "pictures").iterdir())
    assert [file for file in files if f"pictures/{file}" not in texts] == []


SCREENSHOTS = sorted((DOCS / "pictures").glob("*.png"))


def test_a_screenshot_is_the_one_whose_page_was_recorded() -> None:
    """`make test-ui` compares the record with the page of today; here no picture changes without it."""
    digests = {path.stem: pictures.record(path.stem)[0] for path in pictures.SHOWN.glob("*.txt")}
    assert digests == {path.stem: pictures.digest_of(path) for path in SCREENSHOTS}


@pytest.mark.parametrize("path", SCREENSHOTS, ids=lambda path: path.stem)
def test_a_screenshot_is_small_and_its_alternative_text_says_what_it_shows(path: Path) -> None:
    assert path.stat().st_size < pictures.MOST_BYTES
    texts = [re.findall(rf"!\[([^]]*)\]\([^)]*{path.name}\)", page.read_text()) for page in WITH_PICTURES]
    assert all(len(text.split()) >= 8 for of_page in texts for text in of_page)


@pytest.mark.parametrize("page", sorted((DOCS / "writing").glob("[a-z]*.md")), ids=name_of)
def test_a_page_on_writing_has_a_picture_and_an_example(page: Path) -> None:
    assert re.search(r"!\[[^\]]+\]\(\.\./pictures/[\w-]+\.svg\)", page.read_text())
    assert page in WITH_EXAMPLES


QUESTIONS = (
    "How do I install it into my project?",
    "Which function builds the Dagster assets?",
    "What does order_by do?",
    "When does a timer fire?",
    "Why was my row refused?",
    "How do I test my function?",
    "How do I get the current state into a table?",
    "What happens to late rows?",
    "Can two jobs share a source?",
    "How do I alert?",
)


def test_each_question_has_a_page_with_its_title_and_an_example() -> None:
    pages = {p.read_text().partition("\n")[0]: p for p in (DOCS / "questions").glob("[a-z]*.md")}
    assert sorted(pages) == sorted(f"# {question}" for question in QUESTIONS)
    overview = (DOCS / "questions" / "README.md").read_text()
    assert all(f"({page.name})" in overview and page in WITH_EXAMPLES for page in pages.values())


LOADED = re.compile(
    r'<(?:script|img|iframe|source)\b[^>]*\bsrc="(?:https?:)?//[^"]*|<link\b[^>]*\bhref="(?:https?:)?//[^"]*'
)
"""What a browser would fetch from another host."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_site(tmp_path_factory.mktemp("docs") / "site")


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 100
    assert [(page.name, asset) for page in pages for asset in LOADED.findall(page.read_text())] == []


def test_every_public_name_has_an_entry(site: Path) -> None:
    pages = "".join(page.read_text() for page in (site / "reference" / "names").glob("*.html"))
    names = [("state_engine", name) for _, group in GROUPS.values() for name in group]
    names += [(module, name) for module, group in MODULES.items() for name in group]
    assert [name for name in names if f'id="{".".join(name)}"' not in pages] == []


def test_every_error_has_an_anchor(site: Path) -> None:
    page = (site / "reference" / "errors.html").read_text()
    assert [name for name in errors.__all__ if f'id="{name.lower()}"' not in page] == []


def test_fences_are_code(site: Path) -> None:
    assert [page for page in site.rglob("*.html") if "```" in page.read_text()] == []


def test_lists_are_lists(site: Path) -> None:
    assert [page for page in site.rglob("*.html") if re.search(r"<p>[^<>]*\n[-*] ", page.read_text())] == []


def test_a_broken_link_and_a_page_without_a_place_end_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Here\n\n[there](there.md)\n\n[below](#below)\n")
    (tmp_path / "docs" / "alone.md").write_text("# Alone\n")
    whole = (REPOSITORY / "mkdocs.yml").read_text()
    config = whole.partition("\nnav:")[0] + "\nnav:\n  - Here: index.md\n"
    (tmp_path / "mkdocs.yml").write_text(re.sub(r"(?m)^hooks:.*$", "", config))
    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode != 0
    assert "there.md" in done.stderr
    assert "#below" in done.stderr
    assert "alone.md" in done.stderr


STEPS = sorted((DOCS / "tutorial").glob("[0-9]*.md"))
IN_MEMORY = STEPS[:6]


def test_there_are_twelve_steps_and_each_leads_to_the_next() -> None:
    assert len(STEPS) == 12
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
