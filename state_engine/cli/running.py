"""Commands that run jobs: ``jobs``, ``run``, ``publish-pending``, ``backfill``, ``partitions``. The engine does it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from state_engine.cli.form import for_people
from state_engine.cli.operations import moved
from state_engine.cli.options import AcceptClock, DryRun, Job, OutputOptions, Rebatch, outputs_policy
from state_engine.cli.output import Record, plain, print_records, report, show
from state_engine.cli.progress import progress
from state_engine.cli.session import (
    declared,
    known,
    listed,
    loaded_settings,
    no_settings,
    opened,
    registered,
    remark,
    say,
    show_failure,
)
from state_engine.cli.tables import table
from state_engine.core.checkpoints.history import History
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import ConfigurationError
from state_engine.microbatch.partition_runs import PartitionStatus, partition_states, partitions_of
from state_engine.microbatch.reports import RunReport
from state_engine.monitoring.job_history import read_history
from state_engine.pipes.engine_calls import EngineCall
from state_engine.pipes.reporting import launched_run
from state_engine.replay.backfill import BackfillReport
from state_engine.spark.catalog import check_lasting, place_of
from state_engine.telemetry.trace_context import continued_trace

if TYPE_CHECKING:
    from state_engine.engine.engine import StateEngine
    from state_engine.registry import RegisteredJob


def jobs() -> None:
    """List the jobs that the settings and installed packages name; starts neither Spark nor Java."""
    settings = loaded_settings().settings
    records: list[dict[str, Any]] = [
        {
            "job": name,
            "schedule": one.cron,
            "operators": list(one.job.operators),
            "parallelism": one.job.parallelism,
            "sinks": [*one.job.sinks, *one.job.published],
            "about": one.description.strip().split("\n\n")[0].replace("\n", " "),
        }
        for name, one in registered(settings).items()
    ]

    if looked := no_settings():
        remark(looked)
    columns = ("job", "schedule", "operators", "parallelism", "sinks", "about")
    show(records, lambda: _job_table(records), columns=columns)


def run(
    job: Annotated[str | None, typer.Argument(help="Name of the job; or give --all.")] = None,
    all_jobs: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Run all jobs of the project in one session, one after another; go on after one that fails.",
        ),
    ] = False,
    partition: Annotated[
        str | None,
        typer.Option(help="For a job in time partitions: run this one; by default all that are over."),
    ] = None,
    max_batches: Annotated[
        int | None, typer.Option(min=1, help="Stop after this many micro-batches.")
    ] = None,
    drain: Annotated[
        bool, typer.Option("--drain", help="The input has ended: fire every event-time timer.")
    ] = False,
    accept_clock: AcceptClock = False,
    register: Annotated[
        str | None,
        typer.Option(
            metavar="SCHEMA",
            help="Afterwards, register the job in this schema of Spark's catalog, see statelake register.",
        ),
    ] = None,
) -> None:
    """Run micro-batches until the sources have nothing new; if Dagster launched this, do what its run requests."""
    if (job is None) is not all_jobs:
        raise ConfigurationError("name the job to run, or give --all for all jobs of the project")
    if all_jobs and partition:
        raise ConfigurationError("--partition is of one job: name it instead of --all")
    with launched_run() as launched:
        if launched is not None:
            _check_call(
                launched.call,
                job,
                options=bool(partition or max_batches or drain or accept_clock or register),
            )
        if job is None:
            _run_all(max_batches=max_batches, drain=drain, accept_clock=accept_clock, register=register)
            return
        code = declared(job)
        with opened() as engine, progress(f"{job}: preparing its input") as on_progress:
            if launched is not None:
                asked = launched.perform(engine, code, on_progress)
            else:
                if register:
                    check_lasting(engine.spark, place_of(register)[0])
                asked = _ran(
                    engine,
                    code,
                    partition=partition,
                    max_batches=max_batches,
                    drain=drain,
                    accept_clock=accept_clock,
                    register=register,
                    on_progress=on_progress,
                )
    dry_run = launched is not None and bool(launched.call.arguments.get("dry_run"))
    report(
        asked, run_lines(asked) if isinstance(asked, RunReport) else [backfill_text(asked, dry_run=dry_run)]
    )


def _ran(engine: StateEngine, code: RegisteredJob, **options: Any) -> RunReport:
    """A run of a registered job, in the trace that the environment names."""
    code.prepare()
    with continued_trace(os.environ):
        return engine.run(code.job, **options)


def _run_all(*, max_batches: int | None, drain: bool, accept_clock: bool, register: str | None) -> None:
    """Run all jobs of the project, in the order in which ``statelake jobs`` lists them; end with 1 where one failed."""
    jobs = registered(loaded_settings().settings)
    if not jobs:
        raise ConfigurationError(
            "there is no job to run: the setting jobs.modules names the modules with jobs"
        )
    failed: list[str] = []
    records: list[Record] = []
    with opened() as engine:
        if register:
            check_lasting(engine.spark, place_of(register)[0])
        for name, code in jobs.items():
            try:
                with progress(f"{name}: preparing its input") as on_progress:
                    done = _ran(
                        engine,
                        code,
                        max_batches=max_batches,
                        drain=drain,
                        accept_clock=accept_clock,
                        register=register,
                        on_progress=on_progress,
                    )
            except Exception as error:
                failed.append(name)
                records.append({"job": name, "error": f"{type(error).__name__}: {error}"})
                show_failure(name, error)
            else:
                records.append(plain(done))
                for line in run_lines(done) if for_people() else ():
                    say(line)
    if not for_people():
        print_records(records)
    if failed:
        remark(f"{len(failed)} of {counted(len(jobs), 'job')} failed: {listed(failed)}")
        raise typer.Exit(code=1)


def _check_call(call: EngineCall, job: str | None, *, options: bool) -> None:
    """Refuse to run what the run of Dagster that launched this process did not ask for."""
    if call.job != job or options:
        raise ConfigurationError(
            f"a run of Dagster launched this process for the job '{call.job}': launch `statelake run {call.job}`, "
            "without options. The configuration of the run has them"
        )


def run_lines(done: RunReport) -> Iterator[str]:
    """What a run did, in sentences.

    Example:
        >>> for line in run_lines(RunReport("sums", [], True, [3, 4])):
        ...     print(line)
        sums: first published the outputs of earlier commits: 3, 4
        sums: nothing new
    """
    if done.published_pending:
        yield f"{done.job}: first published the outputs of earlier commits: {listed(done.published_pending)}"
    for sink, path in done.left_alone.items():
        yield f"{done.job}: sink {sink} at {path} is left alone: the code no longer has it"
    if done.batches:
        end = "caught up" if done.caught_up else f"stopped after {counted(len(done.batches), 'micro-batch')}"
        yield f"{done.job}: {counted(done.rows_in, 'row')} in, {end}, head {done.checkpoint_id}"
    else:
        yield f"{done.job}: nothing new"
    for problem in dict.fromkeys(one.problem for one in done.tables if one.problem):
        yield f"{done.job}: {problem}"
    for text in done.files_waiting:
        yield f"{done.job}: waits: {text}"
    for text in done.outages:
        yield f"{done.job}: {text}"


def publish_pending(
    job: Job,
    from_checkpoint: Annotated[
        int | None,
        typer.Option(min=1, help="Publish again what sinks do not show of this checkpoint and later ones."),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Publish outputs that are committed and not published, even to a sink that was put back from a backup."""
    code = known(job)
    with opened("Publishing") as engine:
        done = engine.publish_pending(code, from_checkpoint=from_checkpoint, dry_run=dry_run)
    verb = "would publish" if dry_run else "published"
    text = f"{job}: {verb} {listed(done)}" if done else f"{job}: everything is published"
    report({"job": job, "published": done, "dry_run": dry_run}, [text])


def backfill(
    job: Job,
    start: Annotated[str, typer.Option("--from", help="First partition, for example 2013-01-02.")],
    end: Annotated[str, typer.Option("--to", help="Last partition.")],
    mode: Annotated[
        str,
        typer.Option(
            help="roll_forward: later partitions too, then swap; stop: later ones become stale; branch: look first."
        ),
    ] = "roll_forward",
    rebatch: Rebatch = False,
    outputs: OutputOptions = None,
    accept_clock: AcceptClock = False,
    dry_run: DryRun = False,
) -> None:
    """Run time partitions again with today's code; the same call continues an interrupted one."""
    code = declared(job)
    with opened() as engine, progress(f"{job}: looking up what was recorded") as on_progress:
        if not dry_run:
            code.prepare()
        done = engine.backfill(
            code.job,
            start,
            end,
            mode,
            rebatch=rebatch,
            outputs=outputs_policy(outputs),
            accept_clock=accept_clock,
            dry_run=dry_run,
            on_progress=on_progress,
        )
    record = {**plain(done), "move": done.move and moved(done.move), "dry_run": dry_run}
    report(record, [backfill_text(done, dry_run=dry_run)])


def partitions(job: Job) -> None:
    """List the time partitions of a job: done, stale or missing."""
    code = declared(job).job
    past = read_history(loaded_settings().settings.root, job)
    now_ms = time.time_ns() // 1_000_000
    history = past.checkpoints if past else History()
    states = partition_states(partitions_of(code, "statelake partitions"), history, now_ms=now_ms)
    records = [
        {
            "partition": one.key,
            "state": one.state,
            "checkpoint": one.checkpoint_id,
            "rows": one.rows,
            "late_rows": one.late_rows,
        }
        for one in states
    ]
    columns = ("partition", "state", "checkpoint", "rows", "late_rows")
    show(records, lambda: _partition_table(states), columns=columns)


def backfill_text(report: BackfillReport, *, dry_run: bool) -> str:
    """What a backfill did, as text.

    Example:
        >>> seen = BackfillReport("delays", "stop", "backfill_1", 3, ["2013-01-02"], [], {"2013-01-02": 842},
        ...                       ["2013-01-03"], rows_withdrawn={"out": 842}, rows_added={"out": 842})
        >>> print(backfill_text(seen, dry_run=True))
        delays: 1 partition, 2013-01-02 to 2013-01-02, would run on branch backfill_1 from checkpoint 3
          2013-01-02: 842 rows were read before
        sink out: 842 rows would be withdrawn; if the results are equal, 842 would be published
        stale until they run again: 2013-01-03
    """
    if not report.partitions:
        return f"{report.job}: nothing to do"
    lines = _planned(report) if dry_run else [_done(report)]
    for sink in sorted(report.rows_withdrawn.keys() | report.rows_added.keys()):
        leave, come = report.rows_withdrawn.get(sink, 0), report.rows_added.get(sink, 0)
        if dry_run:
            lines.append(
                f"sink {sink}: {counted(leave, 'row')} would be withdrawn; if the results are equal, {come:,} "
                "would be published"
            )
        else:
            lines.append(f"sink {sink}: {counted(leave, 'row')} withdrawn, {come:,} published")
    if report.stale:
        lines.append(f"stale until they run again: {listed(report.stale)}")
    if report.mode == "branch" and not dry_run:
        lines.append(f"look at it: statelake branch compare {report.job} {report.branch}")
        lines.append(f"then:       statelake branch promote {report.job} {report.branch}")
    return "\n".join(lines)


def _done(report: BackfillReport) -> str:
    return f"{_span(report)}, on branch {report.branch}; {len(report.batches)} run by this call"


def _planned(report: BackfillReport) -> list[str]:
    begin = f"checkpoint {report.begin_id}" if report.begin_id else "the very beginning"
    lines = [f"{_span(report)}, would run on branch {report.branch} from {begin}"]
    for key in report.partitions:
        rows = report.rows_recorded.get(key)
        before = (
            "never run before" if rows is None else f"{counted(rows, 'row was', 'rows were')} read before"
        )
        lines.append(f"  {key}: {before}{' (done on the branch)' if key in report.resumed else ''}")
    return lines


def _span(report: BackfillReport) -> str:
    keys = report.partitions
    return f"{report.job}: {counted(len(keys), 'partition')}, {keys[0]} to {keys[-1]}"


def _job_table(records: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        (
            one["job"],
            one["schedule"],
            f"{len(one['operators'])}, parallelism {one['parallelism']}",
            listed(one["sinks"]),
            one["about"],
        )
        for one in records
    ]
    return table(
        ("job", "schedule", "operators", "sinks", "about"), rows, folds=("operators", "sinks", "about")
    )


def _partition_table(states: Sequence[PartitionStatus]) -> Table:
    rows = [
        (
            one.key,
            one.state,
            "" if one.checkpoint_id is None else str(one.checkpoint_id),
            f"{one.rows:,}",
            f"{one.late_rows:,}",
        )
        for one in states
    ]
    numbers = ("checkpoint", "rows", "late")
    return table(("partition", "state", *numbers), rows, right=numbers)
