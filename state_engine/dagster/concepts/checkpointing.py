"""Checkpointing: the micro-batches of a job, as assets."""

from __future__ import annotations

import dagster as dg

from state_engine.dagster.dagster_job import DagsterJob
from state_engine.dagster.factory import micro_batch_assets


def definitions(dagster_job: DagsterJob) -> dg.Definitions:
    """The multi-asset of a job, and what it reads and nothing else makes."""
    return dg.Definitions(
        assets=[*dagster_job.sources.values(), micro_batch_assets(dagster_job)],
    )
