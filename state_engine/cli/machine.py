"""Commands about this machine and the root: ``setup``, ``doctor``, ``config show``, ``upgrade``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated
from urllib.parse import urlparse

import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from state_engine.cli import output
from state_engine.cli.form import for_people
from state_engine.cli.groups import Group
from state_engine.cli.options import DryRun
from state_engine.cli.session import console, errors, loaded_settings, opened, progressed, say
from state_engine.cli.tables import table
from state_engine.core.counted_nouns import counted
from state_engine.engine.engine import StateEngine
from state_engine.machine.jars import delta_jars, jars_of, kafka_jars, s3_jars
from state_engine.machine.java import find_java_home
from state_engine.machine.settings import FILE_NAME, FILE_VARIABLE
from state_engine.machine.spark_versions import installed_spark
from state_engine.monitoring import doctor as checks
from state_engine.monitoring import repairs
from state_engine.operations.root_repair import Damage
from state_engine.operations.root_upgrade import UpgradeReport
from state_engine.spark.class_archive import make_class_archive
from state_engine.spark.session import local_session
from state_engine.storage.delta.store_checks import Verdict
from state_engine.storage.stores.files import normal_uri
from state_engine.storage.stores.object_stores import S3_SCHEMES

config = Group("The settings.")

_STYLES = {"ok": "green", "warning": "yellow", "missing": "red", "failed": "red"}


def setup(
    s3: Annotated[
        bool, typer.Option("--s3", help="Also fetch what Spark needs for stores with S3's interface (13 MB).")
    ] = False,
    kafka: Annotated[
        bool, typer.Option("--kafka", help="Also fetch what Spark needs for Kafka (10 MB).")
    ] = False,
    store: Annotated[
        str,
        typer.Option(
            metavar="URI",
            help="Also let writers race on the store of this directory, and record below the root whether "
            "several runners can commit there.",
        ),
    ] = "",
) -> None:
    """Find or make a Java, fetch Delta's jars, and let Java keep Spark's classes; a second run only checks."""
    s3 = s3 or urlparse(store).scheme in S3_SCHEMES
    settings = loaded_settings().settings.spark
    spark = installed_spark()
    java = find_java_home(environ=os.environ, explicit=settings.java_home)
    progressed(f"Java {java.version}, {java.origin}: {java.path}")
    with errors.status("Delta's jars: checking, and fetching what is missing (once, about ten seconds) …"):
        jars = jars_of(delta_jars(spark), settings.jars_dir, java=java)
    progressed(f"Delta's jars: {len(jars)} in {jars[0].parent}")
    for wanted, which, size in ((s3, s3_jars(spark), "13 MB"), (kafka, kafka_jars(spark), "10 MB")):
        if wanted:
            name = which.name[0].upper() + which.name[1:]
            with errors.status(f"{name}: checking, and fetching what is missing (once, {size}) …"):
                more = jars_of(which, settings.jars_dir, java=java)
            progressed(f"{name}: {len(more)} in {more[0].parent}")
            jars += more
    with errors.status(
        "Spark's classes: having Java keep them, so that Spark starts faster (once, about a minute) …"
    ):
        archive = make_class_archive(java)
    kept = archive or "this Java does not keep them; Spark starts without, a few seconds slower"
    record = {"java": java, "jars": jars, "class_archive": archive}
    lines = [f"Spark's classes: {kept}"]
    if store:
        verdict = _look_at_store(normal_uri(store))
        record["store"] = verdict
        lines.append(
            f"{verdict.store} with {verdict.log_store}: {counted(verdict.writers, 'writer')} raced for "
            f"{counted(verdict.names, 'file')}, and exactly one created each. Several runners can commit there"
        )
    output.report(record, lines)


def _look_at_store(uri: str) -> Verdict:
    with opened(f"{uri}: writers race for files") as engine:
        return engine.kernel.look_at_store(uri)


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
) -> None:
    """Show what this machine has, and what to do about what is missing or damaged."""
    loaded = loaded_settings()
    if repair or dry_run:
        _repair_root(loaded.settings.root, dry_run=dry_run)
        return
    results = checks.examine(loaded.settings, environ=os.environ)
    if spark:
        with errors.status("Starting Spark …"):
            results.append(checks.check_spark(loaded.settings.spark))
    output.show([vars(check) for check in results], lambda: _checks(results))
    for check in results:
        if check.fix and for_people():
            heading = f"[{_STYLES[check.status]}]{check.name}[/]"
            console.print(f"{heading}: {escape(check.fix)}", soft_wrap=True, highlight=False)
    if any(check.status in ("missing", "failed") for check in results):
        raise typer.Exit(code=1)
    if for_people():
        console.print("Ready to run.")


def _checks(results: Sequence[checks.Check]) -> Table:
    rows = [(Text(one.status, _STYLES[one.status]), one.name, one.detail) for one in results]
    return table(("status", "check", "found"), rows, folds=("found",))


def _repair_root(root: str, *, dry_run: bool) -> None:
    """Show what is damaged in a root, and repair it unless only asked to show.

    Exit codes: 0 nothing is damaged, or all of it was repaired; 1 something is left, or a dry run shows something.
    """
    uri = normal_uri(root)
    if dry_run:
        shown = left = repairs.damages(uri)
        for damage in shown:
            _show(damage, "would do" if damage.apply else "to do")
    else:
        shown = []

        def show(damage: Damage) -> None:
            shown.append(damage)
            _show(damage, "does" if damage.apply else "to do")

        left = repairs.repair(
            uri, on_damage=show, on_done=lambda done: _print(f"[green]done[/]: {escape(done)}")
        )
    if not shown:
        _print(f"{escape(uri)}: nothing is damaged")
    elif dry_run:
        _print("Nothing was done.")
    if left:
        raise typer.Exit(code=1)


def _show(damage: Damage, label: str) -> None:
    _print(f"[red]{escape(damage.name)}[/]: {escape(damage.problem)}")
    _print(f"{label}: {escape(damage.repair)}")


def _print(text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False)


@config.command()
def show() -> None:
    """Print every effective setting and where it came from; secrets are masked."""
    loaded = loaded_settings()
    records = [{"setting": row.key, "value": row.value, "from": row.origin} for row in loaded.rows()]

    def listing() -> Table:
        return table(
            ("setting", "value", "from"), [tuple(one.values()) for one in records], folds=("value", "from")
        )

    output.show(records, listing)
    if loaded.file is None and for_people():
        say(f"No {FILE_NAME} here, and {FILE_VARIABLE} is not set.")


def upgrade(dry_run: DryRun = False) -> None:
    """Bring the root to the format of this version. Stop its jobs first."""
    with errors.status("Starting Spark …"):
        settings = loaded_settings().settings
        spark = local_session(settings)
    done = StateEngine.upgrade(settings.root, spark, dry_run=dry_run)
    output.report(done, [upgrade_text(done)])


def upgrade_text(report: UpgradeReport) -> str:
    """What an upgrade did, as text.

    Example:
        >>> print(upgrade_text(UpgradeReport("file:/r", 3, 4, ["format 4: names"], ["delays"], 7, dry_run=True)))
        file:/r would be upgraded from format 3 to 4; nothing was done
        format 4: names
        jobs: delays; rows of checkpoints: 7
    """
    if report.before == report.after:
        return f"{report.root} already has format {report.after}: nothing to do"
    would = "would be upgraded" if report.dry_run else "was upgraded"
    end = "; nothing was done" if report.dry_run else ""
    lines = [
        f"{report.root} {would} from format {report.before} to {report.after}{end}",
        *report.steps,
        f"jobs: {', '.join(report.jobs) or 'none'}; rows of checkpoints: {report.rows}",
    ]
    return "\n".join(lines)
