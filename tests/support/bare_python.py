"""A Python for executors that has what is installed, and nothing of this repository or of a test."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path


def bare_python(directory: Path) -> Path:
    """This environment's Python, but for what is installed as a link to this repository."""
    packages = sysconfig.get_path("purelib")
    script = directory / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec "{sys.executable}" -S "$@"\n')
    script.chmod(0o755)
    return script
