"""Commands that operate on what a job has recorded. What they do is the engine's.

They run nothing of the job's code; where the settings name its module, it says which sinks are still the job's.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import groupby
from typing import Annotated, Any

import typer

from state_engine.cli.options import DryRun, Job, LeaveAlone, Operators, OutputOptions, outputs_policy
from state_engine.cli.output import plain, report
from state_engine.cli.progress import opened_in_view, progress
from state_engine.cli.session import declared, known, listed, opened
from state_engine.core.checkpoints.file_disposal import Disposal
from state_engine.core.checkpoints.retention import RetentionPolicy
from state_engine.core.checkpoints.sink_kind import SinkKind
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import ConfigurationError
from state_engine.microbatch.reports import CompactionReport
from state_engine.operations.file_collector import VacuumReport
from state_engine.operations.head_operations import RestoreReport
from state_engine.operations.rescaling import RescaleReport
from state_engine.queries.catalog_views import RegistrationReport
from state_engine.spark.catalog import check_lasting, place_of
from state_engine.state_tables.base import TableReport


def restore(
    job: Job,
    checkpoint_id: Annotated[
        int | None, typer.Argument(help="Checkpoint to go back to; see: statelake checkpoints")
    ] = None,
    savepoint: Annotated[
        str | None,
        typer.Option(
            help="Instead of a checkpoint: the name of a savepoint of the job, or the directory of any savepoint."
        ),
    ] = None,
    allow_non_restored_state: Annotated[
        bool,
        typer.Option(
            "--allow-non-restored-state", help="Leave state behind for which the job has no operator."
        ),
    ] = False,
    outputs: OutputOptions = None,
    leave_alone: LeaveAlone = None,
    dry_run: DryRun = False,
) -> None:
    """Go back to a checkpoint or savepoint: state, source positions and sinks."""
    code = known(job)
    with opened_in_view("Restoring") as engine:
        done = engine.restore(
            code,
            checkpoint_id=checkpoint_id,
            savepoint=savepoint,
            outputs=outputs_policy(outputs),
            allow_non_restored_state=allow_non_restored_state,
            leave_alone=leave_alone or (),
            dry_run=dry_run,
        )
    report({"job": job, **moved(done)}, move_lines(job, done))


def rescale(
    job: Job,
    parallelism: Annotated[
        int | None,
        typer.Option(min=1, help="Number of subtasks of every operator; by default what the job declares."),
    ] = None,
    max_parallelism: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of key groups. This rewrites keyed state while micro-batches continue."
        ),
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
    lines = [_rescaled(done)]
    if max_parallelism is not None and not dry_run:
        lines.append(f"declare max_parallelism={max_parallelism} in the job from now on")
    report(done, lines)


def compact(
    job: Job,
    full: Annotated[bool, typer.Option("--full", help="Rewrite all key groups, changed or not.")] = False,
    operator: Operators = None,
    dry_run: DryRun = False,
) -> None:
    """Fold the keyed state into new bases; micro-batches continue meanwhile."""
    with opened() as engine, progress("Compacting") as on_progress:
        done = engine.compact(job, operator or None, full=full, dry_run=dry_run, on_progress=on_progress)
    report({"job": job, **plain(done), "dry_run": dry_run}, _compacted(job, done, dry_run=dry_run))


def expire_checkpoints(
    job: Job,
    keep_last: Annotated[int, typer.Option(min=1, help="How many checkpoints to keep.")] = 10,
    keep_hours: Annotated[
        float | None, typer.Option(min=0, help="Also keep all that are younger than this.")
    ] = None,
    drop_branch: Annotated[
        list[str] | None, typer.Option(help="Branch to drop because nobody will promote it; may be repeated.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Expire old checkpoints: they can no longer be restored, and vacuum may delete their files."""
    younger = None if keep_hours is None else int(timedelta(hours=keep_hours) / timedelta(milliseconds=1))
    policy = RetentionPolicy(keep_last, younger)
    with opened() as engine:
        expired = engine.expire_checkpoints(job, policy, drop_branches=drop_branch or (), dry_run=dry_run)
    text = f"{job}: {'would expire' if dry_run else 'expired'} {listed(expired)}"
    report({"job": job, "expired": expired, "dry_run": dry_run}, [text])


def vacuum(
    job: Job,
    orphan_hours: Annotated[
        float, typer.Option(min=24, help="Keep files for at least this many hours.")
    ] = 24,
    delta_vacuum: Annotated[
        bool, typer.Option("--delta-vacuum", help="Also let Delta clean up the job's own tables.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Delete files that are no longer needed: of expired checkpoints, and of crashed attempts."""
    with opened() as engine, progress("Looking for files") as on_progress:
        done = engine.vacuum(
            job,
            orphan_age=timedelta(hours=orphan_hours),
            delta_vacuum=delta_vacuum,
            dry_run=dry_run,
            on_progress=on_progress,
        )
    report(done, _vacuumed(done))


def moved(done: RestoreReport) -> dict[str, Any]:
    """Where the head went, or would go, for programs: sinks with their rows instead of their files."""
    return {
        "kind": done.kind,
        "checkpoint_id": done.checkpoint_id,
        "replaced_id": done.replaced_id,
        "abandoned": done.abandoned,
        "rows_withdrawn": done.rows_withdrawn,
        "rows_added": done.rows_added,
        "left_alone": {sink.name: sink.path for sink in done.left_alone},
        "tables": [plain(table) for table in done.tables],
        "committed_id": done.committed_id,
    }


def move_lines(job: str, done: RestoreReport) -> Iterator[str]:
    """The same in sentences."""
    verb = "would go" if done.committed_id is None else "went"
    if done.replaced_id is None:
        yield f"{job}: the savepoint of checkpoint {done.checkpoint_id} {verb} into the job"
    else:
        yield f"{job}: the head {verb} from checkpoint {done.replaced_id} to {done.checkpoint_id}"
    if done.abandoned:
        yield f"abandoned: {listed(done.abandoned)}"
    for sink in done.sinks:
        out, back = done.rows_withdrawn[sink.name], done.rows_added[sink.name]
        yield f"sink {sink.name}: {counted(out, 'row')} out, {counted(back, 'row')} back"
    for table in done.tables:
        whole = f" ({table.whole})" if table.whole else ""
        yield (
            f"table {table.name}: {counted(table.rows, 'row comes', 'rows come')}, "
            f"{counted(table.deleted, 'goes', 'go')}{whole}"
        )
    for sink in done.left_alone:
        yield f"sink {sink.name} at {sink.path} is left alone: it is as it was"
    if done.committed_id is not None:
        yield f"checkpoint {done.committed_id} records this; run the job to continue from there"


def _rescaled(done: RescaleReport) -> str:
    groups = done.max_parallelism
    in_force = listed(f"{uid}: {n} of {groups.get(uid, n)}" for uid, n in done.parallelism.items())
    if not done.changes:
        return f"{done.job}: nothing changes; in force are {in_force}"
    if done.committed_id is None:
        return f"{done.job}: would put in force {in_force}"
    return f"{done.job}: checkpoint {done.committed_id} puts in force {in_force}"


def _compacted(job: str, done: CompactionReport, *, dry_run: bool) -> Iterator[str]:
    if dry_run:
        for uid, groups in done.key_groups.items():
            yield f"{uid}: would write {counted(groups, 'key group')}"
    for uid, entries in done.entries.items():
        yield f"{uid}: {counted(entries, 'entry')}, {counted(done.bytes[uid], 'byte')}"
    if done.committed_id is not None:
        yield f"{job}: checkpoint {done.committed_id} puts them in force"
    elif done.entries:
        yield f"{job}: nothing was changed, because the head moved to another path; run it again"
    elif not done.key_groups:
        yield f"{job}: nothing changed since the last compaction"


def _vacuumed(done: VacuumReport) -> Iterator[str]:
    for step, group in groupby(sorted(done.files, key=_step), key=_step):
        files = list(group)
        text = (
            f"{' '.join(step)}: {counted(len(files), 'file')}, {counted(sum(f.bytes for f in files), 'byte')}"
        )
        yield f"{'would ' if done.dry_run else ''}{text}"
    if not done.files:
        yield f"{done.job}: no files to delete"


def _step(file: Disposal) -> tuple[str, str]:
    return file.step, f"({file.why.partition(' of ')[0]})"  # not which attempt


# -- published tables -------------------------------------------------------------------------------------------------

Table = Annotated[str, typer.Argument(help="Name of the table among the sinks of the job.")]


def rebuild_table(job: Job, table: Table, dry_run: DryRun = False) -> None:
    """Replace all rows of a published table by the state as of the head."""
    code = known(job)
    with opened(f"{job}: rebuilding {table}") as engine:
        done = engine.published(code).rebuild(table, dry_run=dry_run)
    text = f"{table}: {counted(done.rows, 'row')}, as of the head; {done.place}"
    if dry_run:
        text = f"{table}: {counted(done.rows, 'row')} would be added or replaced, {done.deleted:,} would be deleted"
    report({"job": job, **plain(done), "dry_run": dry_run}, [text])


def verify_table(job: Job, table: Table) -> None:
    """Compare a published table with the state that it shows. Ends with 1 if they differ."""
    code = known(job)
    with opened(f"{job}: comparing {table}") as engine:
        done = engine.published(code).verify(table)
    report({"job": job, **plain(done)}, [_compared_table(done)])
    if done.rows or done.deleted:
        raise typer.Exit(1)


def accept_table(job: Job, table: Table, dry_run: DryRun = False) -> None:
    """Keep what others changed in a published table, or put in the place of a SqlSink's, and continue from there."""
    code = known(job)
    with opened(f"{job}: accepting {table}") as engine:
        done = engine.published(code).accept(table, dry_run=dry_run)
    kept = "would stay" if dry_run else "stays"
    text = f"{table}: what others changed {kept}, until the state of its keys changes; {done.difference}"
    if not SinkKind(done.kind).shows_state:
        text = f"{table}: the table {kept} as it is, as the one that holds what was published; {done.whole}"
    report({"job": job, **plain(done), "dry_run": dry_run}, [text])


def _compared_table(done: TableReport) -> str:
    if not done.rows and not done.deleted:
        return f"{done.name}: equal to the state"
    return (
        f"{done.name}: differs from the state: {done.difference}; "
        "`statelake rebuild-table` puts the state's rows there"
    )


def register(
    schema: Annotated[str, typer.Argument(help="An existing schema for the names: lake, or catalog.lake.")],
    job: Annotated[
        list[str] | None, typer.Option(help="Only this job; may be repeated. All of the root by default.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Give published tables, and a view of every other keyed state as of the head, a name in Spark's catalog."""
    catalog, inside = place_of(schema)
    with opened("Registering") as engine:
        check_lasting(engine.spark, catalog)
        done = engine.register(catalog, inside, jobs=job, dry_run=dry_run)
    report(done, registered_lines(done))


def registered_lines(done: RegistrationReport) -> Iterator[str]:
    for one in done.names:
        what = "follows the head" if one.checkpoint_id is None else f"as of checkpoint {one.checkpoint_id}"
        yield f"{one.job}: {one.kind} {one.name} ({one.of}), {what}"
    if not done.names:
        yield "there is nothing to register: no keyed state, and no published table"
