"""The commands ``statelake dead-letters list`` and ``replay``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from itertools import islice
from typing import Annotated

import typer
from rich.table import Table

from state_engine.cli.form import for_people
from state_engine.cli.groups import Group
from state_engine.cli.options import AcceptClock, DryRun, Job
from state_engine.cli.output import report, show
from state_engine.cli.progress import progress
from state_engine.cli.session import declared, loaded_settings, opened, say
from state_engine.cli.tables import table
from state_engine.core.counted_nouns import counted
from state_engine.engine.dead_letters import DeadLetterReport
from state_engine.microbatch.dead_letters import DeadLetter
from state_engine.monitoring.job_history import read_history

dead_letters = Group("List refused rows, and send them again.")
_LONGEST = 60
_MOST = 10


@dead_letters.command(name="list")
def list_letters(
    job: Job,
    sent: Annotated[bool, typer.Option("--sent", help="Also letters that were sent again.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many, the newest.")] = 50,
) -> None:
    """List the rows that a job refused, and whether they can be sent again."""
    code = declared(job).job
    past = read_history(loaded_settings().settings.root, job)
    letters = [one for one in past.dead_letters(code) if sent or not one.sent] if past else []
    shown = letters[-limit:]
    columns = [f.name for f in fields(DeadLetter) if not f.name.startswith("_")]
    records = [{name: getattr(one, name) for name in columns} for one in shown]
    show(records, lambda: _table(shown), columns=columns)
    if for_people():
        waiting = counted(len(letters), "dead letter waits", "dead letters wait")
        say(f"{job}: {counted(len(letters), 'dead letter')} in all" if sent else f"{job}: {waiting}")


@dead_letters.command(name="replay")
def replay_letters(
    job: Job,
    ids: Annotated[
        list[str] | None, typer.Option("--id", help="Only this letter; all waiting letters by default.")
    ] = None,
    operator: Annotated[str | None, typer.Option(help="Only letters of this operator.")] = None,
    max_rows: Annotated[
        int, typer.Option(min=1, help="How many letters to send in one micro-batch.")
    ] = 10_000,
    accept_clock: AcceptClock = False,
    dry_run: DryRun = False,
) -> None:
    """Send dead letters through today's code, each exactly once."""
    code = declared(job)
    with opened() as engine, progress(f"{job}: sending dead letters") as on_progress:
        code.prepare()
        done = engine.replay_dead_letters(
            code.job,
            ids=ids or None,
            operator=operator,
            max_rows=max_rows,
            accept_clock=accept_clock,
            dry_run=dry_run,
            on_progress=on_progress,
        )
    report(done, _sent(done))


def _sent(done: DeadLetterReport) -> Iterator[str]:
    letters, refused = counted(len(done.sent), "dead letter"), counted(done.refused, "was", "were")
    yield f"{done.job}: {letters} {'to send' if done.dry_run else 'sent'}, {refused} refused again"
    for name, why in islice(done.left.items(), _MOST):
        yield f"{done.job}: {name} cannot be sent: {why}"
    if len(done.left) > _MOST:
        yield f"{done.job}: {len(done.left) - _MOST:,} more cannot be sent"


def _table(letters: list[DeadLetter]) -> Table:
    rows = [
        (
            one.id,
            one.operator or one.sink or one.source or "",
            _short(one.position or ""),
            _short(one.error),
            _short(one.row or ""),
            "sent" if one.sent else _short(one.problem),
        )
        for one in letters
    ]
    names = ("id", "operator", "where from", "error", "row", "problem")
    return table(names, rows, folds=names[2:], usual={"problem": ""})


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
