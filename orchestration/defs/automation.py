"""Automation: a Dagster job for every registered job, and a schedule that is off until somebody switches it on.

Two runs of one job at the same time are safe without any pool: the engine lets one commit, and the other ends with
``StaleParentError`` and loses nothing.
"""

from __future__ import annotations

import dagster as dg

from jobs import RegisteredJob
from orchestration.lib.factory import asset_specs
from state_engine.runtime.settings import Settings


def definitions(registered: RegisteredJob, settings: Settings) -> dg.Definitions:
    """The Dagster job, named like the registered one, and its schedule."""
    name = registered.job.name
    job = dg.define_asset_job(
        name,
        selection=dg.AssetSelection.assets(*(spec.key for spec in asset_specs(registered, settings))),
        description=f"Run micro-batches of {name} until its sources have nothing new.",
        executor_def=dg.in_process_executor,
    )
    schedule = dg.ScheduleDefinition(
        name=f"{name}_schedule",
        job=job,
        cron_schedule=registered.cron,
        default_status=dg.DefaultScheduleStatus.STOPPED,
    )
    return dg.Definitions(jobs=[job], schedules=[schedule])
