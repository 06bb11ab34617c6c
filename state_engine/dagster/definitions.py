"""Every registered job as Dagster's assets, jobs, a schedule and sensors.

Loading imports no PySpark and reads no data: a job is configuration.
"""

import dagster as dg

from state_engine.dagster.concepts import (
    automation,
    checkpointing,
    checks,
    compaction,
    expectations,
    partitions,
    recovery,
    rescaling,
    resources,
    retention,
    savepoints,
)
from state_engine.machine.settings import Settings
from state_engine.registry import load_jobs

CONCEPTS = (
    checkpointing,
    partitions,
    checks,
    expectations,
    compaction,
    recovery,
    rescaling,
    savepoints,
    retention,
    automation,
)
"""What every job gets, a file in ``defs`` each."""


def build(settings: Settings) -> dg.Definitions:
    """All definitions for these settings."""
    parts = [resources.definitions(settings)]
    for registered in load_jobs(settings):
        parts += [concept.definitions(registered, settings) for concept in CONCEPTS]
    return dg.Definitions.merge(*parts)
