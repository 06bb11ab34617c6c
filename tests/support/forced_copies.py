"""A plugin of pytest that has small files of bases copied, too: ``pytest -p tests.support.forced_copies …``.

With it, tests that are about other things show that they go on as they do, whether or not there are local copies.
``forced`` is the same for one test.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from state_engine.machine.settings import LocalCopySettings
from state_engine.storage.state.copy_directory import CopyLimits, LocalCopies


@contextmanager
def forced(directory: Path, *, block_rows: int = 2) -> Iterator[LocalCopies]:
    """Every file of a base is copied into a directory, whatever its size, and its copy is read, whatever is wanted."""
    limits = CopyLimits(least_rows=0, block_rows=block_rows, least_blocks=0, left_free=0)
    copies = LocalCopies(str(directory), limits=limits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalCopySettings, "described", lambda _: copies)
        yield copies


@pytest.fixture(scope="session", autouse=True)
def _forced_copies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Into one directory for all tests of the run."""
    with forced(tmp_path_factory.mktemp("copies")):
        yield
