"""Checkpointing: the micro-batches of a job, as assets."""

from __future__ import annotations

import dagster as dg

from state_engine.dagster.factory import micro_batch_assets, source_specs
from state_engine.machine.settings import Settings
from state_engine.registry import RegisteredJob


def definitions(registered: RegisteredJob, settings: Settings) -> dg.Definitions:
    """The multi-asset of a job, and what it reads."""
    return dg.Definitions(
        assets=[*source_specs(registered.job), micro_batch_assets(registered, settings)],
    )
