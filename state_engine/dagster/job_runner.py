"""``JobRunner``: what a Dagster run asks of the engine, whether that is in its own process or in another one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from state_engine import BackfillReport, BatchReport, CheckpointRow, PartitionStatus, RunReport, StatefulJob

OnBatch = Callable[[BatchReport], object] | None


class JobRunner(Protocol):
    """Runs a job and knows its checkpoints; ``StateEngine`` is one, and says what each method does."""

    def checkpoints(self, job: StatefulJob | str) -> list[CheckpointRow]:
        """All checkpoints of a job, newest last; empty where it never ran."""

    def partitions(self, job: StatefulJob) -> list[PartitionStatus]:
        """The time partitions of a job, in order."""

    def run(
        self,
        job: StatefulJob,
        *,
        partition: str | None = None,
        max_batches: int | None = None,
        parameters: Mapping[str, str] | None = None,
        requested_by: str | None = None,
        accept_clock: bool = False,
        on_progress: OnBatch = None,
    ) -> RunReport:
        """Run micro-batches until the sources have nothing new."""

    def backfill(
        self,
        job: StatefulJob,
        start: str,
        end: str,
        mode: str = "roll_forward",
        *,
        dry_run: bool = False,
        rebatch: bool = False,
        parameters: Mapping[str, str] | None = None,
        requested_by: str | None = None,
        accept_clock: bool = False,
        on_progress: OnBatch = None,
    ) -> BackfillReport:
        """Run time partitions again."""
