"""However a job of topics is run, they and PostgreSQL end with the same; see ``tests.metamorphic.test_any_way``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from state_engine import KafkaSink, KafkaSource, SqlSink, SqlStateTable, StatefulJob, count, sum_
from tests.kafka.topics import Topics
from tests.metamorphic.functions import Hours, Lists, Running
from tests.metamorphic.jobs import EVENT, SERVER, TIMED, Case, database, hours_of, of_events
from tests.metamorphic.sessions import switches
from tests.metamorphic.variations import check_any_way, plain_run, rows_of
from tests.support.postgres import PASSWORD_ENV, Server

Build = Callable[[Path, str], StatefulJob]


def topic_of(directory: Path, name: str) -> str:
    """Of a run in a directory of its own."""
    return f"{directory.parent.name}-{directory.name}-{name}"


def by_time(servers: str) -> Build:
    """Windows of two topics, into a topic and a table."""

    def build(directory: Path, cleanup: str) -> StatefulJob:
        job = StatefulJob("by_time")
        web, shop = (
            job.source(name, KafkaSource(servers, topic_of(directory, name), schema=EVENT), **TIMED)
            for name in ("web", "shop")
        )
        columns = "k string, at bigint, sum bigint"
        sums = web.union(shop).key_by("k").process(Hours(), uid="hours", output_type=columns)
        sums.sink("sums", SqlSink(table="sums", **database(directory)))
        sums.sink("topic", KafkaSink(servers, topic_of(directory, "sums")))
        return job

    return build


def by_key(servers: str) -> Build:
    """What came of each key, in order, and last rows of keys; from a topic of several partitions."""

    def build(directory: Path, cleanup: str) -> StatefulJob:
        job = StatefulJob("by_key")
        source = KafkaSource(servers, topic_of(directory, "events"), schema=EVENT)
        rows = job.source("events", source)
        names = rows.map(
            lambda row: (row.k, f"{row.what} {row.n}"), output_type="k string, seen string", uid="names"
        )
        listed = names.key_by("k").process(
            Lists(), uid="lists", output_type="k string, n bigint, seen string"
        )
        listed.sink("listed", KafkaSink(servers, topic_of(directory, "listed"), key=["k"]))
        running = rows.key_by("k").process(Running(), uid="running", output_type="k string, sum bigint")
        running.sink("running", SqlSink(table="running", **database(directory)))
        running.publish_state("sum", SqlStateTable(table="sum_of_key", **database(directory)))
        sums = rows.key_by("k").aggregate(rows=count(), sum=sum_("n"), uid="sums")
        sums.sink("sums", SqlSink(table="sums", **database(directory), key=["k"]))
        return job

    return build


CASES: dict[str, tuple[Callable[[str], Build], Case]] = {
    "by time": (by_time, Case(by_time(""), of_events("web", "shop"), any_arrival=True, plainly=hours_of)),
    "by key": (by_key, Case(by_key(""), of_events(), partitions=3)),
}


MORE = [pytest.param(name, seed, marks=pytest.mark.long) for name in CASES for seed in range(2, 6)]


@pytest.mark.parametrize(("name", "seed"), [("by time", 1), ("by key", 1), *MORE])
def test_any_way_gives_the_same_in_topics_and_tables(
    name: str,
    seed: int,
    topics: Topics,
    postgres: Server,
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(PASSWORD_ENV, postgres.password)
    of_servers, case = CASES[name]
    case = replace(case, build=of_servers(topics.servers), topics=topics)
    plain, varied = tmp_path / "plain", tmp_path / "varied"
    for directory in (plain, varied):
        directory.mkdir()
        (directory / SERVER).write_text(postgres.new_database())
    rows = rows_of(case, seed)
    expected = plain_run(case, rows, plain, spark)
    check_any_way(case, seed, switches(spark.newSession()), rows, varied, spark, expected)
