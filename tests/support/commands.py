"""All commands of ``statelake``, as Click knows them."""

from __future__ import annotations

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
