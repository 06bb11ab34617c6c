"""A commit that the engine stopped, because it would have broken what must hold, as failed checks of the job.

Nothing of it is in the tables, so the checks that read them will pass again: the run is what failed.
"""

from __future__ import annotations

from typing import Any, cast

import dagster as dg

from state_engine.core.errors import InvariantError
from state_engine.dagster.dagster_job import DagsterJob
from state_engine.dagster.naming import checkpoint_key
from state_engine.monitoring.job_audit import rule_of


def show_stopped_commit(
    context: dg.AssetExecutionContext, dagster_job: DagsterJob, error: BaseException
) -> None:
    """Log a failed evaluation of each check whose invariant would have been broken; none for other errors."""
    if not isinstance(error, InvariantError):
        return
    for rule in dict.fromkeys(map(rule_of, error.broken)):
        evaluation = dg.AssetCheckEvaluation(
            asset_key=dagster_job.key(checkpoint_key(dagster_job.name)),
            check_name=rule,
            passed=False,
            severity=dg.AssetCheckSeverity.ERROR,
            description=str(error),
            metadata={"broken": dg.MetadataValue.json(list(error.broken))},
        )
        context.log_event(cast(Any, evaluation))
