"""One Dagster run of a job in time partitions: one partition, a range of them, or all that wait.

The engine keeps the order, whatever Dagster launches, and runs again what was run before: this module asks it how far
each partition is, and calls ``run`` or ``backfill``. What it refuses because of the order fails at once, is not
retried, and loses nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import dagster as dg
from pydantic import Field, model_validator

from state_engine.core.checkpoints.checkpoint import MAIN
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import ConfigurationError, PartitionOrderError
from state_engine.dagster.dagster_internals import BACKFILL_ID_TAG
from state_engine.dagster.dagster_job import DagsterJob
from state_engine.dagster.external.external_runner import JobRunner
from state_engine.dagster.metadata import markdown, run_metadata
from state_engine.dagster.micro_batches import ACCEPT_CLOCK, show_stopped_commit
from state_engine.dagster.partition_events import PartitionEvents
from state_engine.microbatch.partition_runs import PartitionStatus
from state_engine.telemetry.trace_context import continued_trace

if TYPE_CHECKING:
    from state_engine.replay.backfill import BackfillReport


class PartitionConfig(dg.Config):
    """Configuration of a run; all of it is optional."""

    mode: str | None = Field(
        default=None,
        pattern="^(roll_forward|stop|branch)$",
        description=(
            "Of partitions that were run before. roll_forward (the default): all later ones run again, too, and the "
            "outputs are swapped at the end; stop: later ones become stale; branch: leave the result on a branch."
        ),
    )
    rebatch: bool = Field(
        default=False,
        description="Read what the sources hold now, rows that were late included, not what was read before.",
    )
    dry_run: bool = Field(default=False, description="Only show what would be done.")
    missing_only: bool = Field(default=False, description="Run only those that were not run yet.")
    parameters: dict[str, str] = Field(
        default={}, description="What functions get from RuntimeContext.get_job_parameter."
    )
    accept_clock: bool = ACCEPT_CLOCK

    @model_validator(mode="after")
    def _one_wish(self) -> Self:
        if self.missing_only and self.runs_again:
            raise ValueError(
                "missing_only runs nothing again: leave out mode and rebatch, or leave out missing_only"
            )
        return self

    @property
    def runs_again(self) -> bool:
        """Whether somebody wants partitions to be run once more, the very last one included."""
        return self.mode is not None or self.rebatch


@dataclass(frozen=True)
class Outcome:
    """What the engine did."""

    partitions: list[str] = field(default_factory=list)
    shown: Mapping[str, Any] = field(default_factory=dict)


def run_partitions(
    context: dg.AssetExecutionContext,
    config: PartitionConfig,
    dagster_job: DagsterJob,
    engine: JobRunner,
    *,
    declared: Collection[dg.AssetKey],
) -> Iterator[dg.MaterializeResult[None]]:
    """Run what was asked for, and show every partition that has new outputs; none where nothing was to be done."""
    sliced = context.has_partition_key or context.has_partition_key_range
    asked = list(context.partition_keys) if sliced else []
    single = asked[0] if len(asked) == 1 else None
    events = PartitionEvents(context, engine, dagster_job, declared, returned=single)
    run = _Run(events, config, dagster_job)
    try:
        with continued_trace(context.run.tags):
            outcome = run.partitions(asked) if asked else run.all_that_wait()
    except (PartitionOrderError, ConfigurationError) as error:
        events.failed()
        raise dg.Failure(str(error), allow_retries=False) from error
    except BaseException as error:
        events.failed()
        show_stopped_commit(context, dagster_job, error)
        raise
    if outcome.partitions:
        yield from events.finish(outcome.partitions, outcome.shown, engine.partitions(dagster_job.job))


@dataclass(frozen=True)
class _Run:
    events: PartitionEvents
    config: PartitionConfig
    dagster_job: DagsterJob

    def all_that_wait(self) -> Outcome:
        """A run without a partition: those after the head's that are over."""
        if self.config.runs_again or self.config.dry_run:
            raise ConfigurationError(
                f"job '{self.dagster_job.name}': mode, rebatch and dry_run are for partitions: name them, by "
                "--partition or --partition-range, or select them"
            )
        return self._ordinary(None)

    def partitions(self, asked: Sequence[str]) -> Outcome:
        """The partitions of a run, which lie side by side; those that ran elsewhere are shown as well."""
        states = {one.key: one for one in self.events.engine.partitions(self.dagster_job.job)}
        done = [key for key in asked if key in states and states[key].state == "done"]
        wanted = [key for key in asked if key not in done] if self.config.missing_only else asked
        if self.config.dry_run and wanted:
            return self._foreseen(wanted)
        outcome = self._run(wanted, states)
        behind = [key for key in done if key not in outcome.partitions and not self._is_shown(states[key])]
        if behind:
            self._log(f"{behind} were run before, and are shown now")
        return replace(outcome, partitions=[*behind, *outcome.partitions])

    def _run(self, wanted: Sequence[str], states: Mapping[str, PartitionStatus]) -> Outcome:
        done = [key for key, one in states.items() if one.state == "done"]
        if not wanted:
            self._log("these partitions were run already, so there is nothing to do")
            return Outcome()
        if len(wanted) == 1 and wanted[0] not in done:
            return self._ordinary(wanted[0])
        if wanted == done[-1:] and not self.config.runs_again:
            return self._once_more(states[done[-1]])
        return self._backfilled(wanted)

    def _ordinary(self, partition: str | None) -> Outcome:
        report = self.events.engine.run(
            self.dagster_job.job,
            partition=partition,
            parameters=self.config.parameters,
            accept_clock=self.config.accept_clock,
            requested_by=self.events.requester,
            on_progress=self.events.batch,
        )
        partition_of = {row.checkpoint_id: row.partition for row in self.events.path()}
        published = [partition_of[i] for i in report.published_pending if partition_of.get(i)]
        if partition is None and not report.batches and not published:
            self._log("all partitions that are over were run already, so there is nothing to do")
        whole_run = run_metadata(
            report.batches,
            caught_up=report.caught_up,
            published_pending=report.published_pending,
            waiting=report.files_waiting,
        )
        return Outcome(list(dict.fromkeys([*published, *report.partitions])), whole_run)

    def _once_more(self, last: PartitionStatus) -> Outcome:
        """The last partition, which the engine does not run twice; it publishes what a crash left."""
        outcome = self._ordinary(last.key)
        self._log(
            f"partition {last.key} is the last one that was run, as checkpoint {last.checkpoint_id}, and is not run "
            "twice; to run it again, give the run the configuration mode: roll_forward, or rebatch: true"
        )
        return outcome

    def _backfilled(self, asked: Sequence[str]) -> Outcome:
        report = self._backfill(asked, dry_run=False)
        if report.branch != MAIN and report.move is None:
            self._log(f"branch {report.branch} holds the result: compare and promote it, or drop it")
            self.events.observe(backfill_metadata(report))
            return Outcome()
        return Outcome(report.partitions, backfill_metadata(report))

    def _foreseen(self, asked: Sequence[str]) -> Outcome:
        report = self._backfill(asked, dry_run=True)
        self._log(
            f"a dry run: {counted(len(report.partitions), 'partition')} would run on branch {report.branch}"
        )
        self.events.observe({"dry_run": True, **backfill_metadata(report)})
        return Outcome()

    def _backfill(self, asked: Sequence[str], *, dry_run: bool) -> BackfillReport:
        return self.events.engine.backfill(
            self.dagster_job.job,
            asked[0],
            asked[-1],
            self.config.mode or "roll_forward",
            dry_run=dry_run,
            rebatch=self.config.rebatch,
            parameters=self.config.parameters,
            accept_clock=self.config.accept_clock,
            requested_by=self.events.requester,
            on_progress=self.events.batch,
        )

    def _is_shown(self, state: PartitionStatus) -> bool:
        # a backfill of Dagster calls a partition failed that its runs show nothing of: the version stays the same
        of_backfill = BACKFILL_ID_TAG in self.events.context.run.tags
        return not of_backfill and self.events.is_in_step(state.key, state.checkpoint_id)

    def _log(self, text: str) -> None:
        self.events.context.log.info(f"job '{self.dagster_job.name}': {text}")


def backfill_metadata(report: BackfillReport) -> dict[str, Any]:
    outputs = [[s, report.rows_withdrawn.get(s, 0), n] for s, n in report.rows_added.items()]
    ran = run_metadata(report.batches, caught_up=True, published_pending=[]) if report.batches else {}
    own = {k: v for k, v in ran.items() if k.startswith("run_")}
    return {
        "mode": report.mode,
        "branch": report.branch,
        "began_at_checkpoint": dg.MetadataValue.null() if report.begin_id is None else report.begin_id,
        "partitions_of_run": dg.MetadataValue.json(report.partitions),
        "resumed": dg.MetadataValue.json(report.resumed),
        "stale": dg.MetadataValue.json(report.stale),
        "sinks": dg.MetadataValue.md(markdown(["sink", "rows out", "rows in"], outputs)),
        **own,
    }
