"""Checks that are plain functions of rows: of what a sink published, and of a keyed state."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from state_engine.core.errors import ConfigurationError
from state_engine.dagster import (
    StateEngineResource,
    StatelakeTranslator,
    output_check,
    state_check,
    statelake_assets,
)
from tests.dagster.many_jobs import arrive, from_files
from tests.dagster.sites import QUIET
from tests.dagster.test_lineage import Mine

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def test_functions_judge_outputs_and_states(tmp_path: Path, spark: SparkSession) -> None:
    job = from_files("one", tmp_path)

    @output_check(job, "totals")
    def all_are_positive(rows: DataFrame) -> bool:
        """No total is negative."""
        return rows.where("value < 0").isEmpty()

    @output_check(job, "totals", severity=dg.AssetCheckSeverity.WARN)
    def all_are_small(rows: DataFrame) -> bool:
        return rows.where("value > 10").isEmpty()

    @state_check(job, "total", "total")
    def one_entry_a_key(rows: DataFrame) -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=rows.count() == 2, metadata={"entries": rows.count()})

    root = str(tmp_path / "state")
    checks = [all_are_positive, all_are_small, one_entry_a_key]
    defs = dg.Definitions(
        assets=[statelake_assets(job, root=root)],
        asset_checks=checks,
        resources={"state_engine": StateEngineResource(root=root)},
    )
    [spec] = all_are_positive.check_specs
    assert (spec.name, spec.description) == ("all_are_positive", "No total is negative.")
    with dg.DagsterInstance.ephemeral() as instance:
        all_assets = defs.resolve_implicit_global_asset_job_def()
        arrive(tmp_path, "rows", [(1, 10), (1, 5), (2, 3)])
        run = all_assets.execute_in_process(instance=instance, run_config=QUIET)
    results = {one.check_name: one for one in run.get_asset_check_evaluations()}
    assert {name: one.passed for name, one in results.items()} == {
        "all_are_positive": True, "all_are_small": False, "one_entry_a_key": True,
    }  # fmt: skip
    assert results["all_are_small"].severity == dg.AssetCheckSeverity.WARN
    assert results["one_entry_a_key"].metadata["entries"].value == 2


@pytest.mark.parametrize("translator", [None, Mine()])
def test_a_check_is_of_the_asset_as_it_is_translated(
    tmp_path: Path, translator: StatelakeTranslator | None
) -> None:
    @output_check(from_files("one", tmp_path), "totals", translator=translator)
    def fine(rows: DataFrame) -> bool:
        return True

    [key] = fine.check_keys
    assert key.asset_key.to_user_string() == ("gold/one" if translator else "one/sinks/totals")


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    job = from_files("one", tmp_path)
    with pytest.raises(ConfigurationError, match=r"no sink 'sums' to check. Sinks are \['totals'\]"):
        output_check(job, "sums")
    with pytest.raises(ConfigurationError, match=r"no operator 'sum' to check. Operators are \['total'\]"):
        state_check(job, "sum", "total")
