"""Rows that came after their partition had been run: how many, of which partitions, and what takes them in.

Read from the tables without Spark. A row of ``checkpoints`` says how many its partition found; how far back they go is
decided by what was seen of the sources then, for the event times of every new file were looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.errors import MissingFilesError
from state_engine.job.job import StatefulJob
from state_engine.microbatch.partition_runs import by_partition
from state_engine.monitoring.job_history import JobHistory
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
