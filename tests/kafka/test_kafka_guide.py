"""The code on the page about Kafka runs as it stands there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from state_engine import StateEngine
from tests.kafka.topics import Topics
from tests.support.guides import GUIDES, code_blocks

GUIDE = GUIDES / "kafka.md"


def test_the_guide_runs(spark: SparkSession, tmp_path: Path, topics: Topics) -> None:
    with topics.admin() as admin:
        admin.create("clicks", partitions=2)
    for partition, users in enumerate((["ada", "bob"], ["ada"])):
        rows = [{"user": user, "page": "/"} for user in users]
        topics.send_rows("clicks", rows, partition=partition)
    with StateEngine(tmp_path / "root", spark) as engine:
        names: dict[str, Any] = {"__name__": "guide", "servers": topics.servers, "engine": engine}
        examples = code_blocks(GUIDE, "python")
        assert len(examples) == 5
        for example in examples:
            exec(compile(example, str(GUIDE), "exec"), names)
        (batch,) = names["report"].batches
        assert batch.rows_out == {"counts": 3}
    counts = {row["user"]: row["clicks"] for row in topics.values("counts")}
    assert counts == {"ada": 2, "bob": 1}
    times = [[one["timestamp"] for one in topics.committed(topic)] for topic in ("clicks", "copies")]
    assert sorted(times[0]) == sorted(times[1])
