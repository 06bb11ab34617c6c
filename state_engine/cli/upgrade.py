"""The command that upgrades the root to this version's format. What it does is the engine's."""

from __future__ import annotations

from typing import Annotated

import typer

from state_engine.cli.session import console, loaded_settings
from state_engine.engine.engine import StateEngine
from state_engine.operations.root_upgrade import UpgradeReport
from state_engine.spark.session import local_session


def upgrade(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would happen.")] = False,
) -> None:
    """Bring the root to the format of this version. Stop its jobs first."""
    with console.status("Starting Spark …"):
        root, spark = loaded_settings().settings.root, local_session()
    console.print(told(StateEngine.upgrade(root, spark, dry_run=dry_run)), soft_wrap=True, markup=False)


def told(report: UpgradeReport) -> str:
    """What an upgrade did, in words.

    Example:
        >>> print(told(UpgradeReport("file:/r", 3, 4, ["format 4: names"], ["delays"], 7, dry_run=True)))
        file:/r would be upgraded from format 3 to 4; nothing was done
        format 4: names
        jobs: delays; rows of checkpoints: 7
    """
    if report.before == report.after:
        return f"{report.root} has format {report.after} already: nothing to do"
    would = "would be upgraded" if report.dry_run else "was upgraded"
    end = "; nothing was done" if report.dry_run else ""
    lines = [
        f"{report.root} {would} from format {report.before} to {report.after}{end}",
        *report.steps,
        f"jobs: {', '.join(report.jobs) or 'none'}; rows of checkpoints: {report.rows}",
    ]
    return "\n".join(lines)
