"""The changelog has the form of Keep a Changelog, and a section for the version that the package has."""

from __future__ import annotations

import re
import tomllib
from datetime import date
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
TEXT = (REPOSITORY / "CHANGELOG.md").read_text()
KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]


def test_versions_stand_newest_first_below_what_is_unreleased() -> None:
    unreleased, *released = re.findall(r"^## (.*)$", TEXT, re.MULTILINE)
    assert unreleased == "Unreleased"
    parts = [re.fullmatch(r"(\d+)\.(\d+)\.(\d+) - (\d{4}-\d\d-\d\d)", title) for title in released]
    versions = [tuple(int(n) for n in part.groups()[:3]) for part in parts if part is not None]
    assert len(versions) == len(released) > 0
    assert versions == sorted(set(versions), reverse=True)
    assert all(date.fromisoformat(part[4]) for part in parts if part is not None)


def test_each_kind_of_change_stands_once_a_version_in_one_order() -> None:
    for section in re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]:
        kinds = re.findall(r"^### (.*)$", section, re.MULTILINE)
        assert kinds == [kind for kind in KINDS if kind in kinds], section.partition("\n")[0]


def test_the_version_of_the_package_has_a_section() -> None:
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    assert f"\n## {version} - " in TEXT
