"""Pages of reference: commands, settings, tables and performance devices are those of the code."""

from __future__ import annotations

import copy
import os
import pickle
import re
import subprocess
import sys
import traceback
from pathlib import Path

import pyarrow as pa
import pytest

from docs import commands
from state_engine import errors
from state_engine.core.checkpoints.checkpoint_kind import CheckpointKind
from state_engine.machine.settings import load
from state_engine.queries.history_views import CHECKPOINTS, KEY_GROUPS, SINKS, SOURCES
from state_engine.storage.layout import (
    CHECKPOINTS_SCHEMA,
    DEAD_LETTERS_SCHEMA,
    OPERATOR_STATE_SCHEMA,
    WRITE_ID,
    changelog_schema,
)
from state_engine.storage.state.base import BASE_PARTITIONS, base_schema
from tests.support.guides import DOCS

TABLES = (DOCS / "reference" / "tables.md").read_text()
SETTINGS = (DOCS / "reference" / "settings.md").read_text()
A_STATE = {"total": pa.int64()}
COLUMNS = {
    "`checkpoints`": CHECKPOINTS.names,
    "`sources`": SOURCES.names,
    "`sinks`": SINKS.names,
    "`key_groups`": KEY_GROUPS.names,
    "Table `checkpoints`": CHECKPOINTS_SCHEMA.names,
    "Table `operator_state`": [*OPERATOR_STATE_SCHEMA.names, WRITE_ID.name],
    "Table `dead_letters`": [*DEAD_LETTERS_SCHEMA.names, WRITE_ID.name],
    "Table of changes of an operator": [*changelog_schema(pa.string(), A_STATE).names, WRITE_ID.name],
    "Table of bases of an operator": [*base_schema(pa.string(), A_STATE).names, *BASE_PARTITIONS.names],
}
"""By heading, the columns that the section must have."""


def test_the_page_of_commands_is_written_from_the_code_of_today() -> None:
    assert commands.PAGE.read_text() == commands.page(), "a command changed; run: python -m docs.commands"


def test_the_settings_are_those_of_the_code_with_their_defaults(tmp_path: Path) -> None:
    written = dict(re.findall(r"^\| `([a-z_.]+)` \| ([^|]*?) \|", SETTINGS, re.MULTILINE))
    rows = {
        row.key: row.value.removeprefix(f"{tmp_path}/") for row in load(environ={}, directory=tmp_path).rows()
    }
    assert written == {key: _shown(value) for key, value in rows.items()}


def _shown(value: str) -> str:
    return {"": "empty", "not set": "not set"}.get(value, f"`{value}`")


@pytest.mark.parametrize("heading", COLUMNS)
def test_a_table_has_the_columns_of_the_code(heading: str) -> None:
    section = re.search(rf"^### {re.escape(heading)}\n(.*?)(?=^##|\Z)", TABLES, re.DOTALL | re.MULTILINE)
    assert section
    first_cells = "".join(re.findall(r"^\| ([^|]*) \|", section[1], re.MULTILINE))
    columns = [name.replace("<state>", "total") for name in re.findall(r"`([^`]+)`", first_cells)]
    assert sorted(columns) == sorted(COLUMNS[heading])


def test_all_kinds_of_rows_are_named() -> None:
    assert all(f"`{kind}`" in TABLES for kind in CheckpointKind)


PAGE = (DOCS / "performance_devices.md").read_text()
ROOT = DOCS.parent


def devices() -> list[list[str]]:
    """Cells of each row that describes a device."""
    rows = [re.split(r" \| ", line.strip("| ")) for line in PAGE.splitlines() if line.startswith("| ")]
    return [cells for cells in rows if len(cells) == 5 and cells[0] != "Device, module"]


def test_modules_and_tests_of_all_devices_exist() -> None:
    assert len(devices()) >= 20
    for device, _, _, _, test in devices():
        modules = re.findall(r"`([a-z_/]+\.py)`", device)
        assert modules, device
        assert [module for module in modules if not (ROOT / "state_engine" / module).is_file()] == []
        assert (ROOT / test.strip("`")).is_file(), test


# -- the catalogue of errors ------------------------------------------------------------------------------------------

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
