"""New environments with the wheel of this repository in them.

They get what the wheel requires as links to the packages of the environment of these tests: no network is needed, and a
dependency that is not declared is not there.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
import venv
from collections.abc import Collection
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

REPOSITORY = Path(__file__).parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


def built_wheel(directory: Path) -> Path:
    """The wheel of this repository, built into a directory."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, timeout=120)
    (wheel,) = directory.glob("*.whl")
    return wheel


def environment_of(wheel: Path, home: Path, extras: Collection[str] = ()) -> Path:
    """The interpreter of a new environment with a wheel and what it requires, with some of its extras."""
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin/python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python), "install"]
    subprocess.run([*pip, "--quiet", "--no-index", "--no-deps", str(wheel)], check=True, timeout=120)
    (site,) = home.glob("lib/python*/site-packages")
    wanted = [*PROJECT["dependencies"], *(r for e in extras for r in PROJECT["optional-dependencies"][e])]
    for name in _required(wanted):
        _link(metadata.distribution(name), site, python)
    return python


def _required(requirements: list[str]) -> set[str]:
    """Names of all distributions that these requirements bring, on this machine."""
    looked_at: set[tuple[str, str]] = set()
    waiting = [(Requirement(text), {""}) for text in requirements]
    while waiting:
        wanted, extras = waiting.pop()
        if wanted.marker is not None and not any(wanted.marker.evaluate({"extra": e}) for e in extras):
            continue
        inside = {"", *wanted.extras}
        new = {(wanted.name.lower(), extra) for extra in inside} - looked_at
        looked_at |= new
        if new:
            waiting += [(Requirement(text), inside) for text in metadata.requires(wanted.name) or ()]
    return {name for name, _ in looked_at}


def _link(distribution: metadata.Distribution, site: Path, python: Path) -> None:
    for top in {file.parts[0] for file in distribution.files or () if file.parts[0] != ".."}:
        link = site / top
        if not link.exists() and top != "__pycache__":
            link.symlink_to(str(distribution.locate_file(top)))
    for command in distribution.entry_points.select(group="console_scripts"):
        script = python.with_name(command.name)
        function = command.attr.partition(".")[0]
        script.write_text(
            f"#!{python}\nimport sys\nfrom {command.module} import {function}\nsys.exit({command.attr}())\n"
        )
        script.chmod(0o755)
