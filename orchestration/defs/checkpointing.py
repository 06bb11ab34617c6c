"""Checkpointing: the micro-batches of a job, as assets."""

from __future__ import annotations

import dagster as dg

from jobs import RegisteredJob
from orchestration.lib.factory import micro_batch_assets, source_specs
from state_engine.runtime.settings import Settings


def definitions(registered: RegisteredJob, settings: Settings) -> dg.Definitions:
    """The multi-asset of a job, and what it reads."""
    return dg.Definitions(
        assets=[*source_specs(registered.job), micro_batch_assets(registered, settings)],
    )
