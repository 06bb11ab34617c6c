"""The command ``statelake checkpoints``: what was committed, upon what, and who abandoned what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.table import Table

from state_engine.cli.form import for_people
from state_engine.cli.options import Job
from state_engine.cli.output import show
from state_engine.cli.session import history_of, say
from state_engine.cli.tables import table
from state_engine.core.checkpoints.checkpoint import MAIN, CheckpointRow
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.retention import shown_kind
from state_engine.core.counted_nouns import counted

_NUMBERS = ("id", "parent", "rows in", "behind watermark", "break rules", "refused", "rows out", "changes")
_NAMES = (*_NUMBERS, "kind", "UTC", "now", "requested by")
_USUAL = {"behind watermark": "0", "break rules": "0", "refused": "0", "kind": "checkpoint", "now": ""}


def checkpoints(
    job: Job,
    last: Annotated[int, typer.Option(min=1, help="Show at most this many, the newest.")] = 20,
) -> None:
    """List what a job has committed, newest last."""
    past = history_of(job)
    rows = list(past.checkpoints.values())
    if for_people():
        say(f"{job}: {counted(len(rows), 'checkpoint')} in {past.layout.root}")
    show(records(rows, last=last), lambda: history(rows, last=last))


def history(rows: Sequence[CheckpointRow], *, last: int) -> Table:
    """One line a checkpoint; columns in which nothing happened are left out."""
    now = standing(History(rows))
    lines = [_cells(row, now.get(row.checkpoint_id, "")) for row in rows[-last:]]
    return table(_NAMES, lines, folds=_NAMES[-1:], right=_NUMBERS, usual=_USUAL)


def records(rows: Sequence[CheckpointRow], *, last: int) -> list[dict[str, Any]]:
    """The same with plain values, for programs."""
    now = standing(History(rows))
    return [
        {
            "id": row.checkpoint_id,
            "parent": row.parent_id,
            "branch": row.branch,
            "kind": str(row.kind),
            "created_at": row.created_at,
            "rows_in": row.rows_in,
            "behind_watermark": row.behind_watermark,
            "break_rules": {one.name: one.broken for one in row.expectations},
            "rows_refused": row.rows_refused,
            "rows_out": sum(sink.rows for sink in row.sinks),
            "changed_entries": sum(operator.changed_entries for operator in row.operators),
            "requested_by": row.requested_by,
            "now": now.get(row.checkpoint_id, ""),
        }
        for row in rows[-last:]
    ]


def standing(history: History) -> dict[int, str]:
    """What a person should know of a row today, by id: its branch, who abandoned it, whether it can be restored."""
    texts_of: dict[int, list[str]] = {}
    for i, row in history.items():
        if row.branch != MAIN:
            texts_of.setdefault(i, []).append(f"on {row.branch}")
    for i, by in history.abandoned_by.items():
        texts_of.setdefault(i, []).append(f"left by {by}")
    for pin in history.pins.values():
        texts_of.setdefault(pin.checkpoint_id, []).append(f"savepoint {pin.name}")
    for i in history.expired:
        texts_of.setdefault(i, []).append("expired")
    return {i: ", ".join(texts) for i, texts in texts_of.items()}


def _cells(row: CheckpointRow, now: str) -> list[str]:
    numbers = (
        row.rows_in,
        row.behind_watermark,
        sum(one.broken for one in row.expectations),
        row.rows_refused,
        sum(sink.rows for sink in row.sinks),
        sum(operator.changed_entries for operator in row.operators),
    )
    parent = "" if row.parent_id is None else str(row.parent_id)
    counts = [f"{number:,}" for number in numbers]
    created = f"{row.created_at:%m-%d %H:%M:%S}"
    return [str(row.checkpoint_id), parent, *counts, shown_kind(row), created, now, row.requested_by]
