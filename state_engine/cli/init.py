"""``statelake init``: a small project of one's own, copied from a template, that runs at once.

A template is a folder below ``templates``: the job, its events and its tests. What all projects have is in ``common``;
in its ``.md`` and ``.toml`` files the names of the project and its job are filled in. Nothing is written over.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from string import Template as Text
from typing import Annotated

import typer

from state_engine.cli.output import report
from state_engine.core.errors import ConfigurationError

_TEMPLATES = Path(__file__).with_name("templates")
_RENAMED = {"gitignore": ".gitignore"}
"""Under its own name, git would follow it here."""


@dataclass(frozen=True)
class _About:
    job: str
    about: str
    query: str


class Template(StrEnum):
    """What a project may begin with."""

    MINIMAL = "minimal"
    SESSIONS = "sessions"
    LEDGER = "ledger"
    DEDUP = "dedup"


_ABOUT = {
    Template.MINIMAL: _About(
        "totals",
        "What every shop has sold so far: one state for each key.",
        "SELECT shop, value AS cents FROM total ORDER BY shop",
    ),
    Template.SESSIONS: _About(
        "sessions",
        "The clicks of each user up to a pause of half an hour: windows, and late clicks that correct them.",
        "SELECT user, value.rows AS clicks FROM sessions ORDER BY user",
    ),
    Template.LEDGER: _About(
        "ledger",
        "The balance of each account, which no payment may take below zero: two outputs that agree.",
        "SELECT account, value AS cents FROM balance ORDER BY account",
    ),
    Template.DEDUP: _About(
        "dedup",
        "Each order once, however often it is delivered: rows in order of their time, and timers.",
        "SELECT count(*) AS ids, timestamp_millis(max(value)) AS last_passed FROM seen",
    ),
}


def init(
    directory: Annotated[
        Path, typer.Argument(help="Where the project goes; a missing directory is made.")
    ] = Path(),
    template: Annotated[
        Template, typer.Option(help="What it starts from: " + " | ".join(Template) + ".")
    ] = Template.SESSIONS,
) -> None:
    """Make a small project with a job, its input, tests and Dagster definitions; overwrites nothing."""
    about, files = _ABOUT[template], project_files(template, _project_name(directory))
    if taken := sorted(name for name in files if (directory / name).exists()):
        raise ConfigurationError(
            f"nothing was written: {directory.absolute()} has {', '.join(taken)} already. Name another directory"
        )
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        with (directory / name).open("x", encoding="utf-8") as file:
            file.write(text)
    steps = [] if directory.resolve() == Path.cwd() else [f"cd {directory}"]
    steps += [f"statelake run {about.job}", f'statelake sql {about.job} "{about.query}"', "dagster dev"]
    lines = [
        f"{directory.absolute()}: {', '.join(sorted(files))}",
        "\nNow:",
        *(f"  {step}" for step in steps),
    ]
    report({"directory": directory.absolute(), "files": sorted(files), "steps": steps}, lines)


def project_files(template: Template, project: str) -> dict[str, str]:
    """The files of a new project, by name.

    Example:
        >>> sorted(project_files(Template.MINIMAL, "shop"))[:4]
        ['.gitignore', 'README.md', 'arrive.py', 'definitions.py']
    """
    about = _ABOUT[template]
    values = {"project": project, **vars(about)}
    files: dict[str, str] = {}
    for folder in ("common", template):
        for file in sorted((_TEMPLATES / folder).iterdir()):
            if not file.is_file():
                continue
            text = file.read_text(encoding="utf-8")
            if file.suffix in (".md", ".toml"):
                text = Text(text).substitute(values)
            files[_RENAMED.get(file.name, file.name)] = text
    return files


def _project_name(directory: Path) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", directory.resolve().name.lower()).strip("-")
    return name or "statelake-project"
