"""Checks: what must hold of a job, read again from its tables by checks of their own, beside the micro-batches.

They are no part of the multi-asset: there, a blocking check that fails would abort what the function has still to
report. The engine checks the same before every commit; a violation here happened to the tables since. Java is not
needed. Expectations on outputs and states are in ``expectations``.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import dagster as dg

from state_engine.core.checkpoints.dead_letters import letters_waiting
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import StatelakeError
from state_engine.dagster.concepts.partitions import late_rows_check
from state_engine.dagster.concepts.tables import table_checks
from state_engine.dagster.dagster_job import DagsterJob
from state_engine.dagster.job_health import describe, status_of
from state_engine.dagster.naming import DEAD_LETTERS, GATES, LATE_ROWS, MOVES_ON, PLAN, TABLES, checkpoint_key
from state_engine.microbatch.gates import GUIDE, held_error, held_on
from state_engine.monitoring.job_audit import RULES, Finding, summary_of
from state_engine.monitoring.job_history import read_history

HOURLY = "7 * * * *"
_UNREADABLE = (StatelakeError, OSError)


def definitions(dagster_job: DagsterJob) -> dg.Definitions:
    """The checks that were chosen; where they are to be made by themselves, a job and its schedule, too."""
    chosen, name = dagster_job.options.checks, dagster_job.name
    makers = {
        "invariants": _invariants,
        MOVES_ON: _moves_on,
        DEAD_LETTERS: _dead_letters,
        PLAN: _plan,
        **({GATES: _gates} if dagster_job.job.gates else {}),
        **({LATE_ROWS: late_rows_check} if dagster_job.job.partitions is not None else {}),
    }
    checks = [make(dagster_job) for kind, make in makers.items() if kind in chosen]
    checks += table_checks(dagster_job) if TABLES in chosen else []
    if "checks" not in dagster_job.options.automation or not checks:
        return dg.Definitions(asset_checks=checks)
    return scheduled_checks(f"{name}__check", checks, HOURLY, f"Read again what must hold of {name}.")


def scheduled_checks(
    name: str, checks: Sequence[dg.AssetChecksDefinition], cron: str, about: str
) -> dg.Definitions:
    """Checks, with a job that makes them, and its schedule."""
    job = dg.define_asset_job(
        name,
        selection=dg.AssetSelection.checks(*(key for check in checks for key in check.check_keys)),
        description=about,
        executor_def=dg.in_process_executor,
    )
    schedule = dg.ScheduleDefinition(
        name=f"{name}_schedule",
        job=job,
        cron_schedule=cron,
        default_status=dg.DefaultScheduleStatus.STOPPED,
    )
    return dg.Definitions(asset_checks=checks, jobs=[job], schedules=[schedule])


def _invariants(dagster_job: DagsterJob) -> dg.AssetChecksDefinition:
    """What the engine checked before every commit; all of them block."""
    name = dagster_job.name
    key = dagster_job.key(checkpoint_key(name))
    specs = [
        dg.AssetCheckSpec(rule, asset=key, blocking=True, description=" ".join((check.__doc__ or "").split()))
        for rule, check in RULES.items()
    ]

    @dg.multi_asset_check(name=f"{name}_invariants", specs=specs, can_subset=True)
    def invariants(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        history = read_history(dagster_job.root, name)
        wanted = {check.name for check in context.selected_asset_check_keys}
        for rule in (rule for rule in RULES if rule in wanted):
            finding = RULES[rule](history) if history else Finding(0, "checkpoints")
            at = history.head.checkpoint_id if history and history.head else 0
            yield _result(key, rule, finding, at)

    return invariants


def _check(
    dagster_job: DagsterJob,
    name: str,
    description: str,
    look: Callable[[], dg.AssetCheckResult],
    *,
    blocking: bool = False,
) -> dg.AssetChecksDefinition:
    """A check of the checkpoint; where the look fails, the result is unknown."""
    key = dagster_job.key(checkpoint_key(dagster_job.name))

    @dg.asset_check(name=name, asset=key, description=description, blocking=blocking)
    def check() -> dg.AssetCheckResult:
        try:
            return look()
        except _UNREADABLE as error:
            return _unknown(error)

    return check


def _unknown(error: Exception) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        passed=False, severity=dg.AssetCheckSeverity.WARN, description=f"it is unknown: {error}"
    )


def _moves_on(dagster_job: DagsterJob) -> dg.AssetChecksDefinition:
    about = "Outputs are published, no source has had new data for three intervals, and none is down; "
    about += "lag, growth of state and skew are usual."
    return _check(dagster_job, MOVES_ON, about, partial(verdict_on, dagster_job))


def verdict_on(dagster_job: DagsterJob) -> dg.AssetCheckResult:
    """Whether a job moves on, as of now."""
    try:
        status = status_of(dagster_job)
    except _UNREADABLE as error:
        return _unknown(error)
    severe = status.state in ("damaged", "stuck", "unpublished", "changed", "refusing", "held", "waiting")
    shown = {k: v for k, v in status.to_json().items() if isinstance(v, int | float | str) and v != ""}
    return dg.AssetCheckResult(
        passed=status.state in ("ok", "never_ran"),
        severity=dg.AssetCheckSeverity.ERROR if severe else dg.AssetCheckSeverity.WARN,
        description=describe(status, partitioned=dagster_job.job.partitions is not None),
        metadata=shown,
    )


def is_strained(verdict: dg.AssetCheckResult) -> bool:
    """Whether a job moves on, and only its lag, growth or skew is beyond a limit."""
    state = (verdict.metadata or {}).get("state")
    return isinstance(state, dg.TextMetadataValue) and state.value == "strained"


def _dead_letters(dagster_job: DagsterJob) -> dg.AssetChecksDefinition:
    name = dagster_job.name

    def look() -> dg.AssetCheckResult:
        history = read_history(dagster_job.root, name)
        path = history.path if history else []
        batch = next((row for row in reversed(path) if row.kind.is_micro_batch), None)
        waiting, refused = letters_waiting(path), batch.rows_refused if batch else 0
        rows_in = batch.rows_in if batch else 0
        summary = (
            f"{counted(waiting, 'dead letter waits', 'dead letters wait')}; the newest micro-batch refused "
            f"{refused:,} of {counted(rows_in, 'row')}. "
            f"List them with `statelake dead-letters list {name}`; send them again with `… replay`"
        )
        all_refused = 0 < rows_in <= refused
        return dg.AssetCheckResult(
            passed=not waiting,
            severity=dg.AssetCheckSeverity.ERROR if all_refused else dg.AssetCheckSeverity.WARN,
            description=summary if waiting else "no dead letter waits",
            metadata={"dead_letters": waiting, "rows_refused": refused, "rows_in": rows_in},
        )

    about = "No row waits among the dead letters, and the newest micro-batch did not refuse all of its rows."
    return _check(dagster_job, DEAD_LETTERS, about, look)


def _gates(dagster_job: DagsterJob) -> dg.AssetChecksDefinition:
    name = dagster_job.name
    bounds = ", ".join(gate.bound.text for gate in dagster_job.job.gates.values())

    def look() -> dg.AssetCheckResult:
        history = read_history(dagster_job.root, name)
        held = held_on(history.checkpoints) if history else None
        if held is None:
            return dg.AssetCheckResult(passed=True, description="no micro-batch is held")
        return dg.AssetCheckResult(
            passed=False,
            severity=dg.AssetCheckSeverity.ERROR,
            description=str(held_error(name, held)),
            metadata={"branch": held.branch, "guide": _guide()},
        )

    return _check(dagster_job, GATES, f"No gate holds a micro-batch: {bounds}.", look, blocking=True)


def _guide() -> dg.MetadataValue[str]:
    file = Path(__file__).parents[3] / GUIDE
    return dg.MetadataValue.url(file.as_uri()) if file.exists() else dg.MetadataValue.text(GUIDE)


def _plan(dagster_job: DagsterJob) -> dg.AssetChecksDefinition:
    def look() -> dg.AssetCheckResult:
        from state_engine.code_changes.planned import plan_of  # here: most of the engine, to load definitions

        now_ms = time.time_ns() // 1_000_000
        done = plan_of(dagster_job.root, dagster_job.job, clock=lambda: now_ms, parameters={})
        return dg.AssetCheckResult(
            passed=done.exit_code == 0,
            severity=dg.AssetCheckSeverity.WARN,
            description=done.summary(),
            metadata={"verdict": done.verdict, "plan": dg.MetadataValue.md(done.markdown())},
        )

    about = "The deployed code continues the existing state: no run is refused, and no replay is due."
    return _check(dagster_job, PLAN, about, look)


def _result(key: dg.AssetKey, rule: str, finding: Finding, checkpoint_id: int) -> dg.AssetCheckResult:
    looked_at = f"{finding.looked_at:,} {finding.what} looked at, as of checkpoint {checkpoint_id}"
    return dg.AssetCheckResult(
        passed=not finding.problems,
        asset_key=key,
        check_name=rule,
        severity=dg.AssetCheckSeverity.ERROR,
        description=summary_of(finding.problems) or looked_at,
        metadata={
            "checkpoint_id": checkpoint_id,
            "looked_at": finding.looked_at,
            "violations": len(finding.problems),
            "problems": dg.MetadataValue.json(list(finding.problems[:20])),
        },
    )
