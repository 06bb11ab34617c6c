"""Commands that operate on what a job has recorded. What they do is the engine's.

They run nothing of the job's code; where the settings name its module, it says which sinks are still the job's.
"""

from __future__ import annotations

from datetime import timedelta
from itertools import groupby
from typing import Annotated

import typer

from state_engine.cli.options import DryRun, Job, LeaveAlone, Operators, Outputs
from state_engine.cli.session import declared, known, listed, opened, progress, say
from state_engine.core.checkpoints.file_disposal import Disposal
from state_engine.core.checkpoints.retention import RetentionPolicy
from state_engine.core.errors import ConfigurationError
from state_engine.operations.head_operations import RestoreReport


def restore(
    job: Job,
    checkpoint_id: Annotated[
        int | None, typer.Argument(help="Checkpoint to go back to; see: statelake checkpoints")
    ] = None,
    savepoint: Annotated[
        str | None,
        typer.Option(help="In place of a checkpoint: name of a savepoint of the job, or directory of any."),
    ] = None,
    allow_non_restored_state: Annotated[
        bool,
        typer.Option(
            "--allow-non-restored-state", help="Leave state behind that the job has no operator for."
        ),
    ] = False,
    outputs: Outputs = "withdraw",
    leave_alone: LeaveAlone = None,
    dry_run: DryRun = False,
) -> None:
    """Go back to a checkpoint or savepoint: state, source positions and sinks."""
    code = known(job)
    with opened("Restoring") as engine:
        report = engine.restore(
            code,
            checkpoint_id=checkpoint_id,
            savepoint=savepoint,
            outputs=outputs,
            allow_non_restored_state=allow_non_restored_state,
            leave_alone=leave_alone or (),
            dry_run=dry_run,
        )
    say_moved(job, report)


def rescale(
    job: Job,
    parallelism: Annotated[
        int | None, typer.Option(min=1, help="Subtasks of every operator; what the job declares by default.")
    ] = None,
    max_parallelism: Annotated[
        int | None, typer.Option(min=1, help="Key groups: keyed state is written anew, while batches go on.")
    ] = None,
    operator: Operators = None,
    dry_run: DryRun = False,
) -> None:
    """Give a job another parallelism: one row of metadata, not one byte of keyed state."""
    code = declared(job)
    if operator and parallelism is None:
        raise ConfigurationError(
            "--operator says which operators get another parallelism: give --parallelism, too"
        )
    wanted = dict.fromkeys(operator, parallelism) if operator and parallelism else parallelism
    with opened(f"{job}: rescaling") as engine:
        done = engine.rescale(code.job, parallelism=wanted, max_parallelism=max_parallelism, dry_run=dry_run)
    groups = done.max_parallelism
    in_force = listed(f"{uid}: {n} of {groups.get(uid, n)}" for uid, n in done.parallelism.items())
    if not done.changes:
        say(f"{job}: nothing changes; in force are {in_force}")
    elif dry_run:
        say(f"{job}: would put in force {in_force}")
    else:
        say(f"{job}: checkpoint {done.committed_id} puts in force {in_force}")
    if max_parallelism is not None and not dry_run:
        say(f"declare max_parallelism={max_parallelism} in the job from now on")


def compact(
    job: Job,
    full: Annotated[bool, typer.Option("--full", help="Write all key groups anew, changed or not.")] = False,
    operator: Operators = None,
    dry_run: DryRun = False,
) -> None:
    """Fold the keyed state into new bases; micro-batches go on meanwhile."""
    with opened() as engine, progress("Compacting") as on_progress:
        done = engine.compact(job, operator or None, full=full, dry_run=dry_run, on_progress=on_progress)
    if dry_run:
        for uid, groups in done.key_groups.items():
            say(f"{uid}: would write {groups:,} key groups")
    for uid, entries in done.entries.items():
        say(f"{uid}: {entries:,} entries, {done.bytes[uid]:,} bytes")
    if done.committed_id is not None:
        say(f"{job}: checkpoint {done.committed_id} puts them in force")
    elif done.entries:
        say(f"{job}: dropped: the head moved elsewhere meanwhile; run it again")
    elif not done.key_groups:
        say(f"{job}: nothing changed since the last compaction")


def expire_checkpoints(
    job: Job,
    keep_last: Annotated[int, typer.Option(min=1, help="Keep so many checkpoints.")] = 10,
    keep_hours: Annotated[float | None, typer.Option(min=0, help="Keep all that are younger.")] = None,
    drop_branch: Annotated[
        list[str] | None, typer.Option(help="Branch that nobody is going to promote; may be repeated.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Expire old checkpoints: they can no longer be restored, and vacuum may delete their files."""
    younger = None if keep_hours is None else int(timedelta(hours=keep_hours) / timedelta(milliseconds=1))
    policy = RetentionPolicy(keep_last, younger)
    with opened() as engine:
        expired = engine.expire_checkpoints(job, policy, drop_branches=drop_branch or (), dry_run=dry_run)
    say(f"{job}: {'would expire' if dry_run else 'expired'} {listed(expired)}")


def vacuum(
    job: Job,
    orphan_hours: Annotated[float, typer.Option(min=24, help="Files stay at least so long.")] = 24,
    delta_vacuum: Annotated[
        bool, typer.Option("--delta-vacuum", help="Let Delta clean up the job's own tables, too.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Delete the files that nobody needs any more: of expired checkpoints, and of attempts that crashed."""
    with opened() as engine, progress("Looking for files") as on_progress:
        done = engine.vacuum(
            job,
            orphan_age=timedelta(hours=orphan_hours),
            delta_vacuum=delta_vacuum,
            dry_run=dry_run,
            on_progress=on_progress,
        )
    for step, group in groupby(sorted(done.files, key=_step), key=_step):
        files = list(group)
        text = f"{' '.join(step)}: {len(files):,} files, {sum(f.bytes for f in files):,} bytes"
        say(f"{'would ' if dry_run else ''}{text}")
    if not done.files:
        say(f"{job}: no file is to be deleted")


def say_moved(job: str, report: RestoreReport) -> None:
    """Print where the head went, or would go, and what that means for sinks."""
    done = "would go" if report.committed_id is None else "went"
    if report.replaced_id is None:
        say(f"{job}: the savepoint of checkpoint {report.checkpoint_id} {done} into the job")
    else:
        say(f"{job}: the head {done} from checkpoint {report.replaced_id} to {report.checkpoint_id}")
    if report.abandoned:
        say(f"abandoned: {listed(report.abandoned)}")
    for sink in report.sinks:
        out, back = report.rows_withdrawn[sink.name], report.rows_added[sink.name]
        say(f"sink {sink.name}: {out:,} rows out, {back:,} rows back")
    for sink in report.left_alone:
        say(f"sink {sink.name} at {sink.path} is left alone: it is as it was")
    if report.committed_id is not None:
        say(f"checkpoint {report.committed_id} says so; run the job to go on from there")


def _step(file: Disposal) -> tuple[str, str]:
    return file.step, f"({file.why.partition(' of ')[0]})"  # not which attempt
