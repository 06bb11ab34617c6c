"""The guide on Dagster: its example of a code location, and the checks that are added to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tests.dagster.sites import QUIET
from tests.support.guides import GUIDES, code_blocks


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
