"""Great Expectations on a sink and a state: met, not met, not to be checked; and the pages that show it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlparse

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from state_engine.dagster import JobOptions
from state_engine.dagster.concepts import checkpointing, expectations
from state_engine.dagster.dagster_job import DagsterJob
from state_engine.dagster.naming import sink_key, state_key
from state_engine.expectations.suites import Expectation, OfSink, Suite
from state_engine.registry import load_jobs
from tests.dagster.sites import JOB, QUIET, Site

pytestmark = [pytest.mark.spark, pytest.mark.long]
UNMET = (
    Expectation(
        name="average_is_five",
        type="expect_column_values_to_be_between",
        arguments={"column": "average", "min_value": 5, "max_value": 5},
        severity="warn",
    ),
    Expectation(
        name="has_three_rows", type="expect_table_row_count_to_equal", arguments={"value": 3}, blocking=True
    ),
    Expectation(
        name="no_column", type="expect_column_values_to_not_be_null", arguments={"column": "no_such"}
    ),
    # of one type on one column
    Expectation(
        name="average_is_positive",
        type="expect_column_values_to_be_between",
        arguments={"column": "average", "min_value": 1},
    ),
    Expectation(
        name="average_is_five_again",
        type="expect_column_values_to_be_between",
        arguments={"column": "average", "min_value": 5, "max_value": 5},
    ),
    Expectation(name="no_type", type="expect_nothing_that_there_is", arguments={}),
)


@pytest.fixture
def site(tmp_path: Path, spark: SparkSession) -> Iterator[Site]:
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        yield Site(tmp_path, instance)


def test_what_the_example_expects_is_met(site: Site) -> None:
    site.run()
    job = site.defs.resolve_job_def(f"{JOB}__expect")
    done = job.execute_in_process(instance=site.instance, run_config=QUIET)
    evaluations = {(e.asset_key, e.check_name): e for e in done.get_asset_check_evaluations()}
    window = evaluations[state_key(JOB, JOB, "window"), "window_is_open"]
    assert (window.passed, window.description) == (True, "1 row is as expected")
    key = evaluations[sink_key(JOB, "averages"), "key_is_there"]
    assert (key.passed, key.metadata["rows_looked_at"].value) == (True, 2)
    page = Path(urlparse(str(key.metadata["data_docs"].value)).path)
    assert "expect_column_values_to_not_be_null" in page.read_text() or "null" in page.read_text()
    assert page.is_relative_to(site.instance.storage_directory())
    job.execute_in_process(instance=site.instance, run_config=QUIET)
    assert page.exists()  # of a run before this one


def test_unmet_ones_fail_with_their_severity_and_a_sample_and_one_that_cannot_be_checked_says_why(
    site: Site,
) -> None:
    site.run()
    [registered] = load_jobs(site.settings)
    suite = Suite(name="unmet", of=OfSink("averages"), expectations=UNMET, identified_by=("key", "average"))
    registered = replace(registered, expectations=(suite,))
    dagster_job = DagsterJob(registered=registered, settings=site.settings, options=JobOptions.everything())
    defs = dg.Definitions.merge(
        expectations.definitions(dagster_job),
        dg.Definitions(resources=site.defs.resources),
    )
    job = defs.resolve_job_def(f"{JOB}__expect")
    done = job.execute_in_process(instance=site.instance, run_config=QUIET, raise_on_error=False)
    evaluations = {e.check_name: e for e in done.get_asset_check_evaluations()}
    five = evaluations["average_is_five"]
    assert (five.passed, five.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert five.description == "1 of 2 rows are not as expected"
    assert five.metadata["sample"].value == [{"key": 1, "average": 4}]
    again, positive = evaluations["average_is_five_again"], evaluations["average_is_positive"]
    assert (again.passed, again.description) == (False, five.description)
    assert positive.passed
    assert "could not be checked: Great Expectations did not take it" in (
        evaluations["no_type"].description or ""
    )
    rows = evaluations["has_three_rows"]
    assert (rows.passed, rows.severity, rows.description) == (
        False,
        dg.AssetCheckSeverity.ERROR,
        "observed: 2",
    )
    assert rows.blocking
    assert evaluations["no_column"].passed is False
    assert "no_such" in (evaluations["no_column"].description or "")


@pytest.mark.parametrize("blocking", [True, False])
def test_only_what_is_declared_blocking_holds_back_what_is_downstream(site: Site, *, blocking: bool) -> None:
    [registered] = load_jobs(site.settings)
    unmet = replace(UNMET[1], blocking=blocking)
    registered = replace(
        registered, expectations=(Suite(name="unmet", of=OfSink("averages"), expectations=(unmet,)),)
    )

    @dg.asset(deps=[sink_key(JOB, "averages")])
    def report() -> None:
        """Somebody else's asset, which reads the sink."""

    dagster_job = DagsterJob(registered=registered, settings=site.settings, options=JobOptions.everything())
    defs = dg.Definitions.merge(
        checkpointing.definitions(dagster_job),
        expectations.definitions(dagster_job),
        dg.Definitions(assets=[report], resources=site.defs.resources),
    )
    job = defs.resolve_implicit_global_asset_job_def()
    done = job.execute_in_process(instance=site.instance, run_config=QUIET, raise_on_error=False)
    [judged] = done.get_asset_check_evaluations()
    assert (judged.check_name, judged.passed) == ("has_three_rows", False)
    assert site.versions(sink_key(JOB, "averages")), "what was published stays published"
    shown = {e.asset_key for e in done.get_asset_materialization_events()}
    assert (report.key in shown) is not blocking
    assert done.success is not blocking
