"""What *Get started* and the tutorial lead to: commands in a terminal, and their assets in a real browser."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.guides import DOCS, blocks_of
from tests.ui.dagster_pages import Ui
from tests.ui.pictures import TERMINAL_COLUMNS, Album
from tests.ui.server import beside_python, server

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.ui, pytest.mark.spark, pytest.mark.timeout(1800)]

LOCATION = "definitions"
"""What Dagster calls a code location that is one module of this name."""
COMMAND_S = 300
READERS_DIRECTORY = "/home/me/shop"
"""Shown in place of the directory of the test."""


class Shell:
    """A directory with a Dagster instance of its own, where commands print as in a terminal."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        home = directory / ".dagster"
        home.mkdir()
        (home / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
        terminal = {"FORCE_COLOR": "1", "TTY_INTERACTIVE": "0", "COLUMNS": str(TERMINAL_COLUMNS)}
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("STATELAKE", "DAGSTER"))}
        self.variables: Mapping[str, str] = clean | terminal | {"DAGSTER_HOME": str(home)}

    def run(self, command: str) -> str:
        program, *arguments = shlex.split(command)
        done = subprocess.run(
            [beside_python(program), *arguments], cwd=self.directory, env=dict(self.variables),
            capture_output=True, text=True, timeout=COMMAND_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.replace(str(self.directory), READERS_DIRECTORY)

    def dagster(self) -> AbstractContextManager[str]:
        log = self.directory / "dagster.log"
        return server(["dagster", "dev"], directory=self.directory, variables=self.variables, log=log)


def test_get_started(page: Page, album: Album, tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    shell.run("statelake init . --template sessions")
    commands = (
        "statelake run sessions",
        'statelake sql sessions "SELECT user, value.rows AS clicks FROM sessions ORDER BY user LIMIT 3"',
        "statelake explain sessions --key user0",
    )
    printed = [(command, shell.run(command)) for command in commands]
    assert "caught up, head 1" in printed[0][1]
    album.terminal(page, "started-terminal", printed)
    with shell.dagster() as address:
        ui = Ui(page, address, album, LOCATION)
        ui.ends_with("Success", ui.materialize("sessions/tables/sessions"))
        ui.lineage("sessions", zoom_out=0)
        ui.sees("sessions", re.compile("^Materialized"))
        ui.picture("started-lineage")


def test_the_tutorial_ends_in_dagster(page: Page, album: Album, tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    for step in sorted((DOCS / "tutorial").glob("[0-9]*.md")):
        for block in blocks_of(step):
            if block.title:
                (tmp_path / block.title).write_text(block.text)
    shell.run("python arrive.py 8 9 10")
    with shell.dagster() as address:
        ui = Ui(page, address, album, LOCATION)
        ui.ends_with("Success", ui.materialize("orders/sinks/hours"))
        ui.lineage("orders", zoom_out=3)
        ui.sees("hours", "late", "windows", "seen", re.compile("^Materialized"))
        ui.picture("tutorial-lineage")
        ui.newest_event("orders/checkpoint", "rows_in")
        ui.picture("tutorial-checkpoint")
    asked = "SELECT shop, value.sum_cents.total AS cents FROM windows ORDER BY shop"
    commands = ("statelake checkpoints orders", f'statelake sql orders "{asked}"')
    album.terminal(page, "tutorial-terminal", [(command, shell.run(command)) for command in commands])
