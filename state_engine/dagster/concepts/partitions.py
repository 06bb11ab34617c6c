"""Time partitions: the check ``late_rows`` of the checkpoint, for jobs that have any.

That they are Dagster's partitions, too, is the business of ``asset_specs``; what one run of them does is that of
``partition_assets``; their schedule is among the automation.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import dagster as dg

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import MissingFilesError
from state_engine.dagster.dagster_job import DagsterJob
from state_engine.dagster.metadata import markdown
from state_engine.dagster.naming import LATE_ROWS, checkpoint_key
from state_engine.job.job import StatefulJob
from state_engine.microbatch.partition_runs import by_partition
from state_engine.monitoring.job_history import JobHistory, read_history
from state_engine.sources.partitioned_input import SEEN
from state_engine.sources.source_positions import SourcePositions


@dataclass(frozen=True)
class LateRows:
    """Late rows of one job.

    Attributes:
        found_with: how many, by the partition that was run when they were found.
        first, last: the partitions between which they belong, both included.
    """

    found_with: Mapping[str, int]
    first: str
    last: str

    @property
    def rows(self) -> int:
        return sum(self.found_with.values())


def late_rows(job: StatefulJob, history: JobHistory | None) -> LateRows | None:
    """What came too late on the path of the head; None where nothing did, or all of it was taken in since.

    A backfill with ``rebatch`` takes it in: the partitions that found late rows are then run again and find none.
    """
    runs = by_partition(history.path) if history else {}
    late = [row for rows in runs.values() for row in rows if row.late_rows]
    if history is None or not late:
        return None
    positions = SourcePositions(history.layout.operator_state)
    times_ms = [at for row in late for at in _bounds_ms(job, row, positions)]
    found_with = {key: sum(row.late_rows for row in rows) for key, rows in runs.items()}
    return LateRows(
        {key: rows for key, rows in found_with.items() if rows},
        _of(runs, min(times_ms)),
        _of(runs, max(times_ms)),
    )


def _bounds_ms(job: StatefulJob, row: CheckpointRow, positions: SourcePositions) -> Iterator[int]:
    """Event times between which the late rows of a micro-batch are."""
    begin_ms, inside = row.partition_start_ms or 0, False
    try:
        for name in job.sources:
            for element in positions.elements([row], name):
                for least_ms, most_ms, _ in element["position"]["files"] if element["split"] == SEEN else ():
                    if least_ms is not None and least_ms < begin_ms:
                        yield from (least_ms, min(most_ms, begin_ms - 1))
                        inside = True
    except MissingFilesError:  # retention had it collected
        inside = False
    if not inside:
        yield from (0, begin_ms - 1)


def _of(runs: Mapping[str, Sequence[CheckpointRow]], at_ms: int) -> str:
    """The partition of an instant; the first one for what is before it, which no partition takes."""
    return next(key for key, rows in runs.items() if (rows[-1].partition_end_ms or 0) > at_ms)


def late_rows_check(dagster_job: DagsterJob) -> dg.AssetChecksDefinition:
    job = dagster_job.job
    assert job.partitions is not None
    tolerated = {
        "ignore": "; the job ignores them",
        "next": "; the partitions that found them took them in",
        "warn": "",
    }[job.partitions.late]

    @dg.asset_check(
        name=LATE_ROWS,
        asset=dagster_job.key(checkpoint_key(job.name)),
        description="No rows came after their partition had been run, or a backfill took them in since.",
    )
    def check() -> dg.AssetCheckResult:
        late = late_rows(job, read_history(dagster_job.root, job.name))
        if late is None:
            return dg.AssetCheckResult(passed=True, description="no partition found late rows")
        span = late.first if late.first == late.last else f"{late.first} to {late.last}"
        command = f"statelake backfill {job.name} --from {late.first} --to {late.last} --rebatch"
        way_out = tolerated or f". Take them in: {command}"
        lines = [[key, rows] for key, rows in late.found_with.items()]
        return dg.AssetCheckResult(
            passed=bool(tolerated),
            severity=dg.AssetCheckSeverity.WARN,
            description=f"{counted(late.rows, 'row')} of {span} came after their partition had been run{way_out}",
            metadata={
                "late_rows": late.rows,
                "first_partition": late.first,
                "last_partition": late.last,
                "backfill": command,
                "found_with": dg.MetadataValue.md(markdown(["found with partition", "late rows"], lines)),
            },
        )

    return check
