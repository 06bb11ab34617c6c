"""What a ``KafkaSource`` delivers from a real broker: every committed record once, in order, by ranges of offsets."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine import KafkaSource
from state_engine.core.errors import SourceError
from tests.kafka.topics import Topics
from tests.sources.runs import SourceRun
from tests.support.waiting import until

ROWS = "id bigint, name string"
HOUR_AGO = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
HOUR_AGO_MS = round(HOUR_AGO.timestamp() * 1000)
"""Long enough before now to differ from it; the broker deletes what is a week old at once."""


def rows(first: int, count: int) -> list[dict[str, Any]]:
    return [{"id": i, "name": f"n{i}"} for i in range(first, first + count)]


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path, topics: Topics) -> Any:
    def made(topic: str | None, **options: Any) -> SourceRun:
        return SourceRun(spark, tmp_path, source(topics, topic, **options))

    return made


def source(topics: Topics, topic: str | None, **options: Any) -> KafkaSource:
    given: dict[str, Any] = {"schema": ROWS} | options
    return KafkaSource(topics.servers, topic, **given)


def position(job: SourceRun) -> dict[str, Any]:
    """As the newest checkpoint shows it."""
    (source,) = job.engine.checkpoints("numbered")[-1].sources
    return dict(json.loads(source.position_to))


def test_records_come_once_by_partition_and_offset(topics: Topics, run: Any) -> None:
    topic = topics.new(partitions=3)
    for partition in (2, 0, 1):
        topics.send_rows(topic, rows(10 * partition, 4), partition=partition)
    job = run(topic)
    job.run()
    assert job.ids() == [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23]
    assert job.run() == []
    topics.send_rows(topic, rows(100, 1), partition=1)
    job.run()
    assert job.ids()[12:] == [100]


def test_a_bound_cuts_offsets_and_gives_each_partition_its_share(topics: Topics, run: Any) -> None:
    topic = topics.new(partitions=2)
    topics.send_rows(topic, rows(0, 6), partition=0)
    topics.send_rows(topic, rows(100, 3), partition=1)
    job = run(topic, max_offsets_per_batch=3)
    assert len(job.run()) == 3
    assert job.ids() == [0, 1, 100, 2, 3, 101, 4, 5, 102]


def test_markers_and_aborted_transactions_are_gaps_and_no_loss(topics: Topics, run: Any) -> None:
    topic = topics.new()
    with topics.producer(f"{topic}-writer") as producer:
        for number, end in enumerate(("commit", "abort", "commit")):
            producer.beginTransaction()
            for i in range(2):
                topics.give(producer, topic, None, json.dumps({"id": 10 * number + i, "name": end}))
            producer.flush()
            getattr(producer, f"{end}Transaction")()
    job = run(topic, max_offsets_per_batch=1)
    reports = job.run()
    assert job.ids() == [0, 1, 20, 21]
    assert len(reports) == 9, "six records and three markers"


def test_what_is_not_committed_yet_waits(topics: Topics, run: Any) -> None:
    topic = topics.new()
    job = run(topic)
    with topics.producer(f"{topic}-writer") as producer:
        producer.beginTransaction()
        topics.give(producer, topic, None, '{"id": 1}')
        producer.flush()
        topics.send_rows(
            topic, rows(2, 1)
        )  # behind the open transaction: its place in the order is not known yet
        job.run()
        assert job.heads() <= 1
        producer.commitTransaction()
    job.run()
    assert job.ids() == [1, 2]


@pytest.mark.parametrize("starting", ["latest", "time", "offsets"])
def test_where_the_first_run_begins(topics: Topics, run: Any, starting: str) -> None:
    topic = topics.new(partitions=2)
    topics.send(topic, (None, '{"id": 1}'), (None, '{"id": 2}'), at_ms=HOUR_AGO_MS - 1_000)
    topics.send(topic, (None, '{"id": 3}'), at_ms=HOUR_AGO_MS)
    at: Any = {"latest": "latest", "time": HOUR_AGO, "offsets": {topic: {0: 2}}}
    job = run(topic, starting=at[starting])
    job.run()
    topics.send_rows(topic, rows(4, 1), partition=1)  # nothing was there: still none of it is missed
    job.run()
    assert job.ids() == [4] if starting == "latest" else [3, 4]


def test_new_partitions_and_topics_are_read_from_their_beginning(topics: Topics, run: Any) -> None:
    first = topics.new()
    topics.send_rows(first, rows(0, 1))
    job = run(None, pattern=f"{first}.*", starting="latest")
    job.run()
    topics.grow(first, 2)
    topics.send_rows(first, rows(1, 1), partition=1)
    with topics.admin() as admin:
        admin.create(f"{first}-more", partitions=1)
    topics.send_rows(f"{first}-more", rows(2, 1))
    job.run()
    assert sorted(job.ids()) == [1, 2]


def test_a_pattern_without_topics_has_begun_all_the_same(topics: Topics, run: Any) -> None:
    topic = f"{topics.new()}-later"
    job = run(None, pattern=topic, starting="latest")
    job.run()
    with topics.admin() as admin:
        admin.create(topic, partitions=1)
    topics.send_rows(topic, rows(0, 2))
    job.run()
    assert job.ids() == [0, 1]


def test_offsets_that_expired_unread_are_an_error_or_reported(topics: Topics, run: Any) -> None:
    topic = topics.new()
    topics.send_rows(topic, rows(0, 2))
    job = run(topic)
    job.run()
    topics.send_rows(topic, rows(2, 6))
    topics.expire(topic, before=5)
    with pytest.raises(SourceError, match=r"offsets 2 to 4 \(3 of them\) are gone"):
        job.run()
    job.use(source(topics, topic, on_data_loss="reset"))
    job.run()
    assert job.ids() == [0, 1, 5, 6, 7]
    assert position(job)["lost"] == 3


def test_offsets_that_expire_between_plan_and_read_end_the_micro_batch(
    topics: Topics, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.new()
    topics.send_rows(topic, rows(0, 4))
    job, read = run(topic), KafkaSource.read

    def late(self: KafkaSource, spark: SparkSession, part: Any, *, keep_refused: bool) -> Any:
        topics.expire(topic, before=2)
        return read(self, spark, part, keep_refused=keep_refused)

    with monkeypatch.context() as patch:
        patch.setattr(KafkaSource, "read", late)
        with pytest.raises(SourceError, match="Kafka could not be read"):
            job.run()
    job.run()
    assert job.ids() == [2, 3], "nothing was recorded of the first one, so it begins with what is there"


def test_a_topic_that_is_made_anew_while_it_is_read_is_seen(
    topics: Topics, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.new()
    topics.send_rows(topic, rows(0, 2))
    job, read = run(topic), KafkaSource.read

    def late(self: KafkaSource, spark: SparkSession, part: Any, *, keep_refused: bool) -> Any:
        topics.delete(topic)
        with topics.admin() as admin:
            admin.create(topic, partitions=1)
        topics.send_rows(topic, rows(10, 2))
        return read(self, spark, part, keep_refused=keep_refused)

    monkeypatch.setattr(KafkaSource, "read", late)
    with pytest.raises(SourceError, match="was recreated"):
        job.run()
    assert job.heads() == 0


def test_a_topic_that_is_made_anew_is_no_continuation(topics: Topics, run: Any) -> None:
    topic = topics.new()
    topics.send_rows(topic, rows(0, 2))
    job = run(topic)
    job.run()
    topics.delete(topic)
    with pytest.raises(SourceError, match="has no topic"):
        job.run()
    with topics.admin() as admin:
        admin.create(topic, partitions=1)
    topics.send_rows(topic, rows(10, 3))
    with pytest.raises(SourceError, match="recreated since offset 2"):
        job.run()
    job.use(source(topics, topic, on_data_loss="reset"))
    job.run()
    assert job.ids() == [0, 1, 10, 11, 12]


COMPACTED: dict[str, Any] = {
    "cleanup_policy": "compact",
    "segment_ms": "500",
    "min_cleanable_dirty_ratio": "0.01",
    "max_compaction_lag_ms": "500",
}
"""Of a topic whose superseded records the broker's log cleaner takes away at once."""


FOREVER = str(2**62)
"""Milliseconds."""


def compact(topics: Topics, topic: str, *, below: int) -> list[int]:
    """Let the log cleaner work until a topic has fewer than so many records, then no more; the offsets left."""

    def few() -> list[int]:
        # the newest segment is left alone, so a new one has to begin; these records supersede each other, too
        topics.send(topic, ("tick", '{"id": -1}'))
        return [] if len(there := topics.committed(topic)) >= below else [one["offset"] for one in there]

    topics.configure(topic, min_compaction_lag_ms="0", max_compaction_lag_ms="500")
    until(few, "compaction", within_s=120, every_s=0.6)
    topics.configure(topic, max_compaction_lag_ms=FOREVER, min_compaction_lag_ms=FOREVER)
    before: list[int] = []
    while (left := [one["offset"] for one in topics.committed(topic)]) != before:  # what it had begun
        before = left
        time.sleep(1)
    return left


def test_compaction_leaves_gaps_and_nothing_is_lost(topics: Topics, run: Any) -> None:
    topic = topics.new(**COMPACTED)
    for i in range(12):
        topics.send(topic, (f"k{i % 2}", json.dumps({"id": i})), (f"own{i}", json.dumps({"id": 100 + i})))
    left = compact(topics, topic, below=20)
    there = topics.values(topic)
    assert {10, 11, *range(100, 112)} <= {one["id"] for one in there}, "the newest of each key"
    assert len(left) < left[-1] + 1, "offsets have gaps"
    job = run(topic, max_offsets_per_batch=3)
    reports = job.run()
    assert job.ids() == [one["id"] for one in there]
    assert position(job)["offsets"] == {topic: {"0": left[-1] + 1}}
    sizes = [one[0]["position"]["end"] - one[0]["position"]["start"] for one in _elements(job)]
    assert sum(sizes) == left[-1] + 1, "ranges follow each other over the gaps"
    assert sorted({report.rows_in for report in reports} - {3}), "a batch of three offsets has fewer rows"
    for rebatch in (False, True):
        again = job.engine.replay(job.job, rebatch=rebatch, branch=f"again_{rebatch}".lower())
        assert job.engine.compare("numbered", again.branch).is_equal


def test_what_is_compacted_after_it_was_read_is_missing_in_a_replay(topics: Topics, run: Any) -> None:
    topic = topics.new(**COMPACTED)
    for i in range(6):
        topics.send(topic, ("k", json.dumps({"id": i})))
    job = run(topic)
    job.run()
    compact(topics, topic, below=6)
    job.run()
    assert job.ids()[:6] == [0, 1, 2, 3, 4, 5]
    again = job.engine.replay(job.job)
    assert not job.engine.compare("numbered", again.branch).is_equal


def test_metadata_can_be_event_time_and_text(topics: Topics, run: Any) -> None:
    topic = topics.new()
    topics.send(topic, ("k1", '{"id": 1}'), at_ms=HOUR_AGO_MS, headers={"trace": b"abc"})
    job = run(topic, with_metadata=True)
    job.run()
    (row,) = job.rows()
    assert (row["kafka_topic"], row["kafka_partition"], row["kafka_offset"]) == (topic, 0, 0)
    assert datetime.fromisoformat(row["kafka_timestamp"]).replace(tzinfo=UTC) == HOUR_AGO
    assert "k1" in row["kafka_key"]
    assert "trace" in str(row["kafka_headers"])


def test_raw_records_are_rows_as_they_are(topics: Topics, run: Any) -> None:
    topic = topics.new()
    topics.send(topic, ("k", b"\x00\xff"), (None, None))
    job = run(topic, format="raw", schema="")
    job.run()
    first, second = job.rows()
    assert (first["offset"], first["value"]) == (0, str(bytearray(b"\x00\xff"))) or first["value"]
    assert second["value"] is None


def test_a_replay_reads_the_same_offsets(topics: Topics, run: Any, spark: SparkSession) -> None:
    topic = topics.new(partitions=2)
    topics.send_rows(topic, rows(0, 4), partition=0)
    topics.send_rows(topic, rows(10, 4), partition=1)
    job = run(topic, max_offsets_per_batch=4)
    job.run()
    topics.send_rows(topic, rows(20, 4), partition=1)
    job.run()
    made = source(topics, topic, max_offsets_per_batch=4)
    recorded = [[*row] for row in _elements(job)]
    flat = [one for batch in recorded for one in batch]
    for number, batch in enumerate(recorded):
        before = [one for earlier in recorded[:number] for one in earlier]
        again = made.replan(spark, before, batch)
        assert again.elements == batch
    cuts: list[int] = []
    reached: list[Any] = []
    while part := source(topics, topic, max_offsets_per_batch=6).rebatch(spark, reached, flat):
        reached += part.elements
        cuts.append(sum(one.size for one in part.detail.ranges))
    assert cuts == [6, 6]
    topics.expire(topic, before=2)
    with pytest.raises(SourceError, match="0 to 2 are wanted: records expired"):
        made.replan(spark, [], recorded[0])


def _elements(job: SourceRun) -> list[list[dict[str, Any]]]:
    """What each checkpoint appended to the position."""
    from state_engine.sources.source_positions import SourcePositions
    from state_engine.storage.layout import JobLayout

    positions = SourcePositions(JobLayout(job.engine.root, "numbered").operator_state)
    path = sorted(job.engine.checkpoints("numbered"), key=lambda row: row.checkpoint_id)
    return [positions.elements([row], "input") for row in path]
