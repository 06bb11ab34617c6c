"""The one entry point of Dagster: every registered job as assets, a job and a schedule.

Loading starts no Spark and reads no data: a job is configuration.
"""

import dagster as dg

from jobs import load_jobs
from orchestration.defs import automation, checkpointing, resources
from state_engine.runtime.settings import Settings, load_settings


def build(settings: Settings) -> dg.Definitions:
    """All definitions for these settings."""
    parts = [resources.definitions(settings)]
    for registered in load_jobs(settings):
        parts += [
            checkpointing.definitions(registered, settings),
            automation.definitions(registered, settings),
        ]
    return dg.Definitions.merge(*parts)


defs = build(load_settings())
