"""The error catalogue has every error class, with its cause, what was kept, and the way out."""

from __future__ import annotations

import copy
import os
import pickle
import re
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from state_engine import errors
from tests.support.guides import DOCS

TEXT = (DOCS / "reference" / "errors.md").read_text()
ENTRIES = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE))
CLASSES = [name for name in errors.__all__ if name != "StatelakeError"]


def test_every_error_has_an_entry_and_every_entry_is_an_error() -> None:
    assert sorted(ENTRIES) == sorted([*CLASSES, "StatelakeError"])


@pytest.mark.parametrize("name", CLASSES)
def test_an_entry_says_cause_what_was_kept_and_the_way_out(name: str) -> None:
    for part in ("Cause", "Kept", "Way out"):
        said = re.search(rf"^\* \*\*{part}:\*\* (\S.{{14,}})", ENTRIES[name], re.MULTILINE)
        assert said, f"{name} lacks '{part}'"


@pytest.mark.parametrize("name", CLASSES)
def test_an_entry_names_the_class_that_it_is_a_kind_of(name: str) -> None:
    (base,) = [b.__name__ for b in getattr(errors, name).__bases__ if issubclass(b, errors.StatelakeError)]
    linked = re.search(r"^An? \[(\w+)\]\(#(\w+)\)\.$", ENTRIES[name], re.MULTILINE)
    assert (linked[1] if linked else "StatelakeError") == base
    assert linked is None or linked[2] == base.lower()


@pytest.mark.internal_errors
@pytest.mark.parametrize("name", [*CLASSES, "StatelakeError"])
def test_a_note_below_every_message_links_its_entry(name: str) -> None:
    kind = getattr(errors, name)
    made = (
        kind(job="sales", operator="total", cause="it is broken")
        if name == "UserFunctionError"
        else kind("broken")
    )
    entry = f"{name}: its causes and ways out are in docs/reference/errors.md#{name.lower()}"
    assert traceback.format_exception_only(made)[-1] == entry + "\n"


def test_a_copy_has_one_note() -> None:
    error = errors.SourceError("broken")
    for copied in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert copied.__notes__ == error.__notes__


def test_a_class_of_a_test_links_the_entry_of_the_class_that_it_is_a_kind_of() -> None:
    class Gone(errors.SourceError):
        """Not in the catalogue."""

    assert Gone("gone").__notes__ == errors.SourceError("gone").__notes__


def test_a_command_that_fails_names_the_entry(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from state_engine.cli.main import main; main()", "checkpoints", "sales"]
    environ = os.environ | {"PYTHONPATH": str(DOCS.parent)}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, env=environ)
    assert done.returncode == 1
    (linked,) = re.findall(
        r"(\w+): its causes and ways out are in docs/reference/errors\.md#(\w+)", done.stderr
    )
    assert linked == ("ConfigurationError", "configurationerror")
    assert linked[0] in ENTRIES
