"""What ``make docs`` does besides what mkdocs does: plain fences, and pages of the public names.

A page for each group of ``docs.api`` is made as the site is built, from the docstrings; nothing of it is kept in the
repository.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parents[1]))  # mkdocs loads this file by its path

from docs.api import GROUPS, MODULES, shown_members


def on_files(files: Files, *, config: Any) -> Files:
    """The files of the site, with a page for each group of public names."""
    for path, text in name_pages():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The text of a page as mkdocs reads it.

    It takes no mark of examples that no test runs, and wants an empty line between a paragraph and a list.
    """
    fenced = re.sub(r"(?m)^```python no-run$", "```python", markdown)
    parts = re.split(r"(^```.*?^```$)", fenced, flags=re.DOTALL | re.MULTILINE)
    return "".join(
        part if part.startswith("```") else _LIST_BELOW_TEXT.sub(r"\1\n\n", part) for part in parts
    )


_LIST_BELOW_TEXT = re.compile(r"(?m)^(?!\d+\. |[-*|#>] |\s)(.+)\n(?=[-*] |1\. )")


def name_pages() -> Iterator[tuple[str, str]]:
    """Path and text of every page of public names."""
    for title, (about, names) in GROUPS.items():
        yield f"reference/names/{_slug(title)}.md", _page(title, about, "state_engine", names)
    for module, names in MODULES.items():
        about = f"Names of the module `{module}`."
        yield f"reference/names/{_slug(module)}.md", _page(f"`{module}`", about, module, names)


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _page(title: str, about: str, module: str, names: list[str]) -> str:
    return "\n\n".join([f"# {title}", about, *(_entry(module, name) for name in names)]) + "\n"


def _entry(module: str, name: str) -> str:
    members = shown_members(name, getattr(import_module(module), name))
    return f"::: {module}.{name}\n    options:\n      members: {json.dumps(members)}"
