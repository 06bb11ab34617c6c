"""The command ``statelake debug``: today's function over the recorded inputs of one key, element by element."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from state_engine.cli.explain import shown
from state_engine.cli.form import for_people
from state_engine.cli.options import Job, key_of
from state_engine.cli.output import plain, print_records, text
from state_engine.cli.session import declared, opened, remark, say
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import ConfigurationError
from state_engine.core.harness.key_run import KeyElement, KeyStep, Timers
from state_engine.core.time.timers import Timer, place_of
from state_engine.core.types.row import RowKind
from state_engine.core.types.timestamps import MIN_TIMESTAMP
from state_engine.replay.key_debug import DebuggedBatch, DebuggedKey, DebuggedOutput, KeyDebug


def debug(
    job: Job,
    key: Annotated[
        str,
        typer.Option(
            "--key", help="""The key: its value, or as JSON, such as '{"tailnum": "N123", "day": 3}'."""
        ),
    ],
    operator: Annotated[str | None, typer.Option(metavar="UID", help="Only this operator.")] = None,
    checkpoint: Annotated[
        int | None,
        typer.Option(min=1, help="Only this micro-batch; the newest that touched the key by default."),
    ] = None,
    first: Annotated[int | None, typer.Option("--from", min=1, help="First micro-batch to run.")] = None,
    to: Annotated[
        int | None, typer.Option("--to", min=1, help="Last micro-batch to run; the newest by default.")
    ] = None,
    write_test: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a pytest file with this history and the recorded results."),
    ] = None,
    replace: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN", help="In that file, replace the values of this column; may be repeated."
        ),
    ] = None,
) -> None:
    """Run today's function over the recorded inputs of one key, in this process, and compare with the record."""
    if replace and write_test is None:
        raise ConfigurationError(
            "--replace is about the file that --write-test names: name one, or leave it out"
        )
    registered = declared(job)
    with opened(spark=False) as engine:
        debugged = engine.debug(
            registered.job,
            key_of(key),
            checkpoint_id=checkpoint,
            from_checkpoint=first,
            to_checkpoint=to,
            operator=operator,
        )
    if write_test is not None:
        debugged.write_test(write_test, replace=replace or ())
    if for_people():
        for line in debug_lines(debugged):
            say(line)
    else:
        for one in debugged.operators:
            for note in one.notes:
                remark(note)
        print_records([_record(one, batch) for one in debugged.operators for batch in one.batches])


def debug_lines(debugged: KeyDebug) -> Iterator[str]:
    """What happened, as text.

    Example:
        >>> for line in debug_lines(KeyDebug("sums", [])):
        ...     print(line)
    """
    for one in debugged.operators:
        yield f"{debugged.job}, {one.operator}: key {text(plain(one.key))}"
        for batch in one.batches:
            yield ""
            yield from _batch_lines(batch)
        if not one.batches:
            yield "no micro-batch that was looked at touched the key"
        for note in one.notes:
            yield f"note: {note}"


def _record(one: DebuggedKey, batch: DebuggedBatch) -> dict[str, Any]:
    record: dict[str, Any] = plain(batch)
    return {"operator": one.operator, "key": plain(one.key), "same": batch.same, **record}


def _batch_lines(batch: DebuggedBatch) -> Iterator[str]:
    yield f"checkpoint {batch.checkpoint_id}, {batch.created_at:%Y-%m-%d %H:%M:%S} UTC"
    for step in batch.steps:
        yield from _step_lines(step)
    for problem in batch.problems:
        yield f"  not known: {problem}"
    if batch.recorded is None:
        return
    if not batch.steps:
        yield "  nothing came for the key"
    yield "  as recorded" if batch.same else "  not as recorded:"
    for state in batch.states:
        if not state.same:
            yield f"    state {state.name}: {shown(state.value)}, recorded {shown(state.recorded)}"
    if batch.timers != batch.recorded_timers:
        yield f"    timers: {_timers(batch.timers)}, recorded {_timers(batch.recorded_timers)}"
    for output in batch.outputs:
        yield from _output_lines(output)


def _step_lines(step: KeyStep) -> Iterator[str]:
    yield f"  {_title(step)}"
    for name in sorted(step.before.keys() | step.after.keys()):
        before, after = step.before.get(name), step.after.get(name)
        if repr(before) != repr(after):
            yield f"    state {name}: {shown(before)} -> {shown(after)}"
    for timer in [one for one in step.timers_after if one not in step.timers_before]:
        yield f"    set   {place_of(Timer(*timer))}"
    for timer in [one for one in step.timers_before if one not in step.timers_after]:
        yield f"    gone  {place_of(Timer(*timer))}"
    for tag, value in step.outputs:
        yield f"    out   {f'{tag}: ' if tag else ''}{shown(value)}"
    for refusal in step.refused:
        yield f"    refused: {refusal.error}"


def _title(step: KeyStep) -> str:
    one = step.element
    if one is None:
        return "timers, at the end" if step.what == "timers" else "all elements at once, as columns"
    return f"{step.what}{f' of input {one.input}' if one.input > 1 else ''} {shown(one.value)}{_times(one)}"


def _times(one: KeyElement) -> str:
    said = [f"kind {one.kind}"] if one.kind is not RowKind.INSERT else []
    said += [f"event time {one.timestamp} ms"] if one.timestamp is not None else []
    said += [f"watermark {one.watermark} ms"] if one.watermark != MIN_TIMESTAMP else []
    said += ["late"] if one.late else []
    return f" ({', '.join(said)})" if said else ""


def _timers(timers: Timers) -> str:
    return ", ".join(place_of(Timer(*one)) for one in timers) or "none"


def _output_lines(output: DebuggedOutput) -> Iterator[str]:
    place = f"sink {output.sink}" if output.sink else "outputs"
    if output.tag:
        place += f", side output {output.tag}"
    if output.problem:
        yield f"    {place}: not compared: {output.problem}"
        return
    for row in output.missing:
        yield f"    {place}: only recorded: {shown(row)}"
    for row in output.extra:
        yield f"    {place}: only now: {shown(row)}"
    if output.count and not output.shows_key:
        rows = counted(output.count, "row")
        yield f"    {place}: {rows} looked for among those of all keys, for its rows do not show the key"
