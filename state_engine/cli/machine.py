"""Commands about this machine and the root: ``setup``, ``doctor``, ``config show``, ``upgrade``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from state_engine.cli import output
from state_engine.cli.options import DryRun
from state_engine.cli.output import AsCsv, AsJson
from state_engine.cli.renamed import Commands
from state_engine.cli.repair import repair_root
from state_engine.cli.session import console, loaded_settings, say
from state_engine.engine.engine import StateEngine
from state_engine.machine.jars import delta_jars
from state_engine.machine.java import find_java_home
from state_engine.machine.settings import FILE_NAME, FILE_VARIABLE
from state_engine.monitoring import doctor as checks
from state_engine.operations.root_upgrade import UpgradeReport
from state_engine.spark.class_archive import make_class_archive
from state_engine.spark.session import local_session

config = typer.Typer(help="The settings.", no_args_is_help=True, cls=Commands)

_STYLES = {"ok": "green", "warning": "yellow", "missing": "red", "failed": "red"}


def setup() -> None:
    """Find or make a Java, fetch Delta's jars, and have Java keep Spark's classes; a second run only checks."""
    settings = loaded_settings().settings.spark
    java = find_java_home(environ=os.environ, explicit=settings.java_home)
    say(f"Java {java.version}, {java.origin}: {java.path}")
    with console.status("Delta's jars: checking, and fetching what is missing (once, about ten seconds) …"):
        jars = delta_jars(settings.jars_dir, java=java)
    say(f"Delta's jars: {len(jars)} in {jars[0].parent}")
    with console.status(
        "Spark's classes: having Java keep them, so that Spark starts faster (once, about a minute) …"
    ):
        archive = make_class_archive(java)
    say(
        f"Spark's classes: {archive or 'this Java does not keep them; Spark starts without, a few seconds slower'}"
    )


def doctor(
    spark: Annotated[bool, typer.Option(help="Also start Spark, which takes some seconds.")] = True,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="Repair what is damaged in the root, and nothing else. Stop its jobs first."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --repair: only show what would be done.")
    ] = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Show what this machine has, and what to do about what is missing or damaged."""
    loaded = loaded_settings()
    if repair or dry_run:
        repair_root(loaded.settings.root, dry_run=dry_run)
        return
    results = checks.examine(loaded.settings, environ=os.environ)
    if spark:
        with console.status("Starting Spark …"):
            results.append(checks.check_spark(loaded.settings.spark))
    output.show([vars(check) for check in results], lambda: _checks(results), as_json=as_json, as_csv=as_csv)
    people = not (as_json or as_csv)
    for check in results:
        if check.fix and people:
            heading = f"[{_STYLES[check.status]}]{check.name}[/]"
            console.print(f"{heading}: {escape(check.fix)}", soft_wrap=True, highlight=False)
    if any(check.status in ("missing", "failed") for check in results):
        raise typer.Exit(code=1)
    if people:
        console.print("Ready to run.")


def _checks(results: Sequence[checks.Check]) -> Table:
    table = Table("", "check", "found", title="statelake doctor", title_justify="left")
    for check in results:
        style = _STYLES[check.status]
        table.add_row(f"[{style}]{check.status}[/]", check.name, escape(check.detail))
    return table


@config.command()
def show(as_json: AsJson = False, as_csv: AsCsv = False) -> None:
    """Print every effective setting and where it came from; secrets are masked."""
    loaded = loaded_settings()
    records = [{"setting": row.key, "value": row.value, "from": row.origin} for row in loaded.rows()]

    def table() -> Table:
        shown = Table("setting", "value", "from")
        for record in records:
            shown.add_row(*map(escape, record.values()))
        return shown

    output.show(records, table, as_json=as_json, as_csv=as_csv)
    if loaded.file is None and not (as_json or as_csv):
        say(f"No {FILE_NAME} here, and {FILE_VARIABLE} is not set.")


def upgrade(dry_run: DryRun = False) -> None:
    """Bring the root to the format of this version. Stop its jobs first."""
    with console.status("Starting Spark …"):
        root, spark = loaded_settings().settings.root, local_session()
    say(upgrade_text(StateEngine.upgrade(root, spark, dry_run=dry_run)))


def upgrade_text(report: UpgradeReport) -> str:
    """What an upgrade did, as text.

    Example:
        >>> print(upgrade_text(UpgradeReport("file:/r", 3, 4, ["format 4: names"], ["delays"], 7, dry_run=True)))
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
