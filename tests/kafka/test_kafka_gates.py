"""A batch that a gate holds puts no record into a topic, not even one of an open transaction; a release does, once."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from state_engine import FileSource, KafkaSink, RowsBetween, StateEngine, StatefulJob
from state_engine.core.errors import GateError
from tests.kafka.topics import Topics


def test_a_topic_has_no_record_of_what_is_held(tmp_path: Path, spark: SparkSession, topics: Topics) -> None:
    topic = topics.new()
    (tmp_path / "feed").mkdir()

    def put(name: str, ids: list[int]) -> None:
        (tmp_path / "feed" / f"{name}.csv").write_text("".join(f"{one}\n" for one in ids))

    def run() -> None:
        job = StatefulJob("gated")
        rows = job.source("rows", FileSource(str(tmp_path / "feed"), schema="id bigint", format="csv"))
        rows.sink("out", KafkaSink(topics.servers, topic))
        job.gate("few", RowsBetween("out", most=3), otherwise="hold")
        engine.run(job)

    def end() -> int:
        """The end of the topic with all records, also those of open and aborted transactions."""
        with topics.admin() as admin:
            return admin.offsets([(topic, 0)], "latest", committed=False)[topic, 0]

    with StateEngine(tmp_path / "root", spark) as engine:
        put("1", [1, 2])
        run()
        assert [row["id"] for row in topics.values(topic)] == [1, 2]
        before = end()
        put("2", [10, 20, 30, 40])
        for _ in range(2):
            with pytest.raises(GateError, match="branch promote gated held_2"):
                run()
            assert [row["id"] for row in topics.values(topic)] == [1, 2]
            assert end() == before
        engine.promote("gated", "held_2")
        assert sorted(row["id"] for row in topics.values(topic)) == [1, 2, 10, 20, 30, 40]
        put("3", [5])
        run()
        assert sorted(row["id"] for row in topics.values(topic)) == [1, 2, 5, 10, 20, 30, 40]
