"""Kafka's clients over py4j: what is in a cluster, a transactional producer, and the newest values of a topic.

A client is closed where its block ends. What Kafka raises becomes a ``KafkaError``, which says what kind of failure it
is; who uses a client turns that into an error of its own.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import JavaPackage
from py4j.protocol import Py4JJavaError

from state_engine.core.errors import SessionError
from state_engine.machine.jars import kafka_jars
from state_engine.machine.spark_versions import installed_spark
from state_engine.spark.kafka import RECORDS
from state_engine.spark.kafka.cluster import KafkaCluster
from state_engine.storage.java_gateway import java_class, jvm_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Partition = tuple[str, int]
"""Topic and number."""
EARLIEST, LATEST = "earliest", "latest"

_KAFKA = "org.apache.kafka"
_FENCED = {"ProducerFencedException", "InvalidProducerEpochException", "FencedInstanceIdException"}
_PASSING = _FENCED | {
    "ApplicationRecoverableException",
    "InvalidPidMappingException",
    "InvalidTxnStateException",
    "OutOfOrderSequenceException",
    "RetriableException",
    "TimeoutException",
    "TransactionAbortedException",
    "UnknownProducerIdException",
}
"""Classes of what a new producer, or a broker that is there again, does not meet."""
_ABSENT = {"UnknownTopicOrPartitionException", "UnknownTopicIdException"}
_PATIENCE_S = 60


class KafkaError(Exception):
    """What a client of Kafka raised.

    Attributes:
        kind: the class of the exception, without its package.
        is_passing: whether it may be otherwise the next time.
    """

    def __init__(self, kind: str, message: str, *, is_passing: bool) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind, self.is_passing = kind, is_passing

    @property
    def is_fenced(self) -> bool:
        """Whether a newer producer has taken over."""
        return self.kind in _FENCED

    @property
    def is_absent(self) -> bool:
        return self.kind in _ABSENT


@dataclass(frozen=True)
class Topic:
    """A topic as it is now.

    Attributes:
        id: of this very topic; one of the same name that is made again has another.
    """

    name: str
    id: str
    partitions: tuple[int, ...]


class KafkaJava:
    """Kafka's classes in the Java of a session."""

    def __init__(self, spark: SparkSession) -> None:
        self.vm = jvm_of(spark)
        if isinstance(self.kafka("clients.admin.Admin"), JavaPackage) or isinstance(
            java_class(self.vm, RECORDS), JavaPackage
        ):
            setup = kafka_jars(installed_spark()).setup
            raise SessionError(
                f"this session does not have Kafka's jars. Run `{setup}`, which fetches them, and restart "
                "this process. A session of your own needs the jars that "
                "state_engine.spark.session.needed_jars() lists"
            )

    def kafka(self, name: str) -> Any:
        """A class below ``org.apache.kafka``."""
        return java_class(self.vm, f"{_KAFKA}.{name}")

    def util(self, name: str) -> Any:
        return java_class(self.vm, f"java.util.{name}")

    @property
    def records(self) -> Any:
        return java_class(self.vm, RECORDS)

    def map(self, entries: Iterable[tuple[Any, Any]]) -> Any:
        made = self.util("HashMap")()
        for key, value in entries:
            made.put(key, value)
        return made

    def list(self, values: Iterable[Any]) -> Any:
        made = self.util("ArrayList")()
        for value in values:
            made.add(value)
        return made

    @contextmanager
    def open(self, make: str, properties: Mapping[str, str], *more: Any) -> Iterator[Any]:
        """A client, which is closed in the end without waiting for what it has not sent."""
        with failures():
            made = self.kafka(make)
            given = self.map(properties.items())
            client = made.create(given) if make.endswith("Admin") else made(given, *more)
        try:
            yield client
        finally:
            client.close(java_class(self.vm, "java.time.Duration").ZERO)


@contextmanager
def failures() -> Iterator[None]:
    """Turn what Kafka raises into a KafkaError."""
    try:
        yield
    except Py4JJavaError as error:
        java = error.java_exception
        names = ("java.util.concurrent.ExecutionException", f"{_KAFKA}.common.KafkaException")
        while java.getClass().getName() in names and java.getCause() is not None:
            java = java.getCause()
        text = " ".join(str(java.getMessage()).split())
        kind = java.getClass()
        classes = {str(kind.getSimpleName())}
        while (kind := kind.getSuperclass()) is not None:
            classes.add(str(kind.getSimpleName()))
        passing = not classes.isdisjoint(_PASSING)
        raise KafkaError(str(java.getClass().getSimpleName()), text, is_passing=passing) from None


class KafkaAdmin:
    """What is in a cluster."""

    def __init__(self, java: KafkaJava, client: Any) -> None:
        self._java, self._client = java, client

    def names(self) -> list[str]:
        """Of all topics but Kafka's own."""
        with failures():
            return sorted(self._got(self._client.listTopics().names()))

    def topics(self, names: Collection[str]) -> dict[str, Topic]:
        """Those of these topics that are there, by name."""
        described = self._client.describeTopics(self._java.list(sorted(names))).topicNameValues()
        there = {}
        for name in sorted(names):
            try:
                with failures():
                    topic = self._got(described.get(name))
            except KafkaError as error:
                if not error.is_absent:
                    raise
                continue
            numbers = sorted(one.partition() for one in topic.partitions())
            there[name] = Topic(name, str(topic.topicId().toString()), tuple(numbers))
        return there

    def offsets(
        self, partitions: Collection[Partition], at: str | int, *, committed: bool = True
    ) -> dict[Partition, int]:
        """An offset of each partition.

        Args:
            at: ``earliest``; ``latest``, which is the end; or that of the first record which is not before a time in
                milliseconds, -1 where there is none.
            committed: whether the end is where the first open transaction begins.
        """
        if not partitions:
            return {}
        spec = self._java.kafka("clients.admin.OffsetSpec")
        wanted = spec.forTimestamp(at) if isinstance(at, int) else getattr(spec, at)()
        level = self._java.kafka("common.IsolationLevel")
        options = self._java.kafka("clients.admin.ListOffsetsOptions")(
            level.READ_COMMITTED if committed else level.READ_UNCOMMITTED
        )
        places = {one: self._java.kafka("common.TopicPartition")(*one) for one in sorted(partitions)}
        with failures():
            asked = self._java.map((place, wanted) for place in places.values())
            given = self._got(self._client.listOffsets(asked, options).all())
        return {one: int(given.get(place).offset()) for one, place in places.items()}

    def create(self, topic: str, *, partitions: int | None = None, **config: str) -> None:
        """Make a topic, unless it is there.

        Args:
            partitions: how many; None: the broker's default.
        """
        optional = self._java.util("Optional")
        count = optional.of(partitions) if partitions else optional.empty()
        made = self._java.kafka("clients.admin.NewTopic")(topic, count, optional.empty())
        made.configs(self._java.map((name.replace("_", "."), value) for name, value in config.items()))
        try:
            with failures():
                self._got(self._client.createTopics(self._java.list([made])).all())
        except KafkaError as error:
            if error.kind != "TopicExistsException":
                raise

    def topic_settings(self, topic: str) -> dict[str, str]:
        return self._settings("TOPIC", topic)

    def broker_setting(self, name: str) -> str | None:
        """A setting of one of the brokers; None where it is not shown to this client."""
        with failures():
            some = self._got(self._client.describeCluster().nodes()).iterator().next()
        return self._settings("BROKER", str(some.id())).get(name)

    def _settings(self, kind: str, of: str) -> dict[str, str]:
        types = java_class(self._java.vm, f"{_KAFKA}.common.config.ConfigResource$Type")
        resource = self._java.kafka("common.config.ConfigResource")(types.valueOf(kind), of)
        with failures():
            given = self._got(self._client.describeConfigs(self._java.list([resource])).all())
        return {entry.name(): str(entry.value()) for entry in given.get(resource).entries().toArray()}

    def _got(self, future: Any) -> Any:
        units = self._java.util("concurrent.TimeUnit")
        return future.get(_PATIENCE_S, units.SECONDS)


@contextmanager
def kafka_admin(spark: SparkSession, cluster: KafkaCluster) -> Iterator[KafkaAdmin]:
    java = KafkaJava(spark)
    with java.open("clients.admin.Admin", cluster.properties()) as client:
        yield KafkaAdmin(java, client)


class TransactionalProducer:
    """Sends records in transactions; of several with one id only the newest can."""

    def __init__(self, java: KafkaJava, client: Any) -> None:
        self._java, self._client = java, client

    def take_over(self) -> None:
        """End what other producers of this id have begun, and shut them out."""
        with failures():
            self._client.initTransactions()

    def begin(self) -> None:
        with failures():
            self._client.beginTransaction()

    def send(self, topic: str, frames: bytes) -> None:
        """Send records, see ``KafkaRecords.send``; what cannot be sent fails the commit."""
        with failures():
            self._java.records.send(self._client, topic, frames)

    def commit(self) -> None:
        """Make the transaction's records visible."""
        with failures():
            self._client.commitTransaction()


@contextmanager
def transactional_producer(
    spark: SparkSession, cluster: KafkaCluster, transactional_id: str, *, timeout: timedelta
) -> Iterator[TransactionalProducer]:
    """A producer; what it has not committed is left to be aborted.

    Args:
        transactional_id: only the newest producer of an id can send.
        timeout: after which brokers abort a transaction.
    """
    java = KafkaJava(spark)
    properties = cluster.properties() | {
        "transactional.id": transactional_id,
        "transaction.timeout.ms": str(timeout // timedelta(milliseconds=1)),
        "enable.idempotence": "true",
        "acks": "all",
    }
    serializer = java.kafka("common.serialization.ByteArraySerializer")
    with java.open("clients.producer.KafkaProducer", properties, serializer(), serializer()) as client:
        yield TransactionalProducer(java, client)


def newest_values(
    spark: SparkSession, cluster: KafkaCluster, topic: str, *, end: int, patience: timedelta
) -> dict[str, str | None]:
    """The newest committed value of each key of a topic of one partition, up to an offset."""
    java = KafkaJava(spark)
    properties = cluster.properties() | {"isolation.level": "read_committed", "enable.auto.commit": "false"}
    deserializer = java.kafka("common.serialization.ByteArrayDeserializer")
    with (
        java.open("clients.consumer.KafkaConsumer", properties, deserializer(), deserializer()) as client,
        failures(),
    ):
        texts = list(java.records.newest(client, topic, end, patience // timedelta(milliseconds=1)))
    return dict(zip(texts[::2], texts[1::2], strict=True))


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """The topics that a regular expression matches as a whole."""
    compiled = re.compile(pattern)
    return [name for name in names if compiled.fullmatch(name)]
