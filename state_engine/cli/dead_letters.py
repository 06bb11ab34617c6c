"""The commands ``statelake dead-letters list`` and ``replay``."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from state_engine.cli.options import DryRun, Job
from state_engine.cli.output import AsCsv, AsJson, show
from state_engine.cli.renamed import Commands
from state_engine.cli.session import declared, opened, progress, say
from state_engine.microbatch.dead_letters import DeadLetter

app = typer.Typer(help="Rows that were refused.", no_args_is_help=True, cls=Commands)
_WIDTH = 60


@app.command(name="list")
def list_letters(
    job: Job,
    sent: Annotated[bool, typer.Option("--sent", help="Also those that were sent again.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Show so many, the newest ones.")] = 50,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """List the rows that a job refused, and whether they can be sent again."""
    with opened() as engine:
        letters = engine.list_dead_letters(declared(job).job, sent=sent)
    shown = letters[-limit:]
    columns = [f.name for f in fields(DeadLetter) if not f.name.startswith("_")]
    records = [{name: getattr(one, name) for name in columns} for one in shown]
    show(records, lambda: _table(shown), as_json=as_json, as_csv=as_csv, columns=columns)
    if not (as_json or as_csv):
        say(f"{job}: {len(letters):,} dead letters" + (" in all" if sent else " wait"))


@app.command(name="replay")
def replay_letters(
    job: Job,
    ids: Annotated[
        list[str] | None, typer.Option("--id", help="This letter; all that wait by default.")
    ] = None,
    operator: Annotated[str | None, typer.Option(help="Only what this operator refused.")] = None,
    max_rows: Annotated[int, typer.Option(min=1, help="Letters of a micro-batch.")] = 10_000,
    dry_run: DryRun = False,
) -> None:
    """Send dead letters through today's code, each exactly once."""
    code = declared(job)
    with opened() as engine, progress(f"{job}: sending dead letters") as on_progress:
        code.prepare()
        report = engine.replay_dead_letters(
            code.job,
            ids=ids or None,
            operator=operator,
            max_rows=max_rows,
            dry_run=dry_run,
            on_progress=on_progress,
        )
    done = "would be sent" if dry_run else "were sent"
    say(f"{job}: {len(report.sent):,} dead letters {done}, {report.refused:,} were refused again")
    for name, why in list(report.left.items())[:10]:
        say(f"{job}: {name} cannot be sent: {why}")


def _table(letters: list[DeadLetter]) -> Table:
    shown = Table("id", "operator", "where from", "error", "row", "")
    for one in letters:
        cells = (one.id, one.operator or one.source or "", one.position or "", one.error, one.row or "")
        state = "sent" if one.sent else one.problem
        shown.add_row(*(escape(_short(cell)) for cell in cells), escape(_short(state)))
    return shown


def _short(text: str) -> str:
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"
