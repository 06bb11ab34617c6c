"""The site of the documentation builds without a warning, holds every public name, and loads nothing from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.api import GROUPS, MODULES
from state_engine import errors
from tests.docs.building import build, built_site
from tests.support.environments import REPOSITORY

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
