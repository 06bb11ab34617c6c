"""Assets beside one's own: translators, upstream assets, sources and sinks that jobs share, and checks of rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from state_engine import DeltaSink, FileSink, FileSource, StatefulJob
from state_engine.core.errors import ConfigurationError
from state_engine.dagster import (
    JobOptions,
    StateEngineResource,
    StatelakeTranslator,
    StatelakeTranslatorData,
    output_check,
    state_check,
    statelake_assets,
    statelake_definitions,
)
from tests.dagster.many_jobs import arrive, from_files, from_table
from tests.dagster.sites import QUIET

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def upstream(defs: dg.Definitions) -> dict[str, set[str]]:
    """Of every asset that has any."""
    specs = defs.resolve_all_asset_specs()
    deps = {spec.key.to_user_string(): {d.asset_key.to_user_string() for d in spec.deps} for spec in specs}
    return {key: keys for key, keys in deps.items() if keys}


def keys(defs: dg.Definitions) -> set[str]:
    return {spec.key.to_user_string() for spec in defs.resolve_all_asset_specs()}


def of(jobs: list[StatefulJob], tmp_path: Path) -> dg.Definitions:
    return statelake_definitions(jobs, root=str(tmp_path / "state"))


def test_two_jobs_on_one_directory_share_one_source_asset(tmp_path: Path) -> None:
    defs = of([from_files("one", tmp_path), from_files("two", tmp_path)], tmp_path)
    assert {key for key in keys(defs) if "/sources/" in key} == {"one/sources/rows"}
    assert upstream(defs)["one/checkpoint"] == upstream(defs)["two/checkpoint"] == {"one/sources/rows"}


def test_a_job_is_below_the_sink_that_it_reads_in_whatever_order_they_come(tmp_path: Path) -> None:
    jobs = [from_table("late", "early", tmp_path), from_files("early", tmp_path)]
    defs = of(jobs, tmp_path)
    assert "late/sources/rows" not in keys(defs)
    assert upstream(defs)["late/checkpoint"] == {"early/sinks/totals"}


def test_a_circle_of_jobs_is_cut_at_the_last_one(tmp_path: Path) -> None:
    jobs = [
        from_table("one", "three", tmp_path),
        from_table("two", "one", tmp_path),
        from_table("three", "two", tmp_path),
    ]
    defs = of(jobs, tmp_path)
    assert upstream(defs)["one/checkpoint"] == {"three/sinks/totals"}
    assert upstream(defs)["two/checkpoint"] == {"one/sinks/totals"}
    assert upstream(defs)["three/checkpoint"] == {"three/sources/rows"}
    assert defs.resolve_all_job_defs()


def test_a_job_that_reads_its_own_sink_has_a_source_of_its_own(tmp_path: Path) -> None:
    assert upstream(of([from_table("me", "me", tmp_path)], tmp_path))["me/checkpoint"] == {"me/sources/rows"}


class Mine(StatelakeTranslator):
    """Other keys, groups and owners; an asset of the project makes the inbox."""

    def get_asset_spec(self, data: StatelakeTranslatorData) -> dg.AssetSpec:
        spec = data.spec.replace_attributes(key=data.spec.key.with_prefix("lake"))
        if data.part == "sink":
            spec = spec.replace_attributes(
                key=dg.AssetKey(["gold", data.job.name]), group_name="gold", description="Totals."
            )
        return spec.merge_attributes(owners=["team:data"], tags={"part": data.part})

    def get_upstream_key(self, data: StatelakeTranslatorData) -> dg.AssetKey | None:
        return dg.AssetKey("inbox") if data.job.name == "one" else None


def test_a_translator_decides_on_keys_groups_tags_owners_descriptions_and_upstream(tmp_path: Path) -> None:
    jobs = [from_files("one", tmp_path), from_table("two", "one", tmp_path)]
    everything = JobOptions.everything()
    defs = statelake_definitions(jobs, root=str(tmp_path / "state"), translator=Mine(), options=everything)
    by_key = {spec.key.to_user_string(): spec for spec in defs.resolve_all_asset_specs()}
    assert {key for key in by_key if "operations" not in key} == {
        "inbox", "gold/one", "gold/two", "lake/one/checkpoint", "lake/one/state/total/total",
        "lake/two/checkpoint", "lake/two/state/total/total",
    }  # fmt: skip
    assert "lake/one/operations/head" in by_key
    deps = upstream(defs)
    assert deps["gold/one"] == {"lake/one/checkpoint"}
    assert deps["lake/one/checkpoint"] == {"inbox"}
    assert deps["lake/two/checkpoint"] == {"gold/one"}
    gold = by_key["gold/one"]
    assert (gold.group_name, gold.description) == ("gold", "Totals.")
    assert gold.owners == ["team:data"]
    assert gold.tags["part"] == "sink"
    checked = {key.asset_key.to_user_string() for c in defs.asset_checks or [] for key in c.check_keys}
    assert checked == {"lake/one/checkpoint", "lake/two/checkpoint"}
    assert len(list(defs.resolve_all_job_defs())) == 15


def test_assets_below_and_above_ones_own_run_together(tmp_path: Path, spark: SparkSession) -> None:
    @dg.asset
    def inbox() -> None:
        """Writes what the job reads."""
        arrive(tmp_path, "rows", [(1, 10), (1, 5)])

    @dg.asset(deps=[dg.AssetKey(["gold", "one"])])
    def report() -> None:
        """Reads what the job writes."""

    root = str(tmp_path / "state")
    job = statelake_assets(from_files("one", tmp_path), root=root, translator=Mine())
    defs = dg.Definitions(
        assets=[inbox, job, report], resources={"state_engine": StateEngineResource(root=root)}
    )
    with dg.DagsterInstance.ephemeral() as instance:
        run = defs.resolve_implicit_global_asset_job_def().execute_in_process(
            instance=instance, run_config=QUIET
        )
        made = [e.asset_key.to_user_string() for e in run.get_asset_materialization_events() if e.asset_key]
        event = instance.get_latest_materialization_event(dg.AssetKey(["gold", "one"]))
    assert made[0] == "inbox"
    assert made[-1] == "report"
    assert set(made[1:-1]) == {"lake/one/checkpoint", "gold/one", "lake/one/state/total/total"}
    assert event is not None
    assert event.asset_materialization is not None
    assert event.asset_materialization.metadata["rows_out"].value == 2


def test_states_that_the_code_keeps_for_later_are_in_the_metadata_of_the_checkpoint(
    tmp_path: Path, spark: SparkSession
) -> None:
    root = str(tmp_path / "state")
    before, after = (from_files("one", tmp_path, state=state) for state in ("total", "sum"))
    after.stream(after.operators["total"]).keep_states("total")
    checkpoint, shown = dg.AssetKey(["one", "checkpoint"]), []
    with dg.DagsterInstance.ephemeral() as instance:
        for number, job in enumerate([before, after]):
            arrive(tmp_path, f"rows{number}", [(1, 10), (2, 3)])
            run = dg.materialize(
                [statelake_assets(job, root=root)],
                resources={"state_engine": StateEngineResource(root=root)},
                instance=instance,
                run_config=QUIET,
            )
            [event] = [e for e in run.get_asset_materialization_events() if e.asset_key == checkpoint]
            kept = event.materialization.metadata.get("kept_states")
            shown.append(None if kept is None else kept.value)
    assert shown == [None, ["state 'total' of operator 'total' is kept for later: keep_states names it"]]


def test_a_name_that_is_taken_twice_and_what_is_no_job_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="two jobs are named 'one'"):
        of([from_files("one", tmp_path), from_files("one", tmp_path)], tmp_path)
    with pytest.raises(ConfigurationError, match="a StatefulJob or a RegisteredJob is needed"):
        of(["flights"], tmp_path)  # type: ignore[list-item]


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


def test_rows_that_only_spark_reads_are_refused_without_it(tmp_path: Path) -> None:
    job = StatefulJob("copies")
    rows = job.source("rows", FileSource(str(tmp_path / "inbox"), schema="a int"))
    rows.sink("files", FileSink(str(tmp_path / "files")))
    rows.sink("table", DeltaSink(table="default.copies"))
    for sink in ("files", "table"):
        with pytest.raises(
            ConfigurationError, match=f"sink '{sink}' are read by Spark: without_spark=True is for a"
        ):
            output_check(job, sink, without_spark=True)
