"""A directory or file that nobody may write to, root included."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def read_only(path: Path) -> Iterator[None]:
    """Forbid writing to what is there: by its mode, or for root, who may write anyway, by a mount of it onto itself."""
    if os.geteuid():
        mode = path.stat().st_mode
        path.chmod(mode & ~0o222)
        try:
            yield
        finally:
            path.chmod(mode)
        return
    if subprocess.run(["mount", "--bind", path, path], check=False).returncode:
        pytest.skip("root may not mount here")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", path], check=True)
        yield
    finally:
        subprocess.run(["umount", path], check=True)
