"""Aggregates of a stream that changes, on Spark: the state in its tables is that of the rows left, also compacted."""

from __future__ import annotations

import random
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row as SparkRow
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from state_engine import (
    DeltaSink,
    FileSource,
    KeyedStream,
    Session,
    StateEngine,
    StatefulJob,
    StateTtlConfig,
    Tumbling,
    count,
    open_state,
    sum_,
)
from state_engine.state_processor.key_change import known_key
from tests.operators import payments
from tests.operators.aggregates.readings import ALL as EVERY
from tests.operators.aggregates.readings import COLUMNS, Reading, expected, plain, reading
from tests.operators.payments import ALL, DELETE, PAYMENT, history, left_of
from tests.operators.windows import models
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


TTL_MS = 40
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def of_every_aggregate(rows: list[Reading], table: str) -> StatefulJob:
    """On a keyed stream that forgets keys, in tumbling windows and in sessions."""
    job = StatefulJob("every", parallelism=2)
    given = [(*row[:-1], EPOCH + timedelta(milliseconds=row.at)) for row in rows]
    read = job.from_collection(given, f"{COLUMNS}, at timestamp", name="rows", max_rows_per_batch=20)
    keyed = read.assign_timestamps_and_watermarks("at", "4 ms").key_by("k")
    ttl = StateTtlConfig.new_builder(TTL_MS).use_event_time().build()
    forgetful = keyed.aggregate(**EVERY, emit="changes", ttl=ttl, uid="keyed")
    forgetful.sink("keyed", DeltaSink(f"{table}/keyed", key=["k"]))
    for name, windows in (("tumbling", Tumbling(16)), ("sessions", Session(5))):
        results = keyed.window(windows, lateness=9).aggregate(**EVERY, uid=name)
        results.sink(name, DeltaSink(f"{table}/{name}"))
    return job


def plain_results(rows: list[Reading]) -> tuple[Any, ...]:
    return tuple(plain(value) for value in expected(EVERY, rows))


@pytest.mark.more
def test_every_aggregate_on_delta_through_a_restore_is_that_of_a_plain_program(
    tmp_path: Path, spark: SparkSession
) -> None:
    rng, newest, rows = random.Random(9), 0, list[Reading]()
    for _ in range(100):
        newest += rng.choice([0, 0, 1, 2, 5, 12])
        rows.append(reading(rng, newest - rng.choice([0, 0, 1, 4, 5, 9, 40]), keys="abcd"))
    job = of_every_aggregate(rows, str(tmp_path))
    with StateEngine(tmp_path / "root", spark) as engine:
        engine.run(job)
        engine.compact("every")
        engine.restore("every", checkpoint_id=2)
        engine.run(job)
        assert table_at(spark, tmp_path / "keyed", 1) == kept_by(rows, TTL_MS)
        engine.run(job, drain=True)
    assert table_at(spark, tmp_path / "keyed", 1) == {}
    for name, windowed in (
        ("tumbling", models.aligned(rows, models.tumbling(16), bound=4, lateness=9)),
        ("sessions", models.sessions(rows, lambda row: 5, bound=4, lateness=9)),
    ):
        assert windowed.late
        assert table_at(spark, tmp_path / name, 3) == {
            window: plain_results(of) for window, of in windowed.rows.items()
        }, name


def kept_by(rows: list[Reading], ttl_ms: int) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """What is kept of each key: its rows since it was last idle for so long."""
    last: dict[str, int] = {}
    kept: dict[str, list[Reading]] = {}
    for row, watermark in models.watermarks_before(rows, 4):
        now = max(row.at, watermark)
        if last.get(row.k, models.START) + ttl_ms <= now:
            kept[row.k] = []
        last[row.k] = max(last.get(row.k, now), now)
        kept[row.k].append(row)
    watermark = max(row.at for row in rows) - 4 - 1
    return {(k,): plain_results(of) for k, of in kept.items() if last[k] + ttl_ms > watermark}


def table_at(spark: SparkSession, path: Path, width: int) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    table = spark.read.format("delta").load(str(path))
    instants = {name: F.unix_millis(name) for name, kind in table.dtypes if kind == "timestamp"}
    rows = [tuple(map(plain, map(listed, row))) for row in table.withColumns(instants).collect()]
    shown = {row[:width]: row[width:] for row in rows}
    assert len(shown) == len(rows)
    return shown


def listed(value: Any) -> Any:
    """Rows of Spark as tuples."""
    return tuple(value) if isinstance(value, SparkRow) else value
