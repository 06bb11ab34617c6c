"""What executors are sent; that they can work with it is shown by ``test_executors``."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from state_engine.core.errors import SetupError
from state_engine.runtime.shipping import archived


def imported(archive: Path, statement: str) -> str:
    """What a Python prints that has the archive and the libraries, but no link to this repository."""
    added = [str(archive), sysconfig.get_path("purelib")]
    code = f"import sys; sys.path += {added}; {statement}"
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_a_package_can_be_imported_from_its_archive(tmp_path: Path) -> None:
    archive = archived("state_engine", tmp_path)
    found = imported(
        archive, "from state_engine.core.names import check_name as c; print(c.__module__, c('ab', what=''))"
    )
    assert found == "state_engine.core.names ab"


def test_a_module_of_one_file_can_be_imported_from_its_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "myjobs.py").write_text("NAME = 'mine'\n")
    (tmp_path / "notes.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    archive = archived("myjobs", tmp_path)
    assert imported(archive, "import myjobs; print(myjobs.NAME)") == "mine"
    with pytest.raises(subprocess.CalledProcessError):
        imported(archive, "import notes")


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="no Python package 'nowhere' here"):
        archived("nowhere", tmp_path)
