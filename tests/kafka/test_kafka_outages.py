"""A topic to which nothing comes for long: with ``stale_after``, time waits for it, and its backlog is joined."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
from pyspark.sql import SparkSession

from state_engine import DeltaSink, KafkaSource, StateEngine, StatefulJob
from state_engine.monitoring.job_history import read_history
from state_engine.monitoring.job_status import status_of_history
from tests.kafka.topics import Topics
from tests.metamorphic.functions import Paid
from tests.metamorphic.jobs import EVENT, SPAN, START, Rows, met, quiet_events

EVERY, DOWN, UP = timedelta(minutes=5), timedelta(minutes=15), timedelta(minutes=55)
MET = "k string, ordered bigint, paid bigint"


class Shop:
    """Topics of orders and payments, a job that joins them, and how many of their rows were sent."""

    def __init__(self, topics: Topics, directory: Path, spark: SparkSession, rows: Rows) -> None:
        self.topics, self.directory, self.spark, self.rows = topics, directory, spark, rows
        self.topic_of = {name: topics.new() for name in rows}
        self.sent = dict.fromkeys(rows, 0)

    def send(self, name: str, until: datetime) -> None:
        """What came until then."""
        rows = [row for row in self.rows[name] if row["at"] <= until]
        texts = [{**row, "at": row["at"].isoformat()} for row in rows[self.sent[name] :]]
        self.topics.send_rows(self.topic_of[name], texts)
        self.sent[name] = len(rows)

    def job(self) -> StatefulJob:
        job = StatefulJob("shop")
        orders, payments = (
            job.source(
                name,
                KafkaSource(self.topics.servers, topic, schema=EVENT, max_offsets_per_batch=5),
                event_time="at", watermark="clock", clock_delay="15 min", stale_after="10 min",
            ).key_by("k")
            for name, topic in self.topic_of.items()
        )  # fmt: skip
        pairs = orders.connect(payments).process(Paid(), uid="paid", output_type=MET)
        pairs.sink("met", DeltaSink(str(self.directory / "met")))
        return job

    def run(self, clock: datetime, **options: Any) -> Any:
        with StateEngine(self.directory / "root", self.spark) as engine:
            return engine.run(self.job(), clock=_ms(clock), **options)

    def outages(self, clock: datetime) -> tuple[str, ...]:
        """Those that the status names."""
        history = read_history(str(self.directory / "root"), "shop")
        status = status_of_history(
            "shop", history, job=self.job(), now_ms=_ms(clock), stuck_after=timedelta(hours=9)
        )
        assert (status.state, status.exit_code) == (("waiting", 1) if status.outages else ("ok", 0))
        return status.outages


def test_a_topic_that_is_down_is_waited_for_and_its_backlog_joined(
    topics: Topics, tmp_path: Path, spark: SparkSession
) -> None:
    rows = quiet_events("orders", "payments", steps_s=(20, 100, 500))(random.Random(4))
    shop, waited = Shop(topics, tmp_path, spark, rows), list[int | None]()
    for step in range(1, SPAN // EVERY + 1):
        clock, down = START + step * EVERY, DOWN < step * EVERY < UP
        shop.send("orders", clock)
        if not down:
            shop.send("payments", clock)
        report = shop.run(clock)
        assert sum(report.behind_watermark.values()) == 0
        silent = down and step * EVERY >= DOWN + timedelta(minutes=10)
        expected = f"source 'payments' brought its last rows at {START + DOWN:%Y-%m-%d %H:%M:%S} UTC: event time waits"
        for shown in (report.outages, shop.outages(clock)):
            assert [one[: len(expected)] for one in shown] == [expected] * silent
        if silent:
            with StateEngine(tmp_path / "root", spark) as engine:
                (payments,) = (s for s in engine.checkpoints("shop")[-1].sources if s.name == "payments")
                waited.append(payments.watermark_ms)
    assert len(waited) > 4
    assert len(set(waited)) == 1, "time stood"
    shop.run(START + timedelta(days=1))
    report = shop.run(START + timedelta(days=1), drain=True)
    table = pl.read_delta(str(tmp_path / "met"))
    joined = sorted(table.select("k", "ordered", "paid").to_dicts(), key=repr)
    assert joined == sorted(met(rows)["met"], key=repr)
    assert any(None in row.values() for row in joined), "some find nobody"


def _ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)
