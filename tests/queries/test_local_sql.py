"""Simple queries are answered without Spark, and as Spark answers them; all others are left to Spark."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from state_engine.core.errors import MissingFilesError
from state_engine.monitoring.job_history import read_history
from state_engine.queries.portable_sql import answer
from state_engine.queries.state_views import SqlView, ViewedJob, views_of
from tests.queries.test_open_state import BATCHES
from tests.support.remembering import STATES, Memory

ROWS = pa.table(
    {
        "k": ["b", "a", None, "a"],
        "n": pa.array([2, None, 3, 1], pa.int32()),
        "big": pa.array([1, 2, 3, 4], pa.int64()),
        "x": [0.5, 2.0, None, -1.0],
        "yes": [True, False, None, True],
        "seen": pa.array([datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3, 4)], pa.timestamp("us", "UTC")),
        "value": [{"f0": 1, "inner": {"z": "q"}}] * 4,
        "tags": [["t"]] * 4,
    }
)  # fmt: skip
SAME = (
    "SELECT * FROM t",
    "select K, n from T where n > 1 order by n desc",
    "SELECT count(*) FROM t",
    "SELECT k, count(*) AS often, sum(n), sum(big) AS big, min(k), max(seen), avg(n) FROM t GROUP BY k ORDER BY k",
    "SELECT k FROM t ORDER BY n",
    "SELECT k FROM t ORDER BY n DESC NULLS FIRST LIMIT 2 OFFSET 1",
    "SELECT DISTINCT k FROM (SELECT k FROM t WHERE n IS NOT NULL) u",
    "SELECT value.f0, value.inner.z AS z, value, tags FROM t WHERE value.f0 = 1 AND k LIKE 'a%'",
    "SELECT big FROM t WHERE seen >= '2026-01-02' AND NOT (k IN ('c', 'd')) OR n BETWEEN 1 AND 2;",
    "WITH u AS (SELECT k AS name, n FROM t) SELECT u.name, t.big FROM u LEFT JOIN t ON u.n = t.n ORDER BY t.big",
    "SELECT CASE WHEN n > 1 THEN 'many' ELSE k END AS what, n + 1 AS next, n * 2 AS twice, -big AS less FROM t",
    "SELECT coalesce(k, 'none') AS k, n FROM t",
    "SELECT count(DISTINCT k) AS names, sum(x) AS x FROM t WHERE x <> 0 HAVING count(*) > 0",
    "SELECT a.big FROM t a JOIN t b ON a.big = b.n WHERE b.yes",
    "SELECT a.big FROM t a, t b WHERE a.k = b.k AND b.k NOT LIKE 'b'",
    "SELECT k FROM t WHERE k = 'it''s' OR `n` <= 2 AND x IS NULL",
)
OTHERWISE = (
    'SELECT count("k") AS texts FROM t',  # a text in Spark, a column in DuckDB
    "SELECT k FROM t WHERE k = 'a\\nb'",
    "SELECT 1L, k FROM t",
    "SELECT n / 0 AS none FROM t",
    "SELECT n % 2 AS odd FROM t",
    "SELECT upper(k) AS k FROM t",
    "SELECT k || 'x' AS k FROM t",
    "SELECT n::bigint AS n FROM t",
    "SELECT cast(n AS bigint) AS n FROM t",
    "SELECT x FROM t WHERE x > 0.5",
    "SELECT n + 1 FROM t",
    "SELECT count(value.f0) FROM t",
    "SELECT value.* FROM t",
    "SELECT tags[0] AS tag FROM t",
    "SELECT k, n FROM t GROUP BY ALL",
    "SELECT k FROM t GROUP BY ROLLUP (k)",
    "SELECT * FROM t a JOIN t b ON a.k = b.k",
    "SELECT a.k FROM t a FULL JOIN t b ON a.k = b.k",
    "SELECT a.k FROM t a JOIN t b USING (k)",
    "SELECT k FROM t WHERE n IN (SELECT n FROM t)",
    "SELECT k FROM t WHERE n > (SELECT min(n) FROM t)",
    "SELECT sum(n) OVER () AS s FROM t",
    "SELECT count(*) FILTER (WHERE n > 1) AS c FROM t",
    "SELECT k FROM t UNION SELECT k FROM t",
    "SELECT k FROM t LIMIT 10%",
    "SELECT DISTINCT value FROM t",
    "SELECT DISTINCT * FROM t",
    "SELECT value, count(*) AS c FROM t GROUP BY value",
    "SELECT k FROM t ORDER BY value",
    "SELECT * EXCLUDE (k) FROM t",
    "SELECT k FROM t USING SAMPLE 10%",
    "SELECT 99999999999999999999 AS n FROM t",
    "SELECT k FROM unknown",
    "SELECT nothing FROM t",
    "SELECT k FROM other.t",
    "SELECT k FROM 'file.csv'",
    "SELECT k FROM t; SELECT k FROM t",
    "DELETE FROM t",
    "SELECT sum(big) * 9223372036854775807 AS s FROM t",
    "not a query",
)  # fmt: skip


def views(table: pa.Table = ROWS) -> list[SqlView]:
    def of_spark(session: SparkSession) -> Any:
        return session.createDataFrame(table)

    here = SqlView("t", (), "a row", of_spark, lambda: table, lambda: 100)
    return [here, SqlView("only_spark", (), "a row", of_spark)]


def rows(table: pa.Table, text: str) -> list[Any]:
    dicts = table.to_pylist()
    return dicts if "ORDER BY" in text else sorted(dicts, key=repr)


def kinds(table: pa.Table) -> list[str]:
    """Types, whatever their elements are called."""
    return [re.sub(r"list<\w+:", "list<", str(field.type)) for field in table.schema]


@pytest.mark.spark
def test_answers_are_those_of_spark(spark: SparkSession) -> None:
    spark.createDataFrame(ROWS).createOrReplaceTempView("t")
    try:
        for text in SAME:
            here, there = answer(views(), text), spark.sql(text.removesuffix(";")).toArrow()
            assert here is not None, text
            assert here.column_names == there.column_names, text
            assert kinds(here) == kinds(there), text
            assert rows(here, text) == rows(there, text), text
    finally:
        spark.catalog.dropTempView("t")


@pytest.mark.parametrize("text", OTHERWISE)
def test_what_may_mean_something_else_is_left_to_spark(text: str) -> None:
    assert answer(views(), text) is None


def test_views_that_only_spark_can_make_are_left_to_it() -> None:
    assert answer(views(), "SELECT * FROM only_spark") is None


def test_a_state_that_is_too_large_is_left_to_spark() -> None:
    assert answer(views(), "SELECT k FROM t", most_bytes=100) is not None
    assert answer(views(), "SELECT k FROM t", most_bytes=99) is None


@pytest.mark.parametrize("kind", [pa.decimal128(10, 2), pa.float32()])
def test_types_that_are_treated_differently_are_left_to_spark(kind: pa.DataType) -> None:
    table = pa.table({"k": ["a"], "n": pa.array([1], kind)})
    assert answer(views(table), "SELECT k, n FROM t") is None


def test_a_sum_that_does_not_fit_is_left_to_spark() -> None:
    table = pa.table({"n": pa.array([2**63 - 1, 1], pa.int64())})
    assert answer(views(table), "SELECT sum(n) AS n FROM t") is None


def test_python_and_files_cannot_be_reached() -> None:
    local = pa.table({"k": ["secret"]})  # DuckDB looks for variables by default
    assert answer(views(), "SELECT k FROM local") is None, local
    assert answer(views(), "SELECT content FROM read_text('/etc/hostname')") is None


# -- the views of a job ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Memory:
    site = Memory(tmp_path_factory.mktemp("local"), spark)
    for batch in BATCHES[:2]:
        site.run(batch)
    return site


def viewed(memory: Memory) -> list[SqlView]:
    history = read_history(str(memory.root), "memory")
    assert history is not None
    return views_of(
        ViewedJob(history.layout, history.checkpoints, history.path, lambda _: pytest.fail("Spark"))
    )


def test_all_states_and_the_history_are_read_without_spark(memory: Memory) -> None:
    own = viewed(memory)
    of_rows = {"checkpoints", "sources", "sinks", "states", "expectations", "gates"}
    assert {v.name for v in own if v.table} == {*STATES, *(f"remembers__{s}" for s in STATES), *of_rows}
    for view in own:
        if view.table is None or "__" in view.name:
            continue
        text = f"SELECT * FROM `{view.name}`"  # one is called "all"
        here, there = answer(own, text), memory.engine.sql("memory", text).toArrow()
        assert here is not None, view.name
        assert here.column_names == there.column_names, view.name
        assert rows(here, text) == rows(there, text), view.name
        assert (view.bytes() > 0) is (view.name not in of_rows), view.name


def test_the_command_loads_neither_the_engine_nor_pyspark_nor_pandas(memory: Memory) -> None:
    """Each of them takes as long as the answer."""
    code = (
        "import sys; from state_engine.cli.main import app; app(sys.argv[1:], standalone_mode=False); "
        "print(*{'duckdb', 'pandas', 'pyspark', 'state_engine.engine.engine'} & set(sys.modules))"
    )
    line = ("sql", "memory", "SELECT count(*) AS rows FROM last", "--csv")
    shown = subprocess.run(
        [sys.executable, "-c", code, *line],
        env=os.environ | {"STATELAKE__ROOT": str(memory.root)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    expected = memory.engine.sql("memory", "SELECT * FROM last").count()
    assert shown.stdout.split() == ["rows", str(expected), "duckdb"]


def test_files_that_are_gone_are_an_error_and_no_reason_to_ask_spark(memory: Memory) -> None:
    own = viewed(memory)
    history = read_history(str(memory.root), "memory")
    assert history is not None
    for file in (memory.root / "memory/operators/remembers/changelog").rglob("*.parquet"):
        file.unlink()
    with pytest.raises(MissingFilesError):
        answer(own, "SELECT count(*) FROM last")
