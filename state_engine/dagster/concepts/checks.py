"""Checks: what must hold of a job, read again from its tables by checks of their own, beside the micro-batches.

They are no part of the multi-asset: there, a blocking check that fails would abort what the function has still to
report. The engine checks the same before every commit; a violation here happened to the tables since. Java is not
needed. Expectations on outputs and states are in ``expectations``.
"""

from collections.abc import Iterator

import dagster as dg

from state_engine.core.checkpoints.dead_letters import letters_waiting
from state_engine.core.errors import StatelakeError
from state_engine.dagster.naming import DEAD_LETTERS, LATE_ROWS, checkpoint_key
from state_engine.machine.settings import Settings
from state_engine.monitoring.job_audit import RULES, Finding, summary_of
from state_engine.monitoring.job_history import read_history
from state_engine.registry import RegisteredJob


def definitions(registered: RegisteredJob, settings: Settings) -> dg.Definitions:
    """The checks of one job's invariants, all blocking, and a job that makes them."""
    name = registered.job.name
    key = checkpoint_key(name)
    specs = [
        dg.AssetCheckSpec(rule, asset=key, blocking=True, description=" ".join((check.__doc__ or "").split()))
        for rule, check in RULES.items()
    ]

    @dg.multi_asset_check(name=f"{name}_invariants", specs=specs, can_subset=True)
    def invariants(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        history = read_history(settings.root, name)
        wanted = {check.name for check in context.selected_asset_check_keys}
        for rule in (rule for rule in RULES if rule in wanted):
            finding = RULES[rule](history) if history else Finding(0, "checkpoints")
            at = history.head.checkpoint_id if history and history.head else 0
            yield _result(key, rule, finding, at)

    names = [
        *RULES,
        "moves_on",
        DEAD_LETTERS,
        *([LATE_ROWS] if registered.job.partitions is not None else []),
    ]
    check_job = dg.define_asset_job(
        f"{name}__check",
        selection=dg.AssetSelection.checks(*(dg.AssetCheckKey(key, name) for name in names)),
        description=f"Read again what must hold of {name}.",
        executor_def=dg.in_process_executor,
    )
    return dg.Definitions(asset_checks=[invariants, _dead_letters(registered, settings)], jobs=[check_job])


def _dead_letters(registered: RegisteredJob, settings: Settings) -> dg.AssetChecksDefinition:
    name = registered.job.name

    @dg.asset_check(
        name=DEAD_LETTERS,
        asset=checkpoint_key(name),
        description="No row waits among the dead letters, and the newest micro-batch did not refuse all of its rows.",
    )
    def dead_letters() -> dg.AssetCheckResult:
        try:
            history = read_history(settings.root, name)
        except (StatelakeError, OSError) as error:
            return dg.AssetCheckResult(
                passed=False, severity=dg.AssetCheckSeverity.WARN, description=f"it is unknown: {error}"
            )
        path = history.path if history else []
        batch = next((row for row in reversed(path) if row.kind.is_micro_batch), None)
        waiting, refused = letters_waiting(path), batch.rows_refused if batch else 0
        rows_in = batch.rows_in if batch else 0
        summary = (
            f"{waiting:,} dead letters wait; the newest micro-batch refused {refused:,} of {rows_in:,} rows. "
            f"List them with `statelake dead-letters list {name}`; send them again with `… replay`"
        )
        all_refused = 0 < rows_in <= refused
        return dg.AssetCheckResult(
            passed=not waiting,
            severity=dg.AssetCheckSeverity.ERROR if all_refused else dg.AssetCheckSeverity.WARN,
            description=summary if waiting else "no dead letter waits",
            metadata={"dead_letters": waiting, "rows_refused": refused, "rows_in": rows_in},
        )

    return dead_letters


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
