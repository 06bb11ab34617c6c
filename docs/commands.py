"""Writes the page of all commands from the command line itself: ``python -m docs.commands`` writes it.

A command, what it does, its arguments and its options; a test compares the page with the code.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from state_engine.cli.main import app

PAGE = Path(__file__).parent / "reference" / "commands.md"
_HEADER = """# Commands

Written by `python -m docs.commands` from the commands, and compared with them by a test. Every command has `--json`
(one JSON object a line), `--csv` and `--help`; these are left out below. `statelake --version` prints the version.
"""
_EVERYWHERE = {"--json", "--csv", "--help"}


def page() -> str:
    """The text of the page."""
    group = typer.main.get_command(app)
    parts = [_HEADER]
    panel = ""
    for name, command in _commands(group):
        if command.rich_help_panel != panel:
            panel = command.rich_help_panel
            parts.append(f"## {panel}\n")
        if hasattr(command, "list_commands"):
            parts.append(f"### statelake {name}\n\n{_text(command.help)}\n")
            parts += [_described(f"{name} {inner}", each, "####") for inner, each in _commands(command)]
        else:
            parts.append(_described(name, command, "###"))
    return "\n".join(parts)


def _commands(group: Any) -> Iterator[tuple[str, Any]]:
    context = group.make_context("statelake", [], resilient_parsing=True)
    for name in group.list_commands(context):
        yield name, group.get_command(context, name)


def _described(name: str, command: Any, heading: str) -> str:
    context = command.make_context(f"statelake {name}", [], resilient_parsing=True)
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [
        f"{heading} statelake {name}\n",
        f"{_text(command.help)}\n",
        f"```\nstatelake {name} {usage}\n```\n",
    ]
    rows = [row for parameter in command.params if (row := _row(parameter, context)) is not None]
    if rows:
        lines.append("\n".join(["| argument or option | meaning |", "|---|---|", *rows]) + "\n")
    return "\n".join(lines)


def _row(parameter: Any, context: Any) -> str | None:
    """A line of the table; None for what every command has."""
    if _EVERYWHERE & set(parameter.opts):
        return None
    about = _text(getattr(parameter, "help", None))
    if parameter.param_type_name == "argument":
        return f"| `{parameter.make_metavar(context)}` | {about} |"
    shown = ", ".join(f"`{option}`" for option in [*parameter.opts, *parameter.secondary_opts])
    if not parameter.is_flag:
        shown += f" {parameter.make_metavar(context)}".replace("|", "\\|")
    return f"| {shown} | {about} |"


def _text(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(page())
