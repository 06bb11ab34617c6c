"""The commands ``statelake branch list``, ``create``, ``compare``, ``promote`` and ``drop``: replays of a job.

What they do is the engine's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer
from pyspark.sql import DataFrame
from rich.table import Table

from state_engine.cli.form import for_people
from state_engine.cli.groups import Group
from state_engine.cli.operations import move_lines, moved
from state_engine.cli.options import Branch, DryRun, Job, LeaveAlone, OutputOptions, Rebatch, outputs_policy
from state_engine.cli.output import report, show
from state_engine.cli.progress import opened_in_view, progress
from state_engine.cli.queries import at_most, records_of, show_table
from state_engine.cli.session import declared, history_of, known, listed, opened, say
from state_engine.cli.tables import table
from state_engine.core.checkpoints.checkpoint import MAIN
from state_engine.core.counted_nouns import counted
from state_engine.replay.comparison import ComparisonReport
from state_engine.replay.differences import COUNT
from state_engine.replay.replay import ReplayReport

branch = Group("Replay with other code on a branch; then compare, promote or drop it.")


@branch.command(name="list")
def list_branches(job: Job) -> None:
    """List the branches of a job that are neither promoted nor dropped."""
    heads = {name: row for name, row in history_of(job).checkpoints.open_branches.items() if name != MAIN}
    records = [
        {"branch": name, "head": h.checkpoint_id, "created_at": h.created_at, "requested_by": h.requested_by}
        for name, h in heads.items()
    ]

    def listing() -> Table:
        rows = [
            (name, str(h.checkpoint_id), f"{h.created_at:%Y-%m-%d %H:%M:%S}", h.requested_by)
            for name, h in heads.items()
        ]
        return table(("branch", "head", "UTC", "requested by"), rows, right=("head",))

    columns = ("branch", "head", "created_at", "requested_by")
    show(records, listing, columns=columns)


@branch.command()
def create(
    job: Job,
    from_checkpoint: Annotated[
        int | None, typer.Option("--from", min=0, help="Checkpoint to start from; 0 for the very beginning.")
    ] = None,
    to_checkpoint: Annotated[
        int | None, typer.Option("--to", min=1, help="Last checkpoint to replay; all by default.")
    ] = None,
    branch: Annotated[
        str | None, typer.Option(help="Name; replay_<n> by default. An existing one continues.")
    ] = None,
    rebatch: Rebatch = False,
) -> None:
    """Run recorded micro-batches again with today's code, on a branch that publishes nothing."""
    code = declared(job)
    with opened() as engine, progress(f"{job}: looking up what was recorded") as on_progress:
        done = engine.replay(
            code.job,
            from_checkpoint=from_checkpoint,
            to_checkpoint=to_checkpoint,
            branch=branch,
            rebatch=rebatch,
            on_progress=on_progress,
        )
    report(done, _replayed(done))


@branch.command()
def compare(
    job: Job,
    branch: Branch,
    rows: Annotated[
        int, typer.Option(min=0, help="Show at most this many rows of each difference; 0 for none.")
    ] = 0,
) -> None:
    """Show what differs between a branch and main: outputs row by row, and state. Ends with 1 if something does.

    main is old, the branch is new.
    """
    with opened_in_view("Comparing") as engine:
        done = engine.compare(job, branch)
        show_comparison(done, rows=rows)
    if not done.is_equal:
        raise typer.Exit(code=1)


def show_comparison(done: ComparisonReport, *, rows: int, **more: Any) -> None:
    """Print what differs.

    Args:
        rows: at most so many of each difference.
        more: fields of the record that programs read.
    """
    differing = [(what, at_most(frame, rows)) for what, frame in _differing(done)] if rows else []
    report(
        {
            **_compared(done),
            "rows": [{**what, "rows": records_of(some, limit=rows)} for what, some in differing],
            **more,
        },
        [done.summary()],
    )
    for what, some in differing if for_people() else ():
        say(_sides(done, what))
        show_table(some, limit=rows, more="a larger --rows shows more")


@branch.command()
def promote(
    job: Job,
    branch: Branch,
    expected_head: Annotated[
        int | None, typer.Option(min=1, help="Refuse if the head is no longer this checkpoint.")
    ] = None,
    outputs: OutputOptions = None,
    leave_alone: LeaveAlone = None,
    dry_run: DryRun = False,
) -> None:
    """Make a branch the head of the job, and its outputs those of the sinks."""
    code = known(job)
    with opened_in_view("Promoting") as engine:
        done = engine.promote(
            code,
            branch,
            expected_head=expected_head,
            outputs=outputs_policy(outputs),
            leave_alone=leave_alone or (),
            dry_run=dry_run,
        )
    report({"job": job, **moved(done)}, move_lines(job, done))


@branch.command()
def drop(job: Job, branch: Branch, dry_run: DryRun = False) -> None:
    """Drop a branch: it can no longer continue or be promoted, and vacuum may delete what only it needs."""
    with opened() as engine:
        expired = engine.drop_branch(job, branch, dry_run=dry_run)
    verb = "would be dropped" if dry_run else "is dropped"
    record = {"job": job, "branch": branch, "expired": expired, "dry_run": dry_run}
    report(record, [f"{job}: branch {branch} {verb}; expired: {listed(expired)}"])


def _replayed(done: ReplayReport) -> Iterator[str]:
    job, branch = done.job, done.branch
    if done.branch_head_id is None:
        yield f"{job}: there is nothing to replay"
        return
    left = f", {done.remaining} left out" if done.remaining else ""
    yield f"{job}: branch {branch}: {counted(len(done.batches), 'micro-batch')}, head {done.branch_head_id}{left}"
    yield f"look at it: statelake branch compare {job} {branch}"
    yield f"then:       statelake branch promote {job} {branch} --expected-head {done.main_head_id}"
    yield f"or:         statelake branch drop {job} {branch}"


def _compared(done: ComparisonReport) -> dict[str, Any]:
    return {
        "job": done.job,
        "old_id": done.old_id,
        "new_id": done.new_id,
        "ancestor_id": done.ancestor_id,
        "is_equal": done.is_equal,
        "outputs": [
            {"sink": o.sink, "rows_only_old": o.rows_only_old, "rows_only_new": o.rows_only_new}
            for o in done.outputs.values()
        ],
        "states": [
            {
                "operator": s.operator,
                "state": s.state,
                "added": s.added,
                "removed": s.removed,
                "changed": s.changed,
            }
            for s in done.states
        ],
        "operator_states": done.operator_states,
    }


def _differing(done: ComparisonReport) -> Iterator[tuple[dict[str, Any], DataFrame]]:
    for o in done.outputs.values():
        sides = (("old", o.only_old, o.rows_only_old), ("new", o.only_new, o.rows_only_new))
        for side, frame, number in sides:
            if number:
                yield {"sink": o.sink, "only_in": side}, frame
    for s in done.states:
        if s.added or s.removed or s.changed:
            yield {"operator": s.operator, "state": s.state}, s.changes


def _sides(done: ComparisonReport, what: Mapping[str, Any]) -> str:
    """The heading of rows that differ.

    Example:
        >>> done = ComparisonReport("sums", 3, 5, None, {}, [], [])
        >>> _sides(done, {"sink": "out", "only_in": "old"})
        'sink out: rows only in old, checkpoint 3; _rows says how many more of each'
        >>> _sides(done, {"operator": "sums", "state": "total"})
        'state sums.total: entries in old, checkpoint 3, and in new, checkpoint 5'
    """
    if "sink" not in what:
        both = f"in old, checkpoint {done.old_id}, and in new, checkpoint {done.new_id}"
        return f"state {what['operator']}.{what['state']}: entries {both}"
    checkpoint = {"old": done.old_id, "new": done.new_id}[what["only_in"]]
    only = f"rows only in {what['only_in']}, checkpoint {checkpoint}"
    return f"sink {what['sink']}: {only}; {COUNT} says how many more of each"
