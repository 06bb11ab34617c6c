"""Records cannot be withdrawn: restore, promote and backfill refuse, unless the policy of the sink is ``keep``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from state_engine import (
    DeltaSink,
    FileSource,
    KafkaSink,
    KeyedProcessFunction,
    StateEngine,
    StatefulJob,
    ValueStateDescriptor,
)
from state_engine.core.checkpoints.history import History
from state_engine.core.errors import SinkError
from state_engine.core.time.partitions import TimePartitions
from tests.kafka.topics import Topics

START = datetime(2026, 11, 1, tzinfo=UTC)
DAYS = ["2026-11-01", "2026-11-02", "2026-11-03"]
OUT = "id bigint, total bigint"
REFUSED = r"sink 'topic': records that were sent to Kafka cannot be withdrawn.*outputs=\"keep\""
FIRST = [(0, 0), (1, 1), (2, 3)]
"""An id a day, and the sum of all until then."""
TENFOLD = [(0, 0), (1, 10), (2, 30)]
"""The same by other code."""


class Sum(KeyedProcessFunction):
    """The sum of all ids, times a factor."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", int, default=0))

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        self.total.update(self.total.value() + value.id * self.factor)
        yield value.id, self.total.value()


class Site:
    """A row a day, into a topic and into a table, which can withdraw."""

    def __init__(self, spark: SparkSession, directory: Path, topics: Topics) -> None:
        self.spark, self.directory, self.topics, self.topic = spark, directory, topics, topics.new()
        (directory / "feed").mkdir()
        for number, _ in enumerate(DAYS):
            at = pa.array([START + timedelta(days=number, hours=1)], pa.timestamp("us", "UTC"))
            rows = pa.table({"id": pa.array([number], pa.int64()), "one": ["k"], "at": at})
            pq.write_table(rows, directory / "feed" / f"{number}.parquet")

    def engine(self) -> StateEngine:
        return StateEngine(self.directory / "root", self.spark)

    def job(self, factor: int = 1) -> StatefulJob:
        job = StatefulJob("days", partitions=TimePartitions("at", start=DAYS[0], end="2026-11-04"))
        rows = job.source("rows", FileSource(str(self.directory / "feed")), order_by=["at"], event_time="at")
        sums = rows.key_by("one").process(Sum(factor), uid="sums", output_type=OUT)
        sums.sink("topic", KafkaSink(self.topics.servers, self.topic))
        sums.sink("table", DeltaSink(str(self.directory / "table")))
        return job

    def run(self, factor: int = 1) -> None:
        with self.engine() as engine:
            engine.run(self.job(factor))

    def seen(self) -> dict[str, Counter[tuple[int, int]]]:
        """What is in the topic, and what is in the table."""
        sent = [(row["id"], row["total"]) for row in self.topics.values(self.topic)]
        table = DeltaTable(str(self.directory / "table")).to_pyarrow_table().to_pylist()
        return {"topic": Counter(sent), "table": Counter((row["id"], row["total"]) for row in table)}

    def check_refused(self, change: Callable[[StateEngine, Any], object], outputs: Any) -> None:
        """An operation is refused with the way out, and has changed nothing."""
        before = self.seen()
        with self.engine() as engine:
            head = History(engine.checkpoints("days")).head
            with pytest.raises(SinkError, match=REFUSED):
                change(engine, outputs)
            assert History(engine.checkpoints("days")).head == head
        assert self.seen() == before


@pytest.fixture
def site(spark: SparkSession, tmp_path: Path, topics: Topics) -> Site:
    made = Site(spark, tmp_path, topics)
    made.run()
    assert made.seen() == {"topic": Counter(FIRST), "table": Counter(FIRST)}
    return made


WITHDRAW: list[Any] = ["withdraw", {}, {"table": "keep"}]
"""Policies under which the topic would have to let go of records."""


@pytest.mark.parametrize("outputs", WITHDRAW, ids=str)
def test_a_restore_needs_the_policy_keep(site: Site, outputs: Any) -> None:
    def restore(engine: StateEngine, outputs: Any) -> object:
        return engine.restore(site.job(), checkpoint_id=1, outputs=outputs)

    site.check_refused(restore, outputs)
    with site.engine() as engine:
        report = engine.restore(site.job(), checkpoint_id=1, outputs={"topic": "keep"})
    assert report.rows_withdrawn == {"table": 2}
    assert site.seen() == {"topic": Counter(FIRST), "table": Counter(FIRST[:1])}
    site.run()
    assert site.seen() == {"topic": Counter(FIRST + FIRST[1:]), "table": Counter(FIRST)}


@pytest.mark.parametrize("outputs", WITHDRAW, ids=str)
def test_a_promotion_needs_the_policy_keep(site: Site, outputs: Any) -> None:
    with site.engine() as engine:
        branch = engine.replay(site.job(), code=site.job(10)).branch
    assert site.seen() == {"topic": Counter(FIRST), "table": Counter(FIRST)}, "a branch sends nothing"

    def promote(engine: StateEngine, outputs: Any) -> object:
        return engine.promote(site.job(10), branch, outputs=outputs)

    site.check_refused(promote, outputs)
    with site.engine() as engine:
        engine.promote(site.job(10), branch, outputs={"topic": "keep"})
    assert site.seen() == {"topic": Counter(FIRST + TENFOLD), "table": Counter(TENFOLD)}
    site.run(10)
    assert site.seen() == {"topic": Counter(FIRST + TENFOLD), "table": Counter(TENFOLD)}


@pytest.mark.parametrize("outputs", WITHDRAW, ids=str)
def test_a_backfill_needs_the_policy_keep(site: Site, outputs: Any) -> None:
    def backfill(engine: StateEngine, outputs: Any) -> object:
        return engine.backfill(site.job(10), DAYS[0], DAYS[0], outputs=outputs)

    site.check_refused(backfill, outputs)
    with site.engine() as engine:
        report = engine.backfill(site.job(10), DAYS[0], DAYS[0], outputs={"topic": "keep"})
    assert report.rows_withdrawn == {"topic": 0, "table": 3}
    assert site.seen() == {"topic": Counter(FIRST + TENFOLD), "table": Counter(TENFOLD)}


def test_a_backfill_that_stops_withdraws_what_it_stops_before(site: Site) -> None:
    def backfill(engine: StateEngine, outputs: Any) -> object:
        return engine.backfill(site.job(10), DAYS[0], DAYS[0], "stop", outputs=outputs)

    site.check_refused(backfill, "withdraw")
