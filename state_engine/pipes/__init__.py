"""Dagster Pipes: what a run of Dagster asks of another process, and how that reports.

``run_for_dagster`` is what a script for ``spark-submit`` calls; ``statelake run`` does the same by itself. Dagster need
not be installed there, only ``dagster-pipes``, which the extra ``pipes`` brings. Decision 0054.
"""

from state_engine.pipes.reporting import run_for_dagster

__all__ = ["run_for_dagster"]
