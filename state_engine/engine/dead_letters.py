"""Dead letters of a job, listed and sent again through today's code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.dead_letters import LETTERS
from state_engine.core.errors import ConfigurationError
from state_engine.core.time.time_plan import ROWS_ALONE
from state_engine.engine.context import EngineContext
from state_engine.engine.running import OnBatch, check_keyed_sinks
from state_engine.job.job import StatefulJob
from state_engine.job.job_tables import JobTables
from state_engine.microbatch.batch import PlannedInput
from state_engine.microbatch.coordinator import RunOptions
from state_engine.microbatch.dead_letters import DeadLetter, chosen, letters_of, next_slice
from state_engine.microbatch.reports import BatchReport
from state_engine.microbatch.run_always import any_timer_due
from state_engine.sources.source_positions import SourcePositions


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
    tables = context.ran(job.name)
    known = _letters(context, tables, job)
    wanted = [one for one in chosen(known, ids) if operator in (None, one.operator)]
    left = {one.id: one.problem for one in known if one.problem and not one.sent}
    report = DeadLetterReport(job.name, [one.id for one in wanted], left=left, dry_run=dry_run)
    if dry_run or not wanted:
        return report
    if max_rows < 1:
        raise ConfigurationError(f"max_rows must be at least 1, not {max_rows}")

    def letters(path: Sequence[CheckpointRow]) -> list[DeadLetter]:
        return _letters(context, tables, job, path)

    script = _LetterScript(
        job, context.positions(job.name), set(report.sent), max_rows, options.clock(), letters
    )
    options = replace(options, clock=script.clock, bounded=True, script=script)
    check_keyed_sinks(context, job, tables.log.history)
    coordinator, batches = context.coordinator(job, options), list[BatchReport]()
    while (batch := coordinator.run_batch()) is not None:
        batches.append(batch)
        if on_progress is not None:
            on_progress(batch)
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


class _LetterScript:
    """Plans the micro-batches that send letters; a ``Script`` for the coordinator.

    Timers that are due by the clock fire before, in a micro-batch of their own, so a batch of letters has no other
    input.
    """

    def __init__(
        self,
        job: StatefulJob,
        positions: SourcePositions,
        wanted: set[str],
        max_rows: int,
        now_ms: int,
        letters: Callable[[Sequence[CheckpointRow]], list[DeadLetter]],
    ) -> None:
        self._job, self._positions, self._wanted = job, positions, wanted
        self._max_rows, self._now_ms, self._letters = max_rows, now_ms, letters

    def clock(self) -> int:
        return self._now_ms

    def __call__(self, path: list[CheckpointRow]) -> PlannedInput | None:
        wanted = [one for one in self._letters(path) if one.id in self._wanted]
        sent = self._positions.elements(path, LETTERS)
        part = next_slice(wanted, sent, self._max_rows)
        if part is None:
            return None
        parent = path[-1]
        clock_ms = max(self._now_ms, parent.clock_ms)
        # nobody looks at the sources now, so only rows move event time
        if any_timer_due(self._job, parent, clock_ms=clock_ms, time=ROWS_ALONE, drain=False):
            return PlannedInput({}, clock_ms)
        return PlannedInput({}, clock_ms, letters=part)
