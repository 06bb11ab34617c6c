"""``KafkaSource``: records of topics, by ranges of offsets of their partitions.

A slice is a range of offsets of each partition; a checkpoint records it with what it read, so that a replay reads the
same. Only committed transactions are read: a range ends where the first open one begins. Consumer groups play no part.
Records are ordered by topic, partition and offset. Plays the part of Flink's ``KafkaSource``.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from state_engine.core.choices import check_bound, columns_of
from state_engine.core.errors import ConfigurationError, SourceError
from state_engine.core.types.avro_values import record_fields
from state_engine.core.types.type_information import TypeLike
from state_engine.sources.base import FILE_COLUMN, ROW_COLUMN, Element, Slice, Source, SourceFrame
from state_engine.sources.kafka.decoding import (
    RECORD_FIELDS,
    Decoding,
    record_schema,
    records_again,
)
from state_engine.sources.kafka.offset_ranges import (
    BEGUN,
    OffsetRange,
    Offsets,
    cut,
    is_range,
    left_over,
    newest_by_partition,
    partitions_of,
    position_summary,
    recorded_ranges,
)
from state_engine.spark.kafka.clients import (
    EARLIEST,
    LATEST,
    KafkaAdmin,
    KafkaError,
    Partition,
    Topic,
    kafka_admin,
    matching,
)
from state_engine.spark.kafka.cluster import Format, KafkaCluster
from state_engine.spark.kafka.properties import check_side
from state_engine.spark.spark_names import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_LOG = logging.getLogger(__name__)
Starting = Literal["earliest", "latest"] | datetime | Mapping[str, Mapping[int, int]]


@dataclass(frozen=True)
class KafkaSource(Source):
    """Reads records of Kafka's topics. Mirrors Flink's ``KafkaSource``.

    Args:
        servers: ``host:port`` of brokers, several with commas between them.
        topic: one topic, or a list.
        pattern: instead of ``topic``, a regular expression that names of topics match as a whole; new ones are picked
            up.
        format: of the values: ``json``, an object each; ``avro``, without a header; ``raw``, for rows that are the
            records as they are (``key``, ``value``, ``topic``, ``partition``, ``offset``, ``timestamp``, ``headers``).
        schema: columns that values have: DDL text, or for Avro its schema as JSON, with which records were written.
        starting: where the first run begins: ``earliest``; ``latest``; at the first record that is not before a
            datetime; or at offsets, ``{topic: {partition: offset}}``, and at the beginning of partitions left out.
            Partitions that come later are read from their beginning.
        max_offsets_per_batch: bound of the offsets in a batch, over all partitions.
        changes: whether rows are changes: a record without a value (a tombstone) is a delete of the row of its key, any
            other one puts a row in place (``RowKind.UPDATE_AFTER``).
        key: columns that the key of a tombstone gives; the others are null then. With ``changes``, unless raw.
        key_format: ``json``, an object that holds these columns; or ``raw``, the text of the only one.
        with_metadata: whether rows also have ``kafka_key``, ``kafka_topic``, ``kafka_partition``, ``kafka_offset``,
            ``kafka_timestamp`` (which can be their event time) and ``kafka_headers``. Raw rows have them anyway.
        on_data_loss: what to do where offsets are gone unread: ``fail``; or ``reset``: go on with what is left, with
            a warning that says how many are gone.
        options: properties of Kafka's clients, such as ``{"security.protocol": "SSL"}``.
        options_env: properties that are secret: the environment variable that holds each.

    Example:
        >>> KafkaSource("broker:9092", "clicks", schema="user string, at timestamp").format
        'json'
    """

    servers: str
    topic: str | Sequence[str] | None = None
    pattern: str | None = None
    format: Format = "json"
    schema: str = ""
    starting: Starting = "earliest"
    max_offsets_per_batch: int | None = None
    changes: bool = False
    key: Sequence[str] = ()
    key_format: Literal["json", "raw"] = "json"
    with_metadata: bool = False
    on_data_loss: Literal["fail", "reset"] = "fail"
    options: Mapping[str, str] = field(default_factory=dict)
    options_env: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if (given := getattr(self, name)) not in allowed:
                raise ConfigurationError(f"KafkaSource: {name} must be one of {list(allowed)}, not {given!r}")
        self._check_topics()
        self._check_schema()
        _check_starting(self.starting)
        check_bound(self.max_offsets_per_batch, what="KafkaSource: max_offsets_per_batch")
        object.__setattr__(self, "servers", self.cluster.servers)
        check_side({*self.options, *self.options_env}, of="KafkaSource")

    def _check_topics(self) -> None:
        if (self.topic is None) == (self.pattern is None):
            raise ConfigurationError("KafkaSource: name a topic, or a pattern of topics; one of the two")
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except (re.error, TypeError) as error:
                raise ConfigurationError(
                    f"KafkaSource: pattern={self.pattern!r} is not a regular expression: {error}"
                ) from None
        given = [] if self.topic is None else self.topic
        topics = tuple(given) if isinstance(given, list | tuple) else (given,)
        object.__setattr__(self, "topic", topics)
        if self.pattern is None and not (topics and all(isinstance(one, str) and one for one in topics)):
            raise ConfigurationError(f"KafkaSource: topic must be a name, or a list of names, not {topics!r}")

    def _check_schema(self) -> None:
        object.__setattr__(self, "key", columns_of(self.key, "KafkaSource: key="))
        if self.format == "raw" and (self.schema or self.key or self.with_metadata):
            raise ConfigurationError(
                "KafkaSource: raw rows are the records as they are: leave out schema, key and with_metadata"
            )
        if self.format == "avro":
            record_fields(self.schema, of="KafkaSource")
        if self.format == "json" and not self.schema:
            raise ConfigurationError(
                "KafkaSource of format 'json' needs a schema, for example 'user string, at timestamp'"
            )
        if self.format != "raw" and self.changes != bool(self.key):
            raise ConfigurationError(
                "KafkaSource: changes=True and key=[…] go together: a record without a value deletes the row of its "
                "key, and key says which columns that holds"
            )
        if self.key_format == "raw" and len(self.key) != 1:
            raise ConfigurationError("KafkaSource: key_format='raw' is the text of one column: key=['…']")

    @property
    def changing(self) -> bool:
        return self.changes

    @property
    def schema_in_code(self) -> TypeLike | None:
        return self._decoding().schema_in_code

    @property
    def cluster(self) -> KafkaCluster:
        """Where the topics are."""
        return KafkaCluster(self.servers, self.options, self.options_env)

    # -- planning --------------------------------------------------------------------------------------------------

    def plan(self, spark: SparkSession, elements: Sequence[Element]) -> Slice | None:
        known = newest_by_partition(elements)
        with self._admin(spark) as admin:
            there = self._offsets(admin, self._topics(admin, {topic for topic, _ in known}))
            if elements:
                self._check_partitions(there, known)
                wanted = [self._after(there, known, place) for place in there.topics]
                wanted = [one for one in wanted if one.size]
            else:
                wanted = self._first(admin, there)
        ranges = cut(wanted, self.max_offsets_per_batch)
        if elements:
            ranges = [one for one in ranges if one.size]
            if not ranges:
                return None
        elif not ranges and self.starting == "earliest":
            return None
        return replace(self._slice(spark, elements, ranges), more=ranges != wanted)

    def replan(self, spark: SparkSession, before: Sequence[Element], appended: Sequence[Element]) -> Slice:
        ranges = recorded_ranges(appended)
        self._check_there(spark, ranges)
        return self._slice(spark, before, ranges, recorded=appended)

    def rebatch(
        self, spark: SparkSession, before: Sequence[Element], recorded: Sequence[Element]
    ) -> Slice | None:
        left = left_over(before, recorded)
        if not left:
            return None
        ranges = cut(left, self.max_offsets_per_batch)
        self._check_there(spark, ranges)
        return replace(self._slice(spark, before, ranges), more=ranges != left)

    def confirm(self, part: Slice) -> None:
        self._check_there(part.detail.spark, part.detail.ranges)

    def consumed(self, spark: SparkSession, given: Any) -> list[Element]:
        """``given``: ``"all"`` that is there now; or the next offsets to read, ``{topic: {partition: offset}}``."""
        with self._admin(spark) as admin:
            there = self._offsets(admin, self._topics(admin, set()))
        ends = there.ends if given == "all" else _offsets_given(given, there.topics, of="positions")
        return [
            OffsetRange(*place, there.topics[place].id, end, end).element() for place, end in ends.items()
        ]

    def is_element(self, element: Element) -> bool:
        return is_range(element)

    def position_text(self, elements: Sequence[Element]) -> str:
        return position_summary(elements)

    def _slice(
        self,
        spark: SparkSession,
        before: Sequence[Element],
        ranges: list[OffsetRange],
        *,
        recorded: Sequence[Element] | None = None,
    ) -> Slice:
        appended = [one.element() for one in ranges] if recorded is None else list(recorded)
        if not appended:
            appended = [{"split": BEGUN, "position": {}}]
        bases, labels = _places(ranges)
        return Slice(
            elements=appended,
            position_from=position_summary(before),
            position_to=position_summary([*before, *appended]),
            labels=labels,
            detail=KafkaSlice(spark, [one for one in ranges if one.size], bases),
        )

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(self, spark: SparkSession, part: Slice, *, keep_refused: bool) -> SourceFrame:
        records = self._records(spark, part.detail)
        return self._decoding().decoded(records, keep_refused=keep_refused)

    def parse(self, spark: SparkSession, records: Sequence[bytes], *, keep_refused: bool) -> SourceFrame:
        if self.format == "raw":
            raise SourceError("raw records of Kafka are not parsed, so none can be parsed again")
        return self._decoding().decoded(records_again(spark, records), keep_refused=keep_refused)

    def _records(self, spark: SparkSession, wanted: KafkaSlice) -> DataFrame:
        if not wanted.ranges:
            return spark.createDataFrame([], record_schema())
        starts: dict[str, dict[str, int]] = {}
        ends: dict[str, dict[str, int]] = {}
        for one in wanted.ranges:
            starts.setdefault(one.topic, {})[str(one.partition)] = one.start
            ends.setdefault(one.topic, {})[str(one.partition)] = one.end
        assigned = {topic: sorted(map(int, partitions)) for topic, partitions in starts.items()}
        options = {f"kafka.{name}": value for name, value in self.cluster.properties().items()}
        options |= {
            "assign": json.dumps(assigned),
            "startingOffsets": json.dumps(starts),
            "endingOffsets": json.dumps(ends),
            "includeHeaders": "true",
            "failOnDataLoss": "true",
            "kafka.isolation.level": "read_committed",
        }
        frame = spark.read.format("kafka").options(**options).load()
        columns = [F.col(name) for name, _ in RECORD_FIELDS]
        return frame.select(*columns, *_place_columns(wanted.bases))

    def _decoding(self) -> Decoding:
        return Decoding(
            format=self.format,
            schema=self.schema,
            key=tuple(self.key),
            key_format=self.key_format,
            changes=self.changes,
            with_metadata=self.with_metadata,
        )

    # -- what is there ---------------------------------------------------------------------------------------------

    @contextmanager
    def _admin(self, spark: SparkSession) -> Iterator[KafkaAdmin]:
        try:
            with kafka_admin(spark, self.cluster) as admin:
                yield admin
        except KafkaError as error:
            raise SourceError(
                f"Kafka at {self.servers} cannot be read ({error}). Nothing is lost: repair that and run again"
            ) from error

    def _topics(self, admin: KafkaAdmin, known: set[str]) -> list[Topic]:
        """The topics of this source, in order; those that were read before must be there."""
        names = set(self.topic or ()) if self.pattern is None else set(matching(self.pattern, admin.names()))
        there = admin.topics(names)
        gone = sorted(({*names} if self.pattern is None else {*names, *known}) - there.keys())
        if gone and not (self.on_data_loss == "reset" and set(gone) <= known):
            way_out = "; on_data_loss='reset' goes on without it" if set(gone) <= known else ""
            raise SourceError(f"Kafka at {self.servers} has no topic {', '.join(gone)}: make it{way_out}")
        if gone:
            _LOG.warning("Kafka at %s no longer has the topic %s", self.servers, ", ".join(gone))
        return list(there.values())

    def _offsets(self, admin: KafkaAdmin, topics: Sequence[Topic]) -> Offsets:
        partitions = partitions_of(topics)
        # the beginning last: what expires in between is seen
        ends = admin.offsets(list(partitions), LATEST)
        return Offsets(partitions, admin.offsets(list(partitions), EARLIEST), ends)

    def _check_partitions(self, there: Offsets, known: Mapping[Partition, OffsetRange]) -> None:
        """Refuse a position in a partition that its topic does not have; the topic itself is there."""
        names = {topic for topic, _ in there.topics}
        for (topic, number), one in known.items():
            if topic in names and (topic, number) not in there.topics:
                loss = (
                    f"{topic}/{number} was read up to offset {one.end}, and the topic has no such partition"
                )
                if self.on_data_loss == "fail":
                    raise SourceError(
                        f"{loss}: it is not the one that was read. Ways out: on_data_loss='reset' goes on with those "
                        "of today; a job with a new name begins with empty state"
                    )
                _LOG.warning("%s; going on with those of today", loss)

    def _after(self, there: Offsets, known: Mapping[Partition, OffsetRange], place: Partition) -> OffsetRange:
        if place not in known:
            return there.whole(place, there.begins[place])
        wanted, loss = there.after(known[place])
        if not loss:
            return wanted
        if self.on_data_loss == "fail":
            raise SourceError(
                f"{loss}. Ways out: on_data_loss='reset' goes on at offset {wanted.start}, without them; a job with a "
                "new name begins with empty state"
            )
        _LOG.warning("%s; going on at offset %d", loss, wanted.start)
        return wanted

    def _first(self, admin: KafkaAdmin, there: Offsets) -> list[OffsetRange]:
        """Where the first run begins: every partition is recorded, so that those that come later are known."""
        start, places = self.starting, there.topics
        if start == "earliest":
            begins = there.begins
        elif start == "latest":
            begins = there.ends
        elif isinstance(start, datetime):
            given = admin.offsets(list(places), round(start.timestamp() * 1000))
            begins = {place: there.ends[place] if at < 0 else at for place, at in given.items()}
        else:
            assert isinstance(start, Mapping)
            begins = {**there.begins, **_offsets_given(start, places, of="starting")}
        self._check_begins(begins, there)
        return [there.whole(place, begins[place]) for place in places]

    def _check_begins(self, begins: Mapping[Partition, int], there: Offsets) -> None:
        for (topic, number), at in begins.items():
            begin, end = there.begins[topic, number], there.ends[topic, number]
            if isinstance(self.starting, Mapping) and not begin <= at <= end:
                raise SourceError(
                    f"starting is offset {at} of {topic}/{number}, which has offsets {begin} to {end}"
                )

    def _check_there(self, spark: SparkSession, ranges: Sequence[OffsetRange]) -> None:
        """Raises SourceError where ranges cannot be read as they were planned or recorded."""
        if not ranges:
            return
        with self._admin(spark) as admin:
            topics = admin.topics({one.topic for one in ranges})
            there = self._offsets(admin, list(topics.values()))
        there.check_there(ranges)


@dataclass(frozen=True)
class KafkaSlice:
    """What ``read`` and ``confirm`` need: the session, ranges, and the place of each topic's first partition."""

    spark: SparkSession
    ranges: list[OffsetRange]
    bases: dict[str, int]


_CHOICES: dict[str, tuple[str, ...]] = {
    "format": ("json", "avro", "raw"),
    "key_format": ("json", "raw"),
    "on_data_loss": ("fail", "reset"),
}


def _places(ranges: Sequence[OffsetRange]) -> tuple[dict[str, int], list[str]]:
    """The place of each topic's partition 0 in a slice, and a label for every place."""
    highest: dict[str, int] = {}
    for one in ranges:
        highest[one.topic] = max(one.partition, highest.get(one.topic, 0))
    bases: dict[str, int] = {}
    labels: list[str] = []
    for topic in sorted(highest):
        bases[topic] = len(labels)
        labels += [f"{topic}/{number}" for number in range(highest[topic] + 1)]
    return bases, labels


def _place_columns(bases: Mapping[str, int]) -> list[Column]:
    """The hidden columns of records: place of the partition in the slice, and offset."""
    base = F.lit(None).cast("int")
    for topic, first in bases.items():
        base = F.when(F.col("topic") == topic, F.lit(first)).otherwise(base)
    place = (base + F.col("partition")).cast("int")
    return [place.alias(FILE_COLUMN), F.col("offset").alias(ROW_COLUMN)]


def _check_starting(starting: object) -> None:
    if starting in ("earliest", "latest") or isinstance(starting, datetime):
        return
    if not isinstance(starting, Mapping):
        raise ConfigurationError(
            f"KafkaSource: starting must be 'earliest', 'latest', a datetime or offsets {{topic: {{partition: "
            f"offset}}}}, not {starting!r}"
        )


def _offsets_given(given: object, there: Mapping[Partition, Topic], *, of: str) -> dict[Partition, int]:
    offsets: dict[Partition, int] = {}
    for topic, partitions in given.items() if isinstance(given, Mapping) else [("", None)]:
        if not isinstance(partitions, Mapping):
            raise ConfigurationError(
                f"KafkaSource: {of} must be {{topic: {{partition: offset}}}}, not {given!r}"
            )
        for number, offset in partitions.items():
            if (topic, number) not in there or type(offset) is not int or offset < 0:
                raise ConfigurationError(
                    f"KafkaSource: {of} says offset {offset!r} of {topic}/{number}; there are "
                    f"{', '.join(f'{name}/{one}' for name, one in there) or 'no partitions'}"
                )
            offsets[topic, number] = offset
    return offsets
