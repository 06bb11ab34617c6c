"""The guide on Dagster: its code location with checks, a launched process, expectations, and a registered module."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from state_engine import KeyedProcessFunction, Settings
from state_engine.core.errors import ConfigurationError
from state_engine.dagster import statelake_definitions
from tests.dagster.sites import QUIET
from tests.support.guides import GUIDES, code_blocks


def test_a_process_of_its_own_is_launched_with_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched, run_jobs, *_ = code_blocks(GUIDES / "dagster.md", "python")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STATELAKE__JOBS__MODULES", "jobs.flights")
    namespace: dict[str, Any] = {}
    exec(launched.replace("s3a://bucket/lake/state", str(tmp_path / "state")), namespace)
    assert {"state_engine", "pipes"} & set(namespace["defs"].resolve_job_def("flights").resource_defs)
    assert namespace["submit"][0] == "spark-submit"
    with pytest.raises(ConfigurationError, match="no run of Dagster launched this process"):
        exec(run_jobs, {})


def test_a_registered_module_with_expectations(tmp_path: Path) -> None:
    blocks = code_blocks(GUIDES / "dagster.md", "python")
    assert len(blocks) == 6
    [expectations] = [block for block in blocks if "EXPECTATIONS" in block]
    [register] = [block for block in blocks if "def jobs(settings)" in block]
    namespace: dict[str, Any] = {"__doc__": "Clicks of users.", "Sessions": KeyedProcessFunction}
    for block in (expectations, register):
        exec(block, namespace)
    inbox = str(tmp_path / "inbox")
    settings = Settings(root=str(tmp_path / "state"), jobs={"parameters": {"clicks": {"inbox": inbox}}})
    [registered] = namespace["jobs"](settings)
    assert (registered.cron, registered.description) == ("0 * * * *", "Clicks of users.")
    assert (registered.job.parallelism, registered.job.sources["clicks"].source.path) == (
        4,
        f"file://{inbox}",
    )
    expected = replace(registered, expectations=namespace["EXPECTATIONS"])
    keys = statelake_definitions([expected], root=settings.root).resolve_asset_graph().asset_check_keys
    assert "user_is_there" in {key.name for key in keys}


def test_the_example_of_a_code_location_runs_with_its_checks(tmp_path: Path, spark: SparkSession) -> None:
    blocks = code_blocks(GUIDES / "dagster.md", "python")
    [location] = [block for block in blocks if "class MyTranslator" in block]
    [checks] = [block for block in blocks if "@output_check" in block]
    namespace: dict[str, Any] = {"__name__": "guide"}
    for block in (location, checks):
        exec(block.replace("/lake/", f"{tmp_path}/"), namespace)
    (tmp_path / "inbox").mkdir()
    clicks = pa.table({"user": ["ann", "ann"], "page": ["/", "/help"]})
    pq.write_table(clicks, tmp_path / "inbox" / "clicks.parquet")
    defs = namespace["defs"]
    with dg.DagsterInstance.ephemeral() as instance:
        run = defs.resolve_implicit_global_asset_job_def().execute_in_process(
            instance=instance, run_config=QUIET
        )
        event = instance.get_latest_materialization_event(dg.AssetKey(["gold", "counts"]))
    assert {one.check_name: one.passed for one in run.get_asset_check_evaluations()} == {
        "users_are_there": True, "nobody_reads_that_much": True, "moves_on": True, "dead_letters": True,
    }  # fmt: skip
    assert event is not None
    assert event.asset_materialization is not None
    assert event.asset_materialization.metadata["rows_out"].value == 2
