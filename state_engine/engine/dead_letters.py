"""Dead letters of a job, listed and sent again through today's code."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.dead_letters import LETTERS
from state_engine.core.choices import check_count
from state_engine.core.errors import ConfigurationError
from state_engine.core.time.time_plan import ROWS_ALONE
from state_engine.engine.context import EngineContext
from state_engine.engine.running import OnBatch, after_batch, check_keyed_sinks, traced
from state_engine.job.job import StatefulJob
from state_engine.job.job_tables import JobTables
from state_engine.microbatch.batch import PlannedInput, Script
from state_engine.microbatch.coordinator import RunOptions
from state_engine.microbatch.dead_letters import DeadLetter, chosen, letters_of, next_slice
from state_engine.microbatch.quiet_time import any_timer_due
from state_engine.microbatch.reports import BatchReport


@dataclass(frozen=True)
class DeadLetterReport:
    """What ``replay_dead_letters`` did.

    Attributes:
        job: name.
        sent: ids of the letters that were sent; of a dry run, that would be.
        batches: the micro-batches that sent them, one for each place that letters go to.
        refused: how many of them were refused again: they are new letters.
        left: ids of letters that wait still, and cannot be sent; with the reason.
        dry_run: whether nothing was done.
    """

    job: str
    sent: list[str]
    batches: list[BatchReport] = field(default_factory=list)
    refused: int = 0
    left: Mapping[str, str] = field(default_factory=dict)
    dry_run: bool = False


def list_dead_letters(context: EngineContext, name: str, job: StatefulJob | None) -> list[DeadLetter]:
    """The dead letters on the path of a job's head, oldest first."""
    tables = context.existing(name)
    return [] if tables is None else _letters(context, tables, job)


def replay_dead_letters(
    context: EngineContext,
    job: StatefulJob,
    options: RunOptions,
    *,
    ids: Sequence[str] | None,
    operator: str | None,
    max_rows: int,
    dry_run: bool,
    on_progress: OnBatch,
) -> DeadLetterReport:
    check_count(max_rows, what="max_rows")
    tables = context.ran(job.name)
    known = _letters(context, tables, job)
    if operator is not None and operator not in {*job.operators, *(one.operator for one in known)}:
        raise ConfigurationError(
            f"job '{job.name}' has no operator '{operator}'; it has {sorted(job.operators)}"
        )
    wanted = [one for one in chosen(known, ids) if operator in (None, one.operator)]
    left = {one.id: one.problem for one in known if one.problem and not one.sent}
    report = DeadLetterReport(job.name, [one.id for one in wanted], left=left, dry_run=dry_run)
    if dry_run or not wanted:
        return report
    script = _script(context, tables, job, set(report.sent), max_rows, options.clock())
    options = replace(options, bounded=True, script=script)
    check_keyed_sinks(context, job, tables.log.history)
    coordinator, batches = context.coordinator(job, options), list[BatchReport]()
    with traced(context, "replay_dead_letters", job, options):
        while (batch := coordinator.run_batch()) is not None:
            batches.append(batch)
            after_batch(context, job, batch, on_progress)
    coordinator.check_tables()
    refused = sum(batch.rows_refused for batch in batches)
    return replace(report, batches=batches, refused=refused)


def _letters(
    context: EngineContext,
    tables: JobTables,
    job: StatefulJob | None,
    path: Sequence[CheckpointRow] | None = None,
) -> list[DeadLetter]:
    if path is None:
        path = tables.log.load().main_path
    uri = tables.layout.dead_letters
    if not any(row.dead_letters for row in path) or not context.kernel.exists(uri):
        return []
    active = set(context.kernel.active_files(uri))
    return letters_of(path, job, context.positions(tables.layout.job), uri=uri, active=active)


def _script(
    context: EngineContext,
    tables: JobTables,
    job: StatefulJob,
    ids: Collection[str],
    max_rows: int,
    now_ms: int,
) -> Script:
    """Plans the micro-batches that send letters.

    Timers that are due by the clock fire before, in a micro-batch of their own, so a batch of letters has no other
    input.
    """
    positions = context.positions(job.name)

    def planned(path: list[CheckpointRow]) -> PlannedInput | None:
        wanted = [one for one in _letters(context, tables, job, path) if one.id in ids]
        part = next_slice(wanted, positions.elements(path, LETTERS), max_rows)
        if part is None:
            return None
        parent = path[-1]
        clock_ms = max(now_ms, parent.clock_ms)
        # nobody looks at the sources now, so only rows move event time
        if any_timer_due(job, parent, clock_ms=clock_ms, time=ROWS_ALONE, drain=False):
            return PlannedInput({}, clock_ms)
        return PlannedInput({}, clock_ms, letters=part)

    return planned
