"""The command ``statelake explain``: what happened to one key, checkpoint by checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from state_engine.cli.form import for_people
from state_engine.cli.options import Job, key_of
from state_engine.cli.output import plain, print_records, text
from state_engine.cli.session import errors, listed, loaded_settings, opened, registered, remark, say
from state_engine.core.counted_nouns import counted
from state_engine.replay.key_history import KeyEvent, KeyHistory
from state_engine.replay.key_inputs import RowsOfKey

_NOTHING = "nothing"


def explain(
    job: Job,
    key: Annotated[
        str,
        typer.Option(
            "--key", help="""The key: its value, or as JSON, such as '{"tailnum": "N123", "day": 3}'."""
        ),
    ],
    operator: Annotated[str | None, typer.Option(metavar="UID", help="Only this operator.")] = None,
    first: Annotated[int | None, typer.Option("--from", min=1, help="First checkpoint to show.")] = None,
    to: Annotated[
        int | None, typer.Option("--to", min=1, help="Last checkpoint; the head by default.")
    ] = None,
    last: Annotated[
        int, typer.Option(min=1, help="Without --from: how many checkpoints to show, the newest.")
    ] = 20,
    limit: Annotated[
        int, typer.Option(min=1, help="Show at most this many rows of each input and output.")
    ] = 5,
) -> None:
    """Show what happened to one key: its inputs, its state before and after, its timers, its outputs."""
    declared = registered(loaded_settings().settings).get(job)
    code = job if declared is None else declared.job
    with opened() as engine, errors.status("Looking …") as status:
        if declared is not None:
            declared.prepare()
        history = engine.explain(
            code,
            key_of(key),
            operator=operator,
            from_checkpoint=first,
            to_checkpoint=to,
            last=last,
            limit=limit,
            on_progress=lambda row: status.update(f"checkpoint {row.checkpoint_id} …"),
        )
    if for_people():
        for line in history_lines(history):
            say(line)
    else:
        for note in history.notes:
            remark(note)
        print_records([plain(event) for event in history.events])


def history_lines(history: KeyHistory) -> Iterator[str]:
    """What happened, as text.

    Example:
        >>> for line in history_lines(KeyHistory("sums", {"total": {"k": "a"}}, [], [3, 4], ["inputs: not known"])):
        ...     print(line)
        sums, total: key {"k": "a"}
        checkpoints 3 to 4: nothing is known of this key
        not shown: inputs: not known
    """
    for uid, key in history.keys.items():
        yield f"{history.job}, {uid}: key {text(plain(key))}"
    for event in history.events:
        yield ""
        yield from event_lines(event)
    ids = history.looked_at
    if not history.events:
        span = f"checkpoints {ids[0]} to {ids[-1]}" if ids else "there are no checkpoints"
        yield f"{span}: nothing is known of this key"
    for note in history.notes:
        yield f"not shown: {note}"


def event_lines(event: KeyEvent) -> Iterator[str]:
    """One checkpoint, as text."""
    partition = f", {event.partition}" if event.partition else ""
    yield f"checkpoint {event.checkpoint_id}, {event.created_at:%Y-%m-%d %H:%M:%S} UTC, {event.kind}{partition}"
    for rows in event.inputs:
        yield from _row_lines(f"in    {rows.place}", rows)
    for state in event.states:
        by_tables = f", shown by table {listed(state.tables)}" if state.tables else ""
        yield f"  state {state.operator}.{state.state}{by_tables}"
        yield f"    before {shown(state.before)}"
        yield f"    after  {shown(state.after)}"
    for timers in event.timers:
        if timers.set:
            yield f"  timer {timers.operator}: set {listed(timers.set)}"
        if timers.gone:
            yield f"  timer {timers.operator}: fired or deleted {listed(timers.gone)}"
    for rows in event.outputs:
        yield from _row_lines(f"out   {rows.place}", rows)
    for problem in event.problems:
        yield f"  not known: {problem}"


def _row_lines(what: str, rows: RowsOfKey) -> Iterator[str]:
    if rows.problem:
        yield f"  {what}: not known: {rows.problem}"
    elif rows.count:
        yield f"  {what}: {counted(rows.count, 'row')}"
        for row in rows.rows:
            yield f"    {shown(row)}"
        if rows.count > len(rows.rows):
            yield f"    and {rows.count - len(rows.rows):,} more"


def shown(value: Any) -> str:
    """A value as text."""
    return _NOTHING if value is None else text(plain(value))
