"""Expectations: one check for each that a job declares of its outputs and states; they run by a job of their own."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg

from state_engine.core.counted_nouns import counted
from state_engine.dagster.concepts.checks import scheduled_checks
from state_engine.dagster.dagster_job import DagsterJob
from state_engine.dagster.engine_resource import StateEngineResource
from state_engine.dagster.naming import sink_key, state_key
from state_engine.expectations.suites import Expectation, OfState, Suite
from state_engine.expectations.validation import Outcome, frame_of, validate

DAILY = "23 4 * * *"
_SEVERITIES = {"error": dg.AssetCheckSeverity.ERROR, "warn": dg.AssetCheckSeverity.WARN}


def definitions(dagster_job: DagsterJob) -> dg.Definitions:
    """The checks; where they are to be made by themselves, a job and its schedule, too."""
    name, suites = dagster_job.name, dagster_job.registered.expectations
    if not suites or "expectations" not in dagster_job.options.checks:
        return dg.Definitions()
    checks = [_checks(dagster_job, suite) for suite in suites]
    if "expectations" not in dagster_job.options.automation:
        return dg.Definitions(asset_checks=checks)
    about = f"Judge the outputs and states of {name} by what is expected of them."
    return scheduled_checks(f"{name}__expect", checks, DAILY, about)


def asset_of(dagster_job: DagsterJob, suite: Suite) -> dg.AssetKey:
    if isinstance(suite.of, OfState):
        return dagster_job.key(state_key(dagster_job.name, suite.of.operator, suite.of.state))
    return dagster_job.key(sink_key(dagster_job.name, suite.of.sink))


def _checks(dagster_job: DagsterJob, suite: Suite) -> dg.AssetChecksDefinition:
    job, key = dagster_job.job, asset_of(dagster_job, suite)
    by_name = {one.name: one for one in suite.expectations}
    specs = [
        dg.AssetCheckSpec(
            one.name,
            asset=key,
            description=one.about or f"{one.type} {dict(one.arguments)}",
            blocking=one.blocking,
            metadata={"expectation": one.type, "suite": suite.name},
        )
        for one in suite.expectations
    ]

    @dg.multi_asset_check(name=f"{job.name}_expect_{suite.name}", specs=specs, can_subset=True)
    def expect(
        context: dg.AssetCheckExecutionContext, state_engine: StateEngineResource
    ) -> Iterator[dg.AssetCheckResult]:
        engine = state_engine.engine()
        if not engine.checkpoints(job):
            context.log.info(f"job '{job.name}' has no checkpoint yet, so there is nothing to judge")
            outcomes, page = {one: Outcome(met=True, observed="nothing yet") for one in by_name}, ""
        else:
            docs = Path(context.instance.storage_directory()) / "docs" / job.name / suite.name
            context.log.info(
                f"suite '{suite.name}': reading, and judging by {counted(len(by_name), 'expectation')}"
            )
            outcomes, page = validate(suite, frame_of(engine, job, suite), docs=docs)
        for check in sorted(context.selected_asset_check_keys, key=lambda k: k.name):
            yield _result(key, by_name[check.name], outcomes[check.name], page)

    return expect


def _result(key: dg.AssetKey, one: Expectation, outcome: Outcome, page: str) -> dg.AssetCheckResult:
    metadata: dict[str, object] = {
        "expectation": one.type,
        "arguments": dg.MetadataValue.json(dict(one.arguments)),
        "rows_looked_at": outcome.looked_at,
        "rows_unexpected": outcome.unexpected,
    }
    if outcome.sample:
        metadata["sample"] = dg.MetadataValue.json(list(outcome.sample))
    if page:
        metadata["data_docs"] = dg.MetadataValue.url(page)
    return dg.AssetCheckResult(
        passed=outcome.met,
        asset_key=key,
        check_name=one.name,
        severity=_SEVERITIES[one.severity],
        description=outcome.summary,
        metadata=metadata,  # type: ignore[arg-type]
    )
