"""A plugin of pytest that has small files of bases copied, too: ``pytest -p tests.support.forced_copies …``.

With it, tests that are about other things show that they go on as they do, whether or not there are local copies. It
reaches subtasks that run in the test's own process. ``forced`` is the same for one test.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from state_engine.storage.state import copy_directory, local_copies, sorted_blocks
from state_engine.storage.state.copy_directory import LocalCopies


@contextmanager
def forced(directory: Path, *, block_rows: int = 2) -> Iterator[LocalCopies]:
    """Every file of a base is copied into a directory, whatever its size, and its copy is read, whatever is wanted."""
    copies = LocalCopies(str(directory))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_copies, "LARGE_ROWS", 0)
        patch.setattr(local_copies, "_FEW", 0)
        patch.setattr(sorted_blocks, "BLOCK_ROWS", block_rows)
        patch.setattr(copy_directory, "_LEFT_FREE", 0)
        patch.setenv("STATELAKE__LOCAL_COPIES__DIRECTORY", str(directory))
        yield copies


@pytest.fixture(scope="session", autouse=True)
def _forced_copies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Into one directory for all tests of the run."""
    with forced(tmp_path_factory.mktemp("copies")):
        yield
