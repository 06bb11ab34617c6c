"""``EngineLetters``: dead letters of a job, listed and sent again through today's code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from state_engine.core.checkpoints import lineage
from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.dead_letters import LETTERS
from state_engine.core.errors import ConfigurationError
from state_engine.engine.engine_base import Clock, EngineBase, clock_of, job_name, requester
from state_engine.engine.renamed import renamed_parameters
from state_engine.job.job import StatefulJob
from state_engine.job.job_tables import JobTables
from state_engine.microbatch.batch import PlannedInput
from state_engine.microbatch.coordinator import RunOptions
from state_engine.microbatch.letters import DeadLetter, chosen, letters_of, next_slice
from state_engine.microbatch.reports import BatchReport
from state_engine.microbatch.run_always import any_timer_due


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


class EngineLetters(EngineBase):
    """See ``StateEngine``."""

    def list_dead_letters(self, job: StatefulJob | str, *, sent: bool = False) -> list[DeadLetter]:
        """The dead letters on the head's path, oldest first; ``dead_letters`` has them as a DataFrame.

        Args:
            job: a job, or a name; only of a job it is known whether its operators and sources could take them.
            sent: whether those that were sent again are listed, too.
        """
        tables = self._existing(job_name(job))
        if tables is None:
            return []
        found = self._letters(tables, job if isinstance(job, StatefulJob) else None)
        return [one for one in found if sent or not one.sent]

    @renamed_parameters(on_batch="on_progress")
    def replay_dead_letters(
        self,
        job: StatefulJob,
        *,
        ids: Sequence[str] | None = None,
        operator: str | None = None,
        max_rows: int = 10_000,
        clock: Clock = None,
        parameters: Mapping[str, str] | None = None,
        requested_by: str | None = None,
        dry_run: bool = False,
        on_progress: Callable[[BatchReport], Any] | None = None,
    ) -> DeadLetterReport:
        """Send dead letters through today's code, each exactly once along the head's path.

        A letter goes to the operator that refused it, or, where it could not be parsed, to its source. Letters come
        after all rows that were read before them, so one may be late by its event time. One that is refused again is a
        new letter. A restore to before takes back what they did, and has them waiting again.

        Args:
            ids: of letters; all that wait and can be sent by default.
            operator: only those that it refused.
            max_rows: letters of a micro-batch.
            clock, parameters, requested_by, on_progress: as for ``run``.
            dry_run: only tell what would be sent.

        Raises:
            ConfigurationError: a letter was sent before, or cannot be.
            UserFunctionError, …: as for ``run``; what was committed before stays, and the others wait.
        """
        job.check()
        tables = self._ran(job.name)
        known = self._letters(tables, job)
        wanted = [one for one in chosen(known, ids) if operator in (None, one.operator)]
        left = {one.id: one.problem for one in known if one.problem and not one.sent}
        report = DeadLetterReport(job.name, [one.id for one in wanted], left=left, dry_run=dry_run)
        if dry_run or not wanted:
            return report
        if max_rows < 1:
            raise ConfigurationError(f"max_rows must be at least 1, not {max_rows}")
        script = _LetterScript(
            job, tables, {one.id for one in wanted}, max_rows, clock_of(clock)(), self._letters
        )
        options = RunOptions(
            script.clock, dict(parameters or {}), requested_by or requester(), bounded=True, script=script
        )
        coordinator, batches = self._coordinator(job, options), list[BatchReport]()
        while (batch := coordinator.run_batch()) is not None:
            batches.append(batch)
            if on_progress is not None:
                on_progress(batch)
        refused = sum(batch.rows_refused for batch in batches)
        return DeadLetterReport(job.name, report.sent, batches, refused, left)

    def _letters(
        self, tables: JobTables, job: StatefulJob | None, path: Sequence[CheckpointRow] | None = None
    ) -> list[DeadLetter]:
        if path is None:
            rows = tables.store.load()
            top = lineage.head(rows)
            path = lineage.path(rows, top.checkpoint_id if top else None)
        uri = tables.layout.dead_letters
        if not any(row.dead_letters for row in path) or not self.kernel.exists(uri):
            return []
        return letters_of(path, job, tables.positions, uri=uri, active=set(self.kernel.active_files(uri)))


class _LetterScript:
    """Plans the micro-batches that send letters; a ``Script`` for the coordinator.

    Timers that are due by the clock fire before, in a micro-batch of their own, so a batch of letters has no other
    input.
    """

    def __init__(
        self,
        job: StatefulJob,
        tables: JobTables,
        wanted: set[str],
        max_rows: int,
        now_ms: int,
        letters: Callable[..., list[DeadLetter]],
    ) -> None:
        self._job, self._tables, self._wanted = job, tables, wanted
        self._max_rows, self._now_ms, self._letters = max_rows, now_ms, letters

    def clock(self) -> int:
        """One for all of them."""
        return self._now_ms

    def __call__(self, path: list[CheckpointRow]) -> PlannedInput | None:
        wanted = [one for one in self._letters(self._tables, self._job, path) if one.id in self._wanted]
        sent = self._tables.positions.elements(path, LETTERS)
        part = next_slice(wanted, sent, self._max_rows)
        if part is None:
            return None
        parent = path[-1]
        clock_ms = max(self._now_ms, parent.clock_ms)
        if any_timer_due(self._job, parent, clock_ms=clock_ms, drain=False):
            return PlannedInput({}, clock_ms)
        return PlannedInput({}, clock_ms, letters=part)
