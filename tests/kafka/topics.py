"""Topics of a broker, for tests: made, written to record by record, cut, and read whole."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from py4j.java_gateway import JavaMember
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from state_engine.spark.kafka.clients import KafkaAdmin, KafkaJava, failures, kafka_admin
from state_engine.spark.kafka.cluster import KafkaCluster
from state_engine.storage.java_gateway import java_class
from tests.support.kafka import Broker

Part = str | bytes | None


class Topics:
    """The topics of a broker."""

    def __init__(self, spark: SparkSession, broker: Broker, access: Mapping[str, Any] | None = None) -> None:
        self.spark, self.broker, self.access = spark, broker, access or {}
        self.cluster = KafkaCluster(broker.servers, **self.access)
        self.java = KafkaJava(spark)

    @property
    def servers(self) -> str:
        return self.broker.servers

    @contextmanager
    def admin(self) -> Iterator[KafkaAdmin]:
        with kafka_admin(self.spark, self.cluster) as admin:
            yield admin

    def new(self, partitions: int = 1, **config: str) -> str:
        """Name of a new topic."""
        name = f"t{uuid4().hex[:10]}"
        with self.admin() as admin:
            admin.create(name, partitions=partitions, **config)
        return name

    def delete(self, topic: str) -> None:
        with self.admin() as admin, failures():
            admin._got(admin._client.deleteTopics(self.java.list([topic])).all())

    def grow(self, topic: str, partitions: int) -> None:
        with self.admin() as admin, failures():
            more = self.java.kafka("clients.admin.NewPartitions").increaseTo(partitions)
            admin._got(admin._client.createPartitions(self.java.map([(topic, more)])).all())

    def expire(self, topic: str, before: int, partition: int = 0) -> None:
        """Delete the records before an offset, as retention does."""
        with self.admin() as admin, failures():
            kind = self.java.kafka("clients.admin.RecordsToDelete")
            # py4j sees only the getter of this name
            at = JavaMember("beforeOffset", None, f"z:{kind._fqn}", kind._gateway_client)(before)
            place = self.java.kafka("common.TopicPartition")(topic, partition)
            admin._got(admin._client.deleteRecords(self.java.map([(place, at)])).all())

    def configure(self, topic: str, **config: str) -> None:
        """Change settings of a topic; with ``_`` for the dots of their names."""
        entry, changes = (
            self.java.kafka("clients.admin.ConfigEntry"),
            self.java.kafka("clients.admin.AlterConfigOp"),
        )
        sets = java_class(self.java.vm, f"{changes._fqn}$OpType").SET
        resources = self.java.kafka("common.config.ConfigResource")
        kind = java_class(self.java.vm, f"{resources._fqn}$Type").TOPIC
        given = [changes(entry(name.replace("_", "."), value), sets) for name, value in config.items()]
        with self.admin() as admin, failures():
            asked = self.java.map([(resources(kind, topic), self.java.list(given))])
            admin._got(admin._client.incrementalAlterConfigs(asked).all())

    @contextmanager
    def producer(self, transactional_id: str | None = None) -> Iterator[Any]:
        """Kafka's own producer; with transactions where it is given an id."""
        properties = self.cluster.properties() | {"acks": "all"}
        if transactional_id is not None:
            properties |= {"transactional.id": transactional_id, "transaction.timeout.ms": "60000"}
        serializer = self.java.kafka("common.serialization.ByteArraySerializer")
        with self.java.open("clients.producer.KafkaProducer", properties, serializer(), serializer()) as made:
            if transactional_id is not None:
                made.initTransactions()
            yield made

    def give(self, producer: Any, topic: str, key: Part, value: Part, partition: int = 0, *,
             at_ms: int | None = None, headers: Mapping[str, bytes] | None = None) -> None:  # fmt: skip
        """Hand one record to a producer."""
        header = self.java.kafka("common.header.internals.RecordHeader")
        given = self.java.list(header(n, bytearray(v)) for n, v in (headers or {}).items())
        record = self.java.kafka("clients.producer.ProducerRecord")
        time = None if at_ms is None else self.java.vm.java.lang.Long.valueOf(str(at_ms))
        producer.send(record(topic, partition, time, _bytes(key), _bytes(value), given))

    def send(self, topic: str, *records: tuple[Part, Part], partition: int = 0, **more: Any) -> None:
        """Write records, without a transaction."""
        with self.producer() as producer:
            for key, value in records:
                self.give(producer, topic, key, value, partition, **more)
            producer.flush()

    def send_rows(self, topic: str, rows: Iterable[Mapping[str, Any]], *, partition: int = 0) -> None:
        """Write JSON objects without keys."""
        self.send(topic, *[(None, json.dumps(row)) for row in rows], partition=partition)

    def committed(self, topic: str) -> list[dict[str, Any]]:
        """Key, value and place of all committed records, in order; as texts."""
        options = {
            "subscribe": topic, "startingOffsets": "earliest", "includeHeaders": "true",
            "kafka.isolation.level": "read_committed",
        }  # fmt: skip
        options |= {f"kafka.{name}": value for name, value in self.cluster.properties().items()}
        frame = self.spark.read.format("kafka").options(**options).load()
        texts = [F.col(name).cast("string") for name in ("key", "value")]
        rows = frame.select(*texts, "partition", "offset", "timestamp", "headers")
        return [row.asDict() for row in rows.orderBy("partition", "offset").collect()]

    def values(self, topic: str) -> list[Any]:
        """The JSON values of all committed records, by partition and offset; None for tombstones."""
        return [None if one["value"] is None else json.loads(one["value"]) for one in self.committed(topic)]


def _bytes(part: Part) -> bytearray | None:
    return None if part is None else bytearray(part.encode() if isinstance(part, str) else part)
