"""The pages on writing jobs, concepts, questions and other systems do what they say: a test reads each of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from docs import drawings
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
