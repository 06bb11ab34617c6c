"""What a run of Dagster costs beside the micro-batches: sessions of Spark, and Spark jobs of a check."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from benchmarks.processes import answer_of
from benchmarks.workload import Feed, Workload, hand_over
from state_engine import StateEngine
from state_engine.core.errors import SourceError
from state_engine.dagster import StateEngineResource, output_check
from state_engine.expectations.validation import sink_frame
from state_engine.sources.delta_table import SourceTable, newest_table
from state_engine.spark.placement import USUAL
from tests.dagster.many_jobs import arrive, from_files
from tests.support.costs import SparkRecords
from tests.support.limits import SetLimits

ROWS = [
    "INSERT INTO delta.`{at}` (k, v) VALUES (1, 'a'), (2, 'b'), (3, NULL)",
    "INSERT INTO delta.`{at}` (k, v) VALUES (4, 'd')",
]

STARTS = """
import json
import dagster as dg
from pyspark import SparkContext

contexts, begin = [], SparkContext._do_init


def counted(self, *args, **kwargs):
    contexts.append(self)
    return begin(self, *args, **kwargs)


SparkContext._do_init = counted
from benchmarks.dagster_project import defs


def launch(job):
    done = job.execute_in_process(run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}})
    checks = {one.check_name: one.passed for one in done.get_asset_check_evaluations()}
    return {"checks": checks, "sessions": len(contexts)}


of_the_root = dg.AssetSelection.checks_for_assets(dg.AssetKey(["count_window_average", "checkpoint"]))
reading = dg.Definitions.merge(defs, dg.Definitions(jobs=[dg.define_asset_job("reading", of_the_root)]))
reading, whole = reading.resolve_job_def("reading"), defs.resolve_implicit_global_asset_job_def()
assert whole.executor_def is dg.in_process_executor
print(json.dumps({"reading": launch(reading), "whole": launch(whole), "again": launch(reading)}))
"""


@pytest.mark.spark
def test_checks_of_the_root_start_no_spark_and_a_run_with_three_checks_starts_one(tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    hand_over(Feed(Workload(1000), tmp_path / "feed").write(5000), tmp_path / "input")
    (tmp_path / "statelake.toml").write_text('root = "root"\n')
    environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
    answer = answer_of(["-c", STARTS], what="a run", environment=environment, directory=tmp_path)
    root_checks = {"moves_on": True, "dead_letters": True}
    assert answer["reading"] == {"checks": root_checks, "sessions": 0}
    assert answer["whole"] == {"checks": {**root_checks, "averages_are_positive": True}, "sessions": 1}
    assert answer["again"] == {"checks": root_checks, "sessions": 1}


STEPS = """
import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
from pathlib import Path
from state_engine.dagster import StateEngineResource, output_check, state_check
from tests.dagster.many_jobs import from_files

HERE = Path({here!r})
job = from_files("one", HERE)


def noted(name, passed):
    from pyspark import SparkContext

    started = SparkContext._active_spark_context is not None or SparkContext._gateway is not None
    (HERE / name).write_text(f"{{started}}")
    return passed


@output_check(job, "totals", without_spark=True)
def totals_are_positive(rows: pa.Table) -> bool:
    return noted("output.seen", pc.min(rows["value"]).as_py() > 0 and rows.num_rows == 3)


@state_check(job, "total", "total", without_spark=True)
def two_keys(rows: pa.Table) -> bool:
    return noted("state.seen", sorted(rows["value"].to_pylist()) == [3, 15])


@output_check(job, "totals", without_spark=True)
def fails(rows: pa.Table) -> bool:
    return rows.num_rows == 4


checks = [totals_are_positive, two_keys, fails]
keys = [key for check in checks for key in check.check_keys]
defs = dg.Definitions(
    assets=[dg.AssetSpec(key) for key in {{key.asset_key for key in keys}}],
    asset_checks=checks,
    jobs=[dg.define_asset_job("judge", dg.AssetSelection.checks(*keys), executor_def=dg.multiprocess_executor)],
    resources={{"state_engine": StateEngineResource(root=str(HERE / "state"))}},
)


def judge():
    return defs.resolve_job_def("judge")


if __name__ == "__main__":
    with dg.DagsterInstance.get() as instance:
        done = dg.execute_job(dg.reconstructable(judge), instance=instance)
        events = [e.event_specific_data for e in done.all_events if e.event_type_value == "ASSET_CHECK_EVALUATION"]
        print({{one.check_name: one.passed for one in events}})
"""


def test_checks_without_spark_start_none_in_any_process(tmp_path: Path, spark: SparkSession) -> None:
    arrive(tmp_path, "rows", [(1, 10), (1, 5), (2, 3)])
    with StateEngine(tmp_path / "state", spark) as engine:
        engine.run(from_files("one", tmp_path))
    (tmp_path / "steps.py").write_text(STEPS.format(here=str(tmp_path)))
    (tmp_path / "home").mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "DAGSTER_HOME": str(tmp_path / "home"),
        "JAVA_HOME": str(tmp_path / "no Java here"),
    }
    done = subprocess.run(
        [sys.executable, "steps.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert ast.literal_eval(done.stdout.splitlines()[-1]) == {
        "totals_are_positive": True, "two_keys": True, "fails": False,
    }  # fmt: skip
    assert [(tmp_path / name).read_text() for name in ("output.seen", "state.seen")] == ["False"] * 2


@pytest.mark.parametrize(("rows", "jobs"), [(3, 0), (USUAL.rows + 1, 1)])
def test_a_check_of_few_rows_is_no_spark_job_and_of_many_one(
    rows: int, jobs: int, tmp_path: Path, spark: SparkSession
) -> None:
    job = from_files("one", tmp_path)
    arrive(tmp_path, "rows", [(key, 1) for key in range(rows)])
    with StateEngine(tmp_path / "state", spark) as engine:
        engine.run(job)
        records = SparkRecords(spark)
        assert sink_frame(engine, job, "totals", asked_by="check").where("value < 0").isEmpty()
    assert len(records.new()) == jobs


PLAIN = "CREATE TABLE delta.`{at}` (k bigint, v string) USING delta"
TABLES = {
    "plain": [PLAIN, *ROWS],
    "a name with a pattern [x]*": [PLAIN, *ROWS],
    "partitions": [f"{PLAIN} PARTITIONED BY (v)", *ROWS],
    "renamed column": [f"{PLAIN} TBLPROPERTIES ('delta.columnMapping.mode' = 'name')", *ROWS,
                       "ALTER TABLE delta.`{at}` RENAME COLUMN v TO w"],
    "deletion vector": [f"{PLAIN} TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')", *ROWS,
                        "DELETE FROM delta.`{at}` WHERE k = 2"],
    "added column": [PLAIN, ROWS[0], "ALTER TABLE delta.`{at}` ADD COLUMN w double", ROWS[1]],
    "wider column": [f"{PLAIN.replace('bigint', 'int')} TBLPROPERTIES ('delta.enableTypeWidening' = 'true')",
                     ROWS[0], "ALTER TABLE delta.`{at}` ALTER COLUMN k TYPE bigint", ROWS[1]],
    "no rows": [PLAIN, *ROWS, "DELETE FROM delta.`{at}`"],
}  # fmt: skip
ONLY_SPARK = {"partitions", "renamed column", "deletion vector", "added column", "wider column"}


def test_a_table_without_rows_is_read_without_a_job(tmp_path: Path, spark: SparkSession) -> None:
    spark.sql(PLAIN.format(at=tmp_path / "empty"))
    records = SparkRecords(spark)
    rows = SourceTable(spark, f"file://{tmp_path / 'empty'}").newest_rows()
    assert (rows.columns, rows.isEmpty()) == (["k", "v"], True)
    assert not records.new()
    assert "LocalTableScan" in rows._jdf.queryExecution().executedPlan().toString()


TYPED = """
    SELECT id AS k, if(id = 2, NULL, id % 2 = 0) AS truth, float(id) / 3 AS f, double('NaN') AS d,
    cast(id AS decimal(38, 18)) AS dec, timestamp '2024-07-01 00:30:00' + make_interval(0, 0, 0, int(id)) AS at,
    timestamp_ntz '2024-07-01 00:30:00' AS local, date '1500-01-01' AS old, binary('ab') AS b, 'ü' AS v,
    array(named_struct('x', id, 'at', timestamp '2024-07-01 00:30:00')) AS nested, map('k', id) AS pairs
    FROM range({rows})
"""


@pytest.mark.parametrize("few", [True, False])
def test_rows_of_each_type_are_those_that_delta_reads(
    few: bool, tmp_path: Path, spark: SparkSession, limits: SetLimits
) -> None:
    """Read by the driver where they are few, else by Spark."""
    at = tmp_path / "typed"
    spark.sql(f"CREATE TABLE delta.`{at}` USING delta AS {TYPED.format(rows=5)}")
    if not few:
        limits(rows=-1)
    expected = spark.read.format("delta").load(str(at))
    rows = SourceTable(spark, f"file://{at}").newest_rows()
    assert rows.schema == expected.schema
    columns = [f"CAST({name} AS string)" for name in expected.columns if name != "b"]
    assert sorted(rows.selectExpr(*columns).collect()) == sorted(expected.selectExpr(*columns).collect())
    assert [bytes(row.b) for row in rows.collect()] == [b"ab"] * 5


def test_rows_of_a_table_are_those_that_delta_reads(tmp_path: Path, spark: SparkSession) -> None:
    for name, statements in TABLES.items():
        at = tmp_path / name
        for statement in statements:
            spark.sql(statement.format(at=at))
        expected = spark.read.format("delta").load(str(at))
        rows = SourceTable(spark, f"file://{at}").newest_rows()
        assert rows.schema == expected.schema, name
        assert sorted(rows.collect(), key=str) == sorted(expected.collect(), key=str), name
        if name in ONLY_SPARK:
            assert newest_table(f"file://{at}") is None
        else:
            table = newest_table(f"file://{at}")
            assert table is not None
            without_spark = [tuple(row.values()) for row in table.to_pylist()]
            assert sorted(without_spark, key=str) == sorted(map(tuple, expected.collect()), key=str), name


def test_a_check_without_spark_of_a_table_that_only_spark_reads_says_what_to_leave_out(
    tmp_path: Path, spark: SparkSession
) -> None:
    job, at, root = from_files("one", tmp_path), tmp_path / "one", str(tmp_path / "state")
    arrive(tmp_path, "rows", [(1, 10), (2, 3)])
    with StateEngine(root, spark) as engine:
        engine.run(job)
    spark.sql(f"ALTER TABLE delta.`{at}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"DELETE FROM delta.`{at}` WHERE key = 2")

    @output_check(job, "totals", without_spark=True)
    def fine(rows: pa.Table) -> bool:
        raise AssertionError

    with pytest.raises(SourceError, match=r"check 'fine': only Spark can read.*Leave out without_spark=True"):
        fine(StateEngineResource(root=root))
