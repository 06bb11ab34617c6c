"""The command ``statelake``: sets the machine up, runs jobs, shows what they remember, operates on them.

An entry point: it reads the settings from a file and the environment, as ``orchestration`` does, and ``load_settings``
in a program that has neither. Other variables are read where they are needed: passwords and keys (of databases, Kafka
and stores, each by a name that is declared), what Java, Spark, Dagster and AWS define, and what a driver passes on to
its workers. Mirrors Flink's ``CliFrontend``. The help lists commands in the order in which people need them.
"""

from __future__ import annotations

import traceback
from importlib import import_module, metadata
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from state_engine.cli.groups import Commands, Group
from state_engine.cli.session import errors, no_settings, remark, say
from state_engine.core.errors import InternalError, StatelakeError
from state_engine.machine.defects import unforeseen
from state_engine.spark.java_log import has_errors, java_log, new_log_file

_PANELS = {
    "Set up": ("init.init", "machine.setup", "machine.doctor", "machine.config"),
    "Run": (
        "running.jobs",
        "running.run",
        "running.publish_pending",
        "running.backfill",
        "running.partitions",
    ),
    "Look": (
        "status.status",
        "metrics.metrics",
        "plan.plan",
        "apply.apply",
        "history.checkpoints",
        "queries.sql",
        "explain.explain",
        "debug.debug",
        "state.state",
        "dead_letters.dead_letters",
    ),
    "Go back, or try again": ("operations.restore", "savepoints.savepoint", "branches.branch"),
    "Published tables": (
        "operations.verify_table",
        "operations.rebuild_table",
        "operations.accept_table",
        "operations.register",
    ),
    "Change": ("operations.rescale", "state.change_key_type", "state.drop_operators", "machine.upgrade"),
    "Upkeep": ("operations.compact", "operations.expire_checkpoints", "operations.vacuum"),
}
"""Modules of this package, and what each has: a command, or a group of commands."""


class _CommandsByModule(Commands):
    """Imports the module of a command when the command is asked for: those that start no Spark load little."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        places = [(place, panel) for panel in _PANELS for place in _PANELS[panel]]
        self._places = {place.split(".")[1].replace("_", "-"): (place, panel) for place, panel in places}
        self.commands: dict[str, Any] = dict.fromkeys(self._places)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in self._places and self.commands[cmd_name] is None:
            self.commands[cmd_name] = _loaded(cmd_name, *self._places[cmd_name])
        return super().get_command(ctx, cmd_name)


def _loaded(name: str, place: str, panel: str) -> Any:
    module, attribute = place.split(".")
    declared = getattr(import_module(f"state_engine.cli.{module}"), attribute)
    command: Any
    if isinstance(declared, Group):
        command = typer.main.get_group(declared)
    else:
        alone = Group("")
        alone.command(name)(declared)
        command = typer.main.get_group(alone).commands[name]
    command.name, command.rich_help_panel = name, panel
    return command


app = Group(
    "Flink's state model for scheduled, incremental PySpark batches.",
    cls=_CommandsByModule,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        say(metadata.version("statelake"))
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", is_eager=True, callback=_show_version),
    ] = False,
) -> None:
    """Flink's state model for scheduled, incremental PySpark batches."""


def main() -> None:
    """Entry point: errors of our own end in one readable message, not in a traceback; Java's remarks go into a file."""
    log = new_log_file()
    try:
        with java_log(log):
            app()
    except StatelakeError as error:
        errors.print(f"[red]error[/]: {escape(str(error))}", soft_wrap=True, highlight=False)
        for note in error.__notes__:
            errors.print(note, soft_wrap=True, highlight=False, markup=False, style="dim")
        if isinstance(error, InternalError):
            _keep_traceback(log)
        elif has_errors(log):
            errors.print(f"Spark's output is in {escape(str(log))}", soft_wrap=True, highlight=False)
        if looked := no_settings():
            remark(looked)
        raise SystemExit(1) from None
    except Exception as error:
        of_spark, defect = _of_spark(error), unforeseen(error)
        if of_spark is None and defect is None:
            raise  # of the code of jobs
        what = str(defect) if of_spark is None else f"Spark failed: {of_spark}"
        errors.print(f"[red]error[/]: {escape(what)}", soft_wrap=True, highlight=False)
        _keep_traceback(log)
        raise SystemExit(1) from None


def _keep_traceback(log: Path) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        file.write(traceback.format_exc())
    errors.print(f"Its traceback is in {escape(str(log))}", soft_wrap=True, highlight=False)


def _of_spark(error: Exception) -> str | None:
    """What an error says that Spark raised; None for others."""
    from py4j.protocol import Py4JError  # here: commands that start no Spark do not load it
    from pyspark.errors import PySparkException

    from state_engine.queries.spark_sql import plain_message

    if isinstance(error, PySparkException):
        return plain_message(error)
    return str(error).partition("\n")[0] if isinstance(error, Py4JError) else None
