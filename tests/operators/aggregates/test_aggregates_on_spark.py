"""Aggregates of a stream that changes, on Spark: the state in its tables is that of the rows left, also compacted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine import FileSource, KeyedStream, StateEngine, StatefulJob, count, open_state, sum_
from state_engine.state_processor.key_change import known_key
from state_engine.testing import CollectSink, run_in_memory
from tests.operators import payments
from tests.operators.payments import ALL, DELETE, PAYMENT, history, left_of
from tests.support.changes import as_rows
from tests.support.guides import GUIDES

pytestmark = pytest.mark.spark
STATES = ("aggregates", "values_n", "values_x", "values_name", "values_price")


def job_of(changes: list[payments.Change], cut: int | None = None) -> StatefulJob:
    job = StatefulJob("payments", parallelism=2)
    rows = as_rows(changes, "user", "n", "x", "price", "name")
    stream = job.from_collection(rows, PAYMENT, changing=True, max_rows_per_batch=cut)
    keyed: KeyedStream = stream.key_by("user")
    keyed.aggregate(**ALL).uid("users")  # type: ignore[call-overload]
    return job


def shown(root: Path) -> dict[str, Any]:
    states = {name: open_state.read_state(root, "payments", "users", name) for name in STATES}
    return {name: sorted(map(repr, table.to_pylist())) for name, table in states.items()}


def test_state_in_tables_is_that_of_the_rows_left(tmp_path: Path, spark: SparkSession) -> None:
    changes = list(history(8, 60))
    left = left_of(changes)
    gone = [(DELETE, row) for row in left if row[0] == "a"]
    others = [(payments.INSERT, row) for row in left if row[0] != "a"]
    for root, sent in ((tmp_path / "changed", [*changes, *gone]), (tmp_path / "alone", others)):
        with StateEngine(root, spark) as engine:
            engine.run(job_of(sent, cut=30))
    expected = shown(tmp_path / "alone")
    assert shown(tmp_path / "changed") == expected
    assert len(expected["aggregates"]) == 2
    assert len(expected["values_n"]) > 4
    with StateEngine(tmp_path / "changed", spark) as engine:
        engine.compact("payments")
        assert shown(tmp_path / "changed") == expected
        ((total, named),) = engine.sql(
            "payments",
            "SELECT value.sum_price.total, value.count_name FROM users__aggregates WHERE user = 'b'",
        ).collect()
        prices = [row[3] for row in left if row[0] == "b" and row[3] is not None]
        assert (total, named) == (sum(prices), sum(row[0] == "b" and row[4] is not None for row in left))


def test_the_sql_of_the_guide_reads_sums_of_doubles(tmp_path: Path, spark: SparkSession) -> None:
    (query,) = re.findall(r"```sql\n(.*?)```", (GUIDES / "aggregates.md").read_text(), re.DOTALL)
    payments = [
        ("a", 0.1, "EUR"),
        ("a", 0.2, "EUR"),
        ("b", None, "EUR"),
        ("c", 1e16, "EUR"),
        ("c", -1e16, "EUR"),
    ]
    job = StatefulJob("totals")
    stream = job.from_collection(payments, "account string, amount double, currency string")
    stream.key_by("account").aggregate(n=count(), total=sum_("amount")).uid("totals")
    with StateEngine(tmp_path, spark) as engine:
        engine.run(job)
        rows = sorted(map(tuple, engine.sql("totals", query).collect()))
    assert rows == [("a", 2, 0.30000000000000004), ("b", 1, None), ("c", 2, None)]


def test_it_is_the_state_of_the_job_in_memory(tmp_path: Path, spark: SparkSession) -> None:
    changes = list(history(5, 40))
    with StateEngine(tmp_path / "root", spark) as engine:
        engine.run(job_of(changes))
    job = job_of(changes)
    job.stream(job.operators["users"]).sink("out", CollectSink())
    with run_in_memory(job) as run:
        run.run()
        in_memory = run.state("users", "aggregates")
    table = open_state.read_state(tmp_path / "root", "payments", "users", "aggregates").to_pylist()
    assert {row["user"]: row["value"]["rows"] for row in table} == {u: v[0] for u, v in in_memory.items()}


def test_the_key_behind_aggregates_of_files_is_known_without_running_the_job(
    tmp_path: Path, spark: SparkSession
) -> None:
    spark.createDataFrame([("ada", 3)], "user string, ms int").write.parquet(str(tmp_path / "clicks"))
    job = StatefulJob("clicks")
    clicks = job.source("clicks", FileSource(str(tmp_path / "clicks"), schema="user string, ms int"))
    users = clicks.key_by("user").aggregate(total=sum_("ms"), emit="changes").uid("users")
    users.key_by("total").aggregate(n=count()).uid("totals")
    key = known_key(spark, job, job.operators["totals"])
    assert (key.names, [str(kind) for kind in key.types]) == (("total",), ["int64"])
    with StateEngine(tmp_path / "root", spark) as engine:
        engine.run(job)
        ((total, value),) = engine.read_state("clicks", "totals", "aggregates").collect()
    assert (total, tuple(value)) == (3, (1,))
