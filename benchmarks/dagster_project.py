"""A code location with the reference job and three checks: two that read the root, and one that reads rows.

``benchmarks.dagster_run`` launches it, from a directory with the settings and the input.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from benchmarks.contenders.statelake import reference_job
from state_engine.dagster import output_check, statelake_definitions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

job = reference_job(Path.cwd())


@output_check(job, "averages")
def averages_are_positive(rows: DataFrame) -> bool:
    """No average is negative."""
    return rows.where("a < 0").isEmpty()


defs = dg.Definitions.merge(
    statelake_definitions([job]), dg.Definitions(asset_checks=[averages_are_positive])
)
