"""The command ``statelake``: sets the machine up, runs jobs, shows what they remember, operates on them.

An entry point: the one place besides ``orchestration`` that reads the environment. Mirrors Flink's
``CliFrontend``. The help lists commands in the order in which people need them.
"""

from __future__ import annotations

import traceback
from importlib import metadata
from typing import Annotated

import typer
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from rich.markup import escape

from state_engine.cli import branches, dead_letters, machine, operations, queries, running, savepoints, state
from state_engine.cli.explain import explain
from state_engine.cli.groups import Group
from state_engine.cli.history import checkpoints
from state_engine.cli.init import init
from state_engine.cli.session import errors, say
from state_engine.cli.status import status
from state_engine.core.errors import StatelakeError
from state_engine.queries.state_views import plain_message
from state_engine.spark.java_log import has_errors, java_log, new_log_file

app = Group(
    "Flink's state model for scheduled, incremental PySpark batches.",
    add_completion=False,
    pretty_exceptions_show_locals=False,
)

_ORDER = {
    "Set up": (init, machine.setup, machine.doctor, ("config", machine.config)),
    "Run": (running.jobs, running.run, running.publish_pending, running.backfill, running.partitions),
    "Look": (
        status,
        checkpoints,
        queries.sql,
        explain,
        ("state", state.app),
        ("dead-letters", dead_letters.app),
    ),
    "Go back, or try again": (
        operations.restore,
        ("savepoint", savepoints.app),
        ("branch", branches.app),
    ),
    "Change": (operations.rescale, state.change_key_type, machine.upgrade),
    "Upkeep": (operations.compact, operations.expire_checkpoints, operations.vacuum),
}
for _panel, _commands in _ORDER.items():
    for _command in _commands:
        if isinstance(_command, tuple):
            app.add_typer(_command[1], name=_command[0], rich_help_panel=_panel)
        else:
            app.command(rich_help_panel=_panel)(_command)


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
        if has_errors(log):
            errors.print(f"What Spark wrote is in {escape(str(log))}", soft_wrap=True, highlight=False)
        raise SystemExit(1) from None
    except (PySparkException, Py4JError) as error:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as file:
            file.write(traceback.format_exc())
        what = plain_message(error) if isinstance(error, PySparkException) else str(error).partition("\n")[0]
        errors.print(f"[red]error[/]: Spark failed: {escape(what)}", soft_wrap=True, highlight=False)
        errors.print(f"Its stack trace is in {escape(str(log))}", soft_wrap=True, highlight=False)
        raise SystemExit(1) from None
