"""``keyed.over(…)`` in jobs: types of results, late rows, what stands behind, what is refused, and a job on Spark."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession

from state_engine import (
    ChangeFormat,
    DataStream,
    DeltaSink,
    DeltaStateTable,
    FileSource,
    KeyedStream,
    OutputTag,
    SqlSink,
    StatefulJob,
    Tumbling,
    count,
    count_distinct,
    max_,
    sum_,
)
from state_engine.core.errors import ConfigurationError
from state_engine.testing import CollectSink, run_in_memory
from tests.support.limits import NOTHING_BY_DRIVER, SetLimits
from tests.support.pipelines import Pipeline
from tests.support.postgres import PASSWORD_ENV, Server

ROW = "card string, cents bigint, at timestamp"
NOWHERE = FileSource("/nowhere", schema=ROW)
LATE = OutputTag("late", ROW)
EPOCH = datetime(2026, 1, 5, tzinfo=UTC)
FEATURES: dict[str, Any] = {
    "spent": sum_("cents", last=["1 min", "1 h"]),
    "prices": count_distinct("cents", last="1 h"),
    "most": max_("cents", last="10 min"),
}


def keyed_rows(job: StatefulJob, source: Any = NOWHERE, **given: Any) -> Any:
    options = {"event_time": "at", "max_out_of_orderness": "30 s", **given}
    return job.source("tx", source, **options).key_by("card")


def payments(seed: int, number: int = 60) -> list[tuple[str, int, datetime]]:
    chance, newest, made = random.Random(seed), 0, []
    for _ in range(number):
        newest += chance.choice([0, 5, 20, 40, 900])
        behind = chance.choice([0, 0, 10, 30, 31, 400])
        made.append((chance.choice("abc"), chance.randint(1, 9), EPOCH + timedelta(seconds=newest - behind)))
    return made


def test_results_are_typed_and_an_operator_behind_takes_each_of_them_in_time() -> None:
    job = StatefulJob("chain", parallelism=2)
    features = keyed_rows(job).over(lateness="1 min", late_to=LATE, tile="1 min", uid="features", **FEATURES)
    columns = ", ".join([ROW, *(f"{name} bigint" for name in ("spent_1min", "spent_1h", "prices", "most"))])
    hours = features.key_by("card").window(Tumbling("1 h"), late_to=OutputTag("behind", columns))
    second = hours.aggregate(uid="hours", n=count(), most=max_("spent_1h"))
    second.sink("hours", CollectSink())
    features.get_side_output(LATE).sink("late", CollectSink())
    given = payments(1)
    with run_in_memory(job) as run:
        for at in range(0, len(given), 7):
            run.process({"tx": given[at : at + 7]})
        run.process(drain=True)
        late = sum(row.metrics["features.too_late"] for row in run.checkpoints())
        assert late == len(run.sink("late")) > 0
        assert sum(n for *_, n, _ in run.sink("hours")) == len(given) - late
        assert sum(row.metrics.get("hours.too_late", 0) for row in run.checkpoints()) == 0


@pytest.fixture
def postgres(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Options of a table in a PostgreSQL of its own."""
    with Server.started() as server:
        monkeypatch.setenv(PASSWORD_ENV, server.password)
        yield {"url": server.new_database(), "password_env": PASSWORD_ENV}


@pytest.mark.parametrize(
    ("declared", "database"),
    [
        pytest.param(True, "sqlite", id="types in code"),
        pytest.param(False, "sqlite", id="types of files"),
        pytest.param(True, "postgres", id="PostgreSQL"),
    ],
)
def test_a_training_set_and_a_serving_table_of_one_job_are_equal(
    spark: SparkSession,
    tmp_path: Path,
    limits: SetLimits,
    declared: bool,
    database: str,
    request: pytest.FixtureRequest,
) -> None:
    """Each row with its features, appended; the newest ones of each card, in a table of a database."""
    of_table: dict[str, Any] = {"url": f"sqlite:///{tmp_path}/serving.db"}
    if database == "postgres":
        of_table = request.getfixturevalue(database)
    limits(**NOTHING_BY_DRIVER)
    (tmp_path / "in").mkdir()
    source = FileSource(str(tmp_path / "in"), format="parquet", schema=ROW if declared else None)

    def build(job: StatefulJob) -> dict[str, DataStream]:
        features = keyed_rows(job, source).over(tile="1 min", uid="features", **FEATURES)
        features.sink("training", DeltaSink(str(tmp_path / "training")))
        features.sink("serving", SqlSink(table="features", key=["card"], **of_table))
        return {}

    pipeline, given = Pipeline(tmp_path, spark, build, parallelism=2), payments(3)
    for number, rows in enumerate((given[:25], given[25:])):
        columns = {name: [row[at] for row in rows] for at, name in enumerate(("card", "cents", "at"))}
        pq.write_table(pa.table(columns), tmp_path / "in" / f"{number}.parquet")
        pipeline.run()
    pipeline.run(drain=True)
    shown = ["card", "spent_1min", "spent_1h", "prices", "most"]
    training = spark.read.load(str(tmp_path / "training"), format="delta").toArrow().to_pylist()
    # rows of a card and time have the same features
    newest = {row["card"]: row for row in sorted(training, key=lambda row: row["at"])}
    address = sa.make_url(of_table["url"])
    if database == "postgres":
        address = address.set(drivername="postgresql+psycopg", password=os.environ[PASSWORD_ENV])
    with sa.create_engine(address, poolclass=sa.NullPool).connect() as connection:
        rows_there = connection.execute(sa.text(f"select {', '.join(shown)} from features"))
        serving = [tuple(row) for row in rows_there]
    assert sorted(serving) == sorted(tuple(row[name] for name in shown) for row in newest.values())
    assert len(serving) == 3
    assert pipeline.state("features", "tiles") == []


def changing(job: StatefulJob) -> KeyedStream:
    kinds = ChangeFormat.columns(op="op", insert=["I"], update=["U"], delete=["D"])
    feed = FileSource("/nowhere", schema=f"{ROW}, op string")
    return job.source("feed", feed, format=kinds, event_time="at").key_by("card")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda job: keyed_rows(job, event_time=None, max_out_of_orderness=0).over(n=count()),
         r"over\(…\) needs event time, and none of the sources.*give source\(event_time=…\)"),
        (lambda job: keyed_rows(job, late_to=LATE).over(n=count(), lateness=1),
         r"diverts late rows before over\(…\).*move late_to"),
        (lambda job: keyed_rows(job).over(), "no aggregate is given"),
        (lambda job: keyed_rows(job).over(n=count(last="1 h"), tile="7 min"),
         "tiles of 420000 ms: give a tile that divides"),
        (lambda job: keyed_rows(job).over(cents=count()), "two columns would be called 'cents'"),
        (lambda job: keyed_rows(job).over(n=sum_("card")), "the field is of type"),
        (lambda job: keyed_rows(job).over(n="count"), "an aggregate is count"),
        (lambda job: keyed_rows(job).over(n=count(), emit="changes"), "emit of over"),
        (lambda job: keyed_rows(job).over(n=count(), lateness=-1), "lateness must be 0 or more"),
        (lambda job: keyed_rows(job, FileSource("/nowhere")).over(n=count(last="1 h"), forget_after="1 day"),
         "a key goes by itself.*leave forget_after out"),
        (lambda job: keyed_rows(job).aggregate(n=count(last="1 h")), "are for keyed.over"),
        (lambda job: keyed_rows(job).window(Tumbling(5)).aggregate(n=count(last_rows=3)), "are for keyed.over"),
        (lambda job: changing(job).over(n=count()), "updates and deletes"),
        (lambda job: keyed_rows(job).over(n=count()).publish(DeltaStateTable("/features")),
         r"does not say which of its states.*newest row that comes out for each key is a sink: sink\(name"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_while_the_job_is_built(
    build: Callable[[StatefulJob], Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build(StatefulJob("refused"))
