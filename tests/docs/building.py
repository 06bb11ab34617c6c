"""Builds the site of the documentation, for tests of its files and of its pages in a browser."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.environments import REPOSITORY


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Build strictly; without --quiet, which would hide warnings from --strict, too."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(site)]
    environ = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(command, cwd=REPOSITORY, env=environ, capture_output=True, text=True, timeout=240)


def built_site(directory: Path) -> Path:
    """The site of this repository, built into a directory without a warning."""
    done = build(REPOSITORY / "mkdocs.yml", directory)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    return directory
