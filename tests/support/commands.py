"""All commands of ``statelake``, as Click knows them, and a process of its own that runs one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import typer

from state_engine.cli.main import app


def every_command(group: Any = None, prefix: str = "") -> dict[str, Any]:
    """Each command by its name, that of its group before it."""
    group = group or typer.main.get_command(app)
    context = click.Context(group)
    commands: dict[str, Any] = {}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            commands |= every_command(command, f"{prefix}{name} ")
        else:
            commands[prefix + name] = command
    return commands


def in_a_new_process(
    *arguments: str, cwd: Path, code: str = "from state_engine.cli.main import main; main()", **environ: str
) -> subprocess.CompletedProcess[str]:
    """What the command does as the shell starts it, without the settings of the tests' own process.

    Args:
        code: what Python runs.
        environ: on top of that of this process.
    """
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("STATELAKE")}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=inherited | {"PYTHONPATH": str(Path(__file__).parents[2]), "COLUMNS": "200"} | environ,
        cwd=cwd, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
