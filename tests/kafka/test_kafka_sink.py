"""What a ``KafkaSink`` puts into a topic: each checkpoint once, with its marker, whatever breaks off in between."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from threading import Timer
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from state_engine import KafkaSink, KeyedProcessFunction, StateEngine, StatefulJob, ValueStateDescriptor
from state_engine.core.errors import CommitFailedError, SinkError, SinkIdentityError, UserFunctionError
from state_engine.sinks.kafka import kafka_publisher
from state_engine.sinks.kafka.kafka_publisher import KafkaPublisher
from state_engine.sinks.kafka.markers import Marker, Markers
from state_engine.sources.file import FileSource
from state_engine.spark.kafka.clients import KafkaAdmin, KafkaError, TransactionalProducer
from tests.kafka.topics import Topics
from tests.support.killed import Killed


class Counts(KeyedProcessFunction):
    """Every element with how many of its key have come."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", int, default=0))

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        self.count.update(self.count.value() + 1)
        if value.name != "silent":
            yield value.id, value.name, self.count.value()


class Site:
    """A job from files to a topic."""

    def __init__(
        self, spark: SparkSession, directory: Path, topics: Topics, topic: str, **options: Any
    ) -> None:
        self.spark, self.directory, self.topics, self.topic = spark, directory, topics, topic
        self.options = options
        (directory / "feed").mkdir(exist_ok=True)

    def feed(self, number: int, names: list[str]) -> None:
        ids = [number * 100 + i for i in range(len(names))]
        table = pa.table({"id": pa.array(ids, pa.int64()), "name": names})
        pq.write_table(table, self.directory / "feed" / f"{number}.parquet")

    def sink(self) -> KafkaSink:
        return KafkaSink(self.topics.servers, self.topic, **self.options)

    def job(self) -> StatefulJob:
        job = StatefulJob("counts", parallelism=2)
        source = FileSource(str(self.directory / "feed"), max_files_per_batch=1)
        counts = job.source("names", source).key_by("name")
        out = counts.process(Counts(), uid="counts", output_type="id bigint, name string, n bigint")
        out.sink("out", self.sink())
        return job

    def engine(self, root: str = "root") -> StateEngine:
        return StateEngine(self.directory / root, self.spark)

    def run(self, root: str = "root", **options: Any) -> Any:
        with self.engine(root) as engine:
            return engine.run(self.job(), **options)

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in self.topics.values(self.topic))

    def markers(self) -> dict[str, Marker]:
        with self.topics.admin() as admin:
            return Markers(self.spark, self.sink()._target()).all(admin)

    def marker(self) -> Marker:
        (marker,) = self.markers().values()
        return marker


@pytest.fixture
def site(spark: SparkSession, tmp_path: Path, topics: Topics) -> Callable[..., Site]:
    def made(topic: str | None = None, **options: Any) -> Site:
        return Site(spark, tmp_path, topics, topic or topics.new(), **options)

    return made


def dying(monkeypatch: pytest.MonkeyPatch, method: str, *, before: bool, at: int = 1) -> None:
    """Let the process die at a call of the producer."""
    original, calls = getattr(TransactionalProducer, method), iter(range(1, 100))

    def call(self: TransactionalProducer, *arguments: Any) -> None:
        strikes = next(calls) == at
        if strikes and before:
            raise Killed
        original(self, *arguments)
        if strikes:
            raise Killed

    monkeypatch.setattr(TransactionalProducer, method, call)


def test_every_checkpoint_is_there_once_with_its_marker(site: Callable[..., Site]) -> None:
    at = site()
    at.feed(1, ["a", "b", "a"])
    at.feed(2, ["a"])
    at.run()
    assert at.ids() == [100, 101, 102, 200]
    assert {row["name"]: row["n"] for row in at.topics.values(at.topic)} == {"a": 3, "b": 1}
    assert (at.marker().checkpoint_id, at.marker().rows, at.marker().of) == (2, 1, 1)
    at.run()
    assert at.ids() == [100, 101, 102, 200]


def test_a_checkpoint_without_rows_moves_the_marker(site: Callable[..., Site]) -> None:
    at = site()
    at.feed(1, ["a"])
    at.feed(2, ["silent"])
    at.run()
    assert at.ids() == [100]
    assert (at.marker().checkpoint_id, at.marker().of) == (2, 0)
    at.run()
    assert at.marker().checkpoint_id == 2
    with at.engine() as engine:
        (staged,) = engine.checkpoints("counts")[-1].sinks
    assert KafkaPublisher(None).seen(staged.path, "any") == 2, "a note for those who do not start Java"


DEATHS = [(method, before) for method in ("take_over", "begin", "send", "commit") for before in (True, False)]


@pytest.mark.parametrize(("method", "before"), DEATHS)
def test_a_publish_that_dies_is_made_up_for(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch, method: str, before: bool
) -> None:
    at = site()
    at.feed(1, ["a", "b"])
    with monkeypatch.context() as patch:
        dying(patch, method, before=before)
        with pytest.raises(Killed):
            at.run()
    at.feed(2, ["a"])
    at.run()
    assert at.ids() == [100, 101, 200]


@pytest.mark.parametrize("at_part", [1, 2, 3])
@pytest.mark.parametrize("before", [True, False])
def test_a_checkpoint_in_parts_goes_on_where_it_broke_off(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch, at_part: int, before: bool
) -> None:
    at = site(max_rows_per_transaction=2)
    at.feed(1, ["a", "b", "c", "d", "e"])
    with monkeypatch.context() as patch:
        dying(patch, "commit", before=before, at=at_part)
        with pytest.raises(Killed):
            at.run()
    done = at_part - before
    assert len(at.ids()) == [0, 2, 4, 5][done]
    if done:
        assert (at.marker().part, at.marker().seen) == (done, int(done == 3))
    at.options = {
        "max_rows_per_transaction": 1
    }  # the parts of a checkpoint are those that it was staged with
    at.feed(2, ["a"])
    at.run()
    assert at.ids() == [100, 101, 102, 103, 104, 200]


def test_a_zombie_is_shut_out(site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch) -> None:
    at = site()
    at.feed(1, ["a", "b"])
    original = TransactionalProducer.commit
    woken: list[BaseException] = []

    def commit(self: TransactionalProducer) -> None:
        monkeypatch.setattr(TransactionalProducer, "commit", original)
        at.run()  # while this one sleeps, another runner publishes
        try:
            original(self)
        except KafkaError as error:
            woken.append(error)
            raise

    monkeypatch.setattr(TransactionalProducer, "commit", commit)
    monkeypatch.setattr(kafka_publisher, "table_lock", _unlocked)
    at.run()
    assert at.ids() == [100, 101]
    (error,) = woken
    assert isinstance(error, KafkaError)
    assert error.is_fenced, error


def test_who_sleeps_with_an_old_marker_sends_nothing(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    at = site()
    at.feed(1, ["a", "b"])

    class Sleepy(Markers):
        def all(self, admin: KafkaAdmin, *, everything: bool = False) -> dict[str, Marker]:
            markers = super().all(admin, everything=everything)
            monkeypatch.setattr(kafka_publisher, "Markers", Markers)
            at.run()  # while this one sleeps, another runner publishes
            return markers

    monkeypatch.setattr(kafka_publisher, "Markers", Sleepy)
    monkeypatch.setattr(kafka_publisher, "table_lock", _unlocked)
    at.run()
    assert kafka_publisher.Markers is Markers, "it slept"
    assert at.ids() == [100, 101]


def _unlocked(uri: str) -> Any:
    from contextlib import nullcontext

    return nullcontext()


def test_a_commit_without_an_answer_is_looked_up(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    at = site()
    at.feed(1, ["a"])
    original = TransactionalProducer.commit

    def commit(self: TransactionalProducer) -> None:
        monkeypatch.setattr(TransactionalProducer, "commit", original)
        original(self)
        raise KafkaError("TimeoutException", "no answer", is_passing=True)

    monkeypatch.setattr(TransactionalProducer, "commit", commit)
    at.run()
    assert at.ids() == [100]


def test_an_open_transaction_in_front_of_a_marker_does_not_hide_it(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch, topics: Topics
) -> None:
    at = site()
    at.feed(1, ["a"])
    at.run()
    at.feed(2, ["a"])
    with topics.producer("another") as other:
        other.beginTransaction()
        topics.give(other, at.sink().marker_topic, "other/job/out", json.dumps(asdict(at.marker())))
        other.flush()
        waits = Timer(3, other.commitTransaction)
        with monkeypatch.context() as patch:
            patch.setattr(Markers, "all", _without_waiting)
            dying(patch, "commit", before=False)
            with pytest.raises(Killed):
                at.run()
        assert at.ids() == [100, 200], "it is only the marker that is behind an open transaction"
        waits.start()
        at.run()
        waits.join()
    assert at.ids() == [100, 200]


_all = Markers.all


def _without_waiting(self: Markers, admin: KafkaAdmin, *, everything: bool = False) -> dict[str, Marker]:
    return _all(self, admin)


def test_records_cannot_be_withdrawn(site: Callable[..., Site]) -> None:
    at = site()
    at.feed(1, ["a"])
    at.feed(2, ["a"])
    at.run()
    with at.engine() as engine:
        with pytest.raises(SinkError, match='outputs="keep"'):
            engine.restore("counts", checkpoint_id=1)
        engine.restore(at.job(), checkpoint_id=1, outputs="keep")
    at.run()
    assert at.ids() == [100, 200, 200], "what was processed again is there again, as asked for"


def test_the_same_job_of_another_root_is_refused(site: Callable[..., Site]) -> None:
    at = site()
    at.feed(1, ["a"])
    at.run()
    with pytest.raises(SinkIdentityError, match="shared=True"):
        at.run("other")
    at.options = {"shared": True}
    at.run("other")
    assert at.ids() == [100, 100]
    assert len(at.markers()) == 2


def test_rows_wait_for_the_topic_that_they_were_staged_for(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch, topics: Topics
) -> None:
    at = site()
    at.feed(1, ["a"])
    with monkeypatch.context() as patch:
        dying(patch, "begin", before=True)
        with pytest.raises(Killed):
            at.run()
    topics.delete(at.topic)
    with pytest.raises(SinkIdentityError, match="was recreated"):
        at.run()


def test_a_topic_that_would_lose_markers_is_refused(site: Callable[..., Site], topics: Topics) -> None:
    at = site(marker_topic=topics.new())
    at.feed(1, ["a"])
    with pytest.raises(SinkError, match=r"cleanup.policy=delete and 1 partition"):
        at.run()


def test_a_timeout_beyond_the_broker_s_limit_is_refused(site: Callable[..., Site]) -> None:
    at = site(transaction_timeout="1 h")
    at.feed(1, ["a"])
    with pytest.raises(SinkError, match=r"transaction_timeout is 1:00:00.*transaction.max.timeout.ms"):
        at.run()


def test_a_broker_that_is_away_loses_nothing(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch, topics: Topics
) -> None:
    at = site(
        options={"max.block.ms": "2000", "default.api.timeout.ms": "2000", "request.timeout.ms": "1000"}
    )
    at.feed(1, ["a"])
    original = TransactionalProducer.begin

    def begin(self: TransactionalProducer) -> None:
        monkeypatch.setattr(TransactionalProducer, "begin", original)
        topics.broker.kill()
        original(self)

    monkeypatch.setattr(TransactionalProducer, "begin", begin)
    with pytest.raises((CommitFailedError, SinkError)):
        at.run()
    topics.broker.start()
    at.feed(2, ["a"])
    at.options = {}
    at.run()
    assert at.ids() == [100, 200]


TIMED = "id bigint, name string, at timestamp"
AVRO = json.dumps({"type": "record", "name": "r", "fields": [
    {"name": "id", "type": "long"}, {"name": "name", "type": {"type": "enum", "name": "e", "symbols": ["a", "b"]}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
]})  # fmt: skip
YEAR = 365 * 86_400 * 1_000_000


COMPACT: dict[str, Any] = {"key": ["name"], "key_format": "raw"}
BY_TIME = {"message_timestamp_type": "CreateTime", "message_timestamp_after_max_ms": "3600000"}


@pytest.mark.parametrize(
    ("config", "options", "bad", "says"),
    [
        ({}, {}, (2, "x" * 2**20, 0), "its record of 1,0.* bytes is larger than max.request.size=1048576"),
        (
            {"max_message_bytes": "1000"},
            {},
            (2, "x" * 2000, 0),
            "is larger than max.message.bytes of t.*=1000",
        ),
        ({}, {}, (2, "a", 9_000 * YEAR), "'at' holds .*which is not within the years 1 to 9999"),
        ({}, {"timestamp": "at"}, (2, "a", -YEAR), "a record has no time before 1970"),
        (BY_TIME, {"timestamp": "at"}, (2, "a", 200 * YEAR), "takes no time so far ahead"),
        (
            {"cleanup_policy": "compact"},
            COMPACT,
            (2, None, 0),
            "it has no key, and the topic is compacted by key",
        ),
        ({}, {"format": "avro", "schema": AVRO}, (2, "c", 0), "'c'"),
    ],
    ids=[
        "too large",
        "too large for the topic",
        "a far year",
        "before 1970",
        "ahead",
        "no key",
        "another symbol",
    ],
)
def test_a_row_that_cannot_become_a_record_is_refused(
    spark: SparkSession,
    tmp_path: Path,
    topics: Topics,
    config: dict[str, Any],
    options: dict[str, Any],
    bad: tuple[Any, ...],
    says: str,
) -> None:
    ids, names, times = zip((1, "a", YEAR), bad, strict=True)
    at = pa.array(times, pa.int64()).cast(pa.timestamp("us", "UTC"))
    table = pa.table({"id": pa.array(ids, pa.int64()), "name": names, "at": at})
    (tmp_path / "feed").mkdir()
    pq.write_table(table, tmp_path / "feed" / "1.parquet")
    topic = topics.new(retention_ms="-1", **config)  # the broker deletes records of 1971 when it likes

    def landing(on_error: Any) -> StatefulJob:
        job = StatefulJob("land", on_error=on_error)
        source = job.source("rows", FileSource(str(tmp_path / "feed"), schema=TIMED))
        source.sink("out", KafkaSink(topics.servers, topic, **options))
        return job

    job = landing("dead_letter")
    with StateEngine(tmp_path / "root", spark) as engine:
        with pytest.raises(UserFunctionError, match=f"sink 'out', topic .*{says}(?s:.*)row {{\"id\": 2"):
            engine.run(landing("fail"))
        assert engine.checkpoints("land") == []
        assert topics.committed(topic) == []
        assert [b.rows_refused for b in engine.run(job).batches] == [1]
        (letter,) = engine.list_dead_letters(job)
        assert re.search(f"sink 'out', topic .*{says}", letter.error), letter.error
        if options.get("format") != "avro":
            assert [row["id"] for row in topics.values(topic)] == [1]
