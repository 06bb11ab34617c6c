"""Time partitions: the check ``late_rows`` of the checkpoint, for jobs that have any.

That they are Dagster's partitions, too, is the business of ``asset_specs``; what one run of them does is that of
``partition_assets``; their schedule is among the automation.
"""

import dagster as dg

from state_engine.core.counted_nouns import counted
from state_engine.dagster.dagster_job import DagsterJob
from state_engine.dagster.late_rows import late_rows
from state_engine.dagster.metadata import markdown
from state_engine.dagster.naming import LATE_ROWS, checkpoint_key
from state_engine.monitoring.job_history import read_history


def late_rows_check(dagster_job: DagsterJob) -> dg.AssetChecksDefinition:
    job = dagster_job.job
    assert job.partitions is not None
    tolerated = {
        "ignore": "; the job ignores them",
        "next": "; the partitions that found them took them in",
        "warn": "",
    }[job.partitions.late]

    @dg.asset_check(
        name=LATE_ROWS,
        asset=dagster_job.key(checkpoint_key(job.name)),
        description="No rows came after their partition had been run, or a backfill took them in since.",
    )
    def check() -> dg.AssetCheckResult:
        late = late_rows(job, read_history(dagster_job.root, job.name))
        if late is None:
            return dg.AssetCheckResult(passed=True, description="no partition found late rows")
        span = late.first if late.first == late.last else f"{late.first} to {late.last}"
        command = f"statelake backfill {job.name} --from {late.first} --to {late.last} --rebatch"
        way_out = tolerated or f". Take them in: {command}"
        lines = [[key, rows] for key, rows in late.found_with.items()]
        return dg.AssetCheckResult(
            passed=bool(tolerated),
            severity=dg.AssetCheckSeverity.WARN,
            description=f"{counted(late.rows, 'row')} of {span} came after their partition had been run{way_out}",
            metadata={
                "late_rows": late.rows,
                "first_partition": late.first,
                "last_partition": late.last,
                "backfill": command,
                "found_with": dg.MetadataValue.md(markdown(["found with partition", "late rows"], lines)),
            },
        )

    return check
