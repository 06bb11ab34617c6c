"""The site of the documentation builds without a warning, holds every public name, and loads nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.api import GROUPS, MODULES
from tests.support.environments import REPOSITORY

LOADED = re.compile(
    r'<(?:script|img|iframe|source)\b[^>]*\bsrc="(?:https?:)?//[^"]*|<link\b[^>]*\bhref="(?:https?:)?//[^"]*'
)
"""What a browser would fetch from another host."""


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "-f",
        str(config),
        "-d",
        str(site),
    ]
    environ = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(command, cwd=REPOSITORY, env=environ, capture_output=True, text=True, timeout=240)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("docs") / "site"
    done = build(REPOSITORY / "mkdocs.yml", directory)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return directory


@pytest.mark.slow
def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 100
    assert [(page.name, asset) for page in pages for asset in LOADED.findall(page.read_text())] == []


def test_every_public_name_has_an_entry(site: Path) -> None:
    pages = "".join(page.read_text() for page in (site / "reference" / "names").glob("*.html"))
    names = [("state_engine", name) for _, group in GROUPS.values() for name in group]
    names += [(module, name) for module, group in MODULES.items() for name in group]
    assert [name for name in names if f'id="{".".join(name)}"' not in pages] == []


def test_fences_are_code(site: Path) -> None:
    assert [page for page in site.rglob("*.html") if "```" in page.read_text()] == []
