"""``KafkaSink``: outputs into a topic of Kafka, exactly once for readers of committed records.

Subtasks stage Parquet files in the job's root. Publishing sends their rows from the driver, and with them, in one
transaction, a marker that says what was sent, see ``markers``. Before it reads the marker, a publisher takes over the
transactional id of the application: that ends what another one has begun, and shuts it out. So what the marker says
stays true until the transaction that changes it.

A checkpoint with more rows than a transaction may have goes out in several, each with the marker of its part, and is
then seen in parts. Records cannot be withdrawn. Plays the part of Flink's ``KafkaSink`` with
``DeliveryGuarantee.EXACTLY_ONCE``, with a marker in place of transactions that outlive their process.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

import pyarrow as pa

from state_engine.core.checkpoints.sink_kind import SinkKind
from state_engine.core.checkpoints.write_ids import owner_mark
from state_engine.core.choices import check_count, columns_of
from state_engine.core.errors import ConfigurationError, SinkError
from state_engine.core.types.avro_values import record_fields
from state_engine.core.types.durations import to_milliseconds
from state_engine.core.types.spark_types import spark_schema
from state_engine.sinks.base import Sink, SinkRequest, SinkTarget
from state_engine.sinks.kafka.kafka_target import KafkaTarget, TopicRules
from state_engine.sinks.kafka.markers import Markers
from state_engine.sinks.staging import Staging, record_target
from state_engine.spark.kafka.clients import KafkaAdmin, KafkaError, kafka_admin
from state_engine.spark.kafka.cluster import Format, KafkaCluster
from state_engine.spark.kafka.properties import check_side
from state_engine.storage.stores.files import join

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_LIMIT = "transaction.max.timeout.ms"
_CHOICES: dict[str, tuple[str, ...]] = {"format": ("json", "avro", "raw"), "key_format": ("json", "raw")}


@dataclass(frozen=True)
class KafkaSink(Sink):
    """A topic of Kafka; it is made on first use, with the broker's defaults. Mirrors Flink's ``KafkaSink``.

    Args:
        servers: ``host:port`` of brokers, several with commas between them.
        topic: its name.
        format: of the values: ``json``, an object of all columns; ``avro``, a record without a header; or ``raw``, the
            column ``value`` as it is (string or binary), and the column ``key`` where there is one.
        schema: of Avro, as JSON: a record with a field for every column, but for those of ``key``, ``headers`` and
            ``timestamp``, which it may leave out.
        key: columns that make the key of a record. With it the sink takes streams that change: a delete becomes a
            record without a value (a tombstone), and the row that an update replaces none.
        key_format: ``json``, an object of these columns; or ``raw``, the text of the only one.
        headers: column that holds the headers, ``map<string, binary>``; values do not have it.
        timestamp: column that holds the time of the record; without it, that is when it is sent.
        max_rows_per_transaction: a checkpoint with more goes out in several transactions, and is seen in parts.
        transaction_timeout: after which brokers abort a transaction: a timedelta, a Duration, milliseconds, or text
            ("5 min").
        marker_topic: holds what was published; None: ``_statelake-<topic>``. Made unless it exists.
        options: properties of Kafka's clients, such as ``{"security.protocol": "SSL"}``.
        options_env: properties that are secret: the environment variable that holds each.
        shared: whether the same job of another root may have written to the topic, too, or still does.

    Raises:
        ConfigurationError: a value is not one that it can be.

    Example:
        >>> KafkaSink("broker:9092", "totals", key=["user"]).marker_topic
        '_statelake-totals'
    """

    servers: str
    topic: str
    format: Format = field(default="json", kw_only=True)
    schema: str = field(default="", kw_only=True)
    key: Sequence[str] = field(default=(), kw_only=True)
    key_format: Literal["json", "raw"] = field(default="json", kw_only=True)
    headers: str | None = field(default=None, kw_only=True)
    timestamp: str | None = field(default=None, kw_only=True)
    max_rows_per_transaction: int = field(default=100_000, kw_only=True)
    transaction_timeout: Any = field(default=timedelta(minutes=5), kw_only=True)
    marker_topic: str = field(default="", kw_only=True)
    options: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    options_env: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    shared: bool = field(default=False, kw_only=True)
    accepts_changes: bool = field(default=False, init=False)
    kind = SinkKind.KAFKA.value

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", columns_of(self.key, "KafkaSink: key="))
        object.__setattr__(self, "marker_topic", self.marker_topic or f"_statelake-{self.topic}")
        object.__setattr__(self, "accepts_changes", bool(self.key) or self.format == "raw")
        for name, allowed in _CHOICES.items():
            if (given := getattr(self, name)) not in allowed:
                raise ConfigurationError(f"KafkaSink: {name} must be one of {list(allowed)}, not {given!r}")
        if self.format == "avro":
            record_fields(self.schema, of="KafkaSink")
        elif self.schema:
            raise ConfigurationError("KafkaSink: schema= is that of Avro: set format='avro', or leave it out")
        if self.format == "raw" and self.key:
            raise ConfigurationError("KafkaSink: raw rows have their key in the column key: leave out key=")
        if self.key_format == "raw" and len(self.key) != 1:
            raise ConfigurationError("KafkaSink: key_format='raw' is the text of one column: key=['…']")
        check_count(self.max_rows_per_transaction, what="KafkaSink: max_rows_per_transaction")
        self._check_topics()
        self._target()
        check_side({*self.options, *self.options_env}, of="KafkaSink")

    def _check_topics(self) -> None:
        for name in (self.topic, self.marker_topic):
            if not isinstance(name, str) or not _TOPIC.fullmatch(name) or name in (".", ".."):
                raise ConfigurationError(
                    f"KafkaSink: {name!r} cannot name a topic: use letters, digits, '.', '_' and '-', at most 249"
                )
        if self.topic == self.marker_topic:
            raise ConfigurationError("KafkaSink: markers need a topic of their own: another marker_topic")

    def check_columns(self, columns: pa.Schema, *, name: str) -> None:
        self._target().check(columns, sink=name)

    def place(self, app: str, staging: Staging) -> str:
        # by the topic alone: brokers come and go
        return staging.directory(app, hashlib.sha256(self.topic.encode()).hexdigest()[:16])

    def _target(self) -> KafkaTarget:
        timeout_ms = to_milliseconds(self.transaction_timeout)
        if timeout_ms < 1:
            raise ConfigurationError("KafkaSink: transaction_timeout must be longer than nothing")
        return KafkaTarget(
            cluster=KafkaCluster(self.servers, self.options, self.options_env, of="KafkaSink"),
            topic=self.topic,
            marker_topic=self.marker_topic,
            format=self.format,
            schema=self.schema,
            key=tuple(self.key),
            key_format=self.key_format,
            headers=self.headers,
            timestamp=self.timestamp,
            max_rows=self.max_rows_per_transaction,
            timeout=timedelta(milliseconds=timeout_ms),
        )

    def prepare(self, request: SinkRequest) -> SinkTarget:
        name, target, spark = request.name, self._target(), request.kernel.spark
        markers = Markers(spark, target)
        try:
            with kafka_admin(spark, target.cluster) as admin:
                topic, marker_topic = markers.make(admin, sink=name)
                rules = _topic_rules(admin, target.topic)
                _check_timeout(admin, target, name)
                if not self.shared:
                    writers = [app for app, one in markers.all(admin).items() if one.topic == self.topic]
                    request.refuse_other_roots(writers, where=target.shown)
        except KafkaError as error:
            raise SinkError(
                f"sink '{name}': {target.shown} cannot be used ({error}). Repair that and run again; nothing is lost"
            ) from error
        uri = self.place(request.app, request.staging)
        note = target.to_json()
        record_target(uri, note)
        return SinkTarget(
            name=name,
            kind=SinkKind.KAFKA.value,
            uri=uri,
            identity=f"{topic.id} {marker_topic.id}",
            schema=request.schema,
            schema_text=json.dumps({**spark_schema(request.schema), "target": note}),
            directory=join(uri, request.write_id),
            owner=owner_mark(request.app),
            rules=tuple(target.rules(rules)),
            shown=target.shown,
        )


def _topic_rules(admin: KafkaAdmin, topic: str) -> TopicRules | None:
    """What a topic demands of records; None where this client may not see it."""
    try:
        return TopicRules.of(admin.topic_settings(topic), int(time.time() * 1000))
    except KafkaError as error:
        if "Authorization" not in error.kind:
            raise
        return None


def _check_timeout(admin: KafkaAdmin, target: KafkaTarget, sink: str) -> None:
    try:
        limit = admin.broker_setting(_LIMIT)
    except KafkaError as error:
        if "Authorization" not in error.kind:
            raise
        return  # not for this client to see: the broker itself refuses what is too long
    if limit is not None and timedelta(milliseconds=int(limit)) < target.timeout:
        raise SinkError(
            f"sink '{sink}': transaction_timeout is {target.timeout}, and the broker's {_LIMIT} "
            f"{timedelta(milliseconds=int(limit))}: set it to at most that, or raise the broker's"
        )
