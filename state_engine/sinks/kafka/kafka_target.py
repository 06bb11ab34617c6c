"""Which topic is written to, and how: what a checkpoint records of it; and how its rows become records.

A record is packed as ``KafkaRecords.send`` takes it. JSON holds dates and times as ISO 8601, decimals as texts, bytes
as base64, and maps as objects.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any, Literal

import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import StagedSink
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import ConfigurationError, SinkError, ValueTypeError
from state_engine.core.types.avro_values import avro_writer, record_fields
from state_engine.core.types.ddl import ddl_text
from state_engine.core.types.json_values import for_json, scalar_text
from state_engine.core.types.row import RowKind
from state_engine.sinks.base import DROP_ROWS
from state_engine.sinks.row_rules import DecodedByPython, NotAfter, NotBefore1970, RowRule
from state_engine.sources.stream_columns import ROW_KIND, kinds_of
from state_engine.spark.kafka.cluster import Format, KafkaCluster

Values = Mapping[str, Any]
"""Of a row, by column."""
_NO_TIME, _AHEAD = -1, "message.timestamp.after.max.ms"
_LARGEST, _OVERHEAD = 2**20, 100
"""Kafka's default of ``max.request.size``, and what a batch of one record takes beside it."""
_SWELLS = 8
"""So many times at most as large is a record as its row."""
_KEY, _VALUE = "key", "value"
_DELETES, _PASSED_OVER = RowKind.DELETE, RowKind.UPDATE_BEFORE


@dataclass(frozen=True)
class TopicRules:
    """What a topic demands of records.

    Attributes:
        largest: bytes of a record, compressed.
        is_compacted: whether each record needs a key.
        last_ms: the latest time of a record, in milliseconds since 1970; None for any.
    """

    largest: int
    is_compacted: bool
    last_ms: int | None

    @staticmethod
    def of(settings: Mapping[str, str], now_ms: int) -> TopicRules:
        """From the settings of a topic, and the time now."""
        ahead, by_broker = settings.get(_AHEAD), settings.get("message.timestamp.type") == "LogAppendTime"
        return TopicRules(
            largest=int(settings.get("max.message.bytes", sys.maxsize)),
            is_compacted="compact" in settings.get("cleanup.policy", ""),
            last_ms=None if by_broker or ahead is None else now_ms + int(ahead),
        )


@dataclass(frozen=True)
class KafkaTarget:
    """One topic.

    Attributes:
        schema: of Avro, as JSON; else empty.
        headers, timestamp: columns of the record's headers and time; None where it has none of its own.
        timeout: after which brokers abort a transaction.
    """

    cluster: KafkaCluster
    topic: str
    marker_topic: str
    format: Format
    schema: str
    key: tuple[str, ...]
    key_format: Literal["json", "raw"]
    headers: str | None
    timestamp: str | None
    max_rows: int
    timeout: timedelta

    @property
    def shown(self) -> str:
        return f"topic {self.topic} of Kafka at {self.cluster.servers}"

    def to_json(self) -> dict[str, Any]:
        own = {**asdict(self), "cluster": self.cluster.to_json(), "key": list(self.key)}
        return {**own, "timeout": self.timeout // timedelta(milliseconds=1)}

    @staticmethod
    def from_json(stored: Mapping[str, Any]) -> KafkaTarget:
        return replace(
            KafkaTarget(**stored),
            cluster=KafkaCluster.from_json(stored["cluster"]),
            key=tuple(stored["key"]),
            timeout=timedelta(milliseconds=stored["timeout"]),
        )

    @staticmethod
    def of(staged: StagedSink) -> KafkaTarget:
        """The topic, recorded beside the columns."""
        return KafkaTarget.from_json(json.loads(staged.schema)["target"])

    # -- columns ---------------------------------------------------------------------------------------------------

    def check(self, schema: pa.Schema, *, sink: str) -> None:
        """Refuse columns that cannot become records."""
        kinds = {field.name: field.type for field in schema if field.name != ROW_KIND}
        needed = dict.fromkeys(self.key, "key")
        needed |= {name: "headers" for name in [self.headers] if name}
        needed |= {name: "timestamp" for name in [self.timestamp] if name}
        if self.format == "raw":
            needed[_VALUE] = "the format 'raw'"
        if missing := {name: why for name, why in needed.items() if name not in kinds}:
            name, why = next(iter(missing.items()))
            raise SinkError(
                f"sink '{sink}': there is no column '{name}' for {why}; the output has {list(kinds)}"
            )
        expected = {name: _IS_TEXT for name in (_KEY, _VALUE) if self.format == "raw" and name in kinds}
        expected |= {name: _IS_HEADERS for name in [self.headers] if name}
        expected |= {name: _IS_INSTANT for name in [self.timestamp] if name}
        for name, (fits, wanted) in expected.items():
            if not fits(kinds[name]):
                raise SinkError(
                    f"sink '{sink}': the column '{name}' must be {wanted}, not {ddl_text(kinds[name])}"
                )
        if self.format == "avro":
            self._check_avro(kinds, needed, sink)

    def _check_avro(self, kinds: Mapping[str, pa.DataType], needed: Mapping[str, str], sink: str) -> None:
        fields = record_fields(self.schema, of=f"sink '{sink}'")
        if extra := [name for name in kinds if name not in {*fields, *needed}]:
            raise ConfigurationError(
                f"sink '{sink}': the schema has no field for the columns {extra}: give it one, or leave them out of "
                "the output"
            )
        avro_writer(self.schema, kinds, of=f"sink '{sink}'")

    def rules(self, topic: TopicRules | None = None) -> list[RowRule]:
        """What a row must be to become a record that brokers take.

        Args:
            topic: what the topic demands besides; None where that is not known.
        """
        rules: list[RowRule] = [DecodedByPython()]
        if self.timestamp:
            rules.append(NotBefore1970(self.timestamp))
            if topic is not None and topic.last_ms is not None:
                rules.append(NotAfter(self.timestamp, topic.last_ms))
        setting, largest = "max.request.size", int(self.cluster.options.get("max.request.size", _LARGEST))
        # a topic counts the bytes of compressed records, which nobody knows before
        is_plain = self.cluster.options.get("compression.type", "none") == "none"
        if topic is not None and is_plain and topic.largest < largest:
            setting, largest = f"max.message.bytes of {self.topic}", topic.largest
        return [
            *rules,
            BecomesRecord(self, largest, setting, needs_key=topic is not None and topic.is_compacted),
        ]

    # -- records ---------------------------------------------------------------------------------------------------

    def frames(self, rows: pa.Table, *, sink: str, needs_key: bool = False) -> bytes:
        """The records of rows; what an update replaces has none, and what is deleted has no value.

        Args:
            needs_key: whether rows of streams that do not change need a key, too.
        """
        changing = ROW_KIND in rows.column_names
        row_kinds: Sequence[RowKind | None] = kinds_of(rows) if changing else [None] * rows.num_rows
        rows = rows.drop_columns([ROW_KIND]) if changing else rows
        columns = {name: rows[name].to_pylist() for name in rows.column_names}
        kinds = {field.name: field.type for field in rows.schema}
        key_of, value_of = self._key_writer(kinds), self._value_writer(kinds, sink)
        packed = bytearray()
        for row, kind in enumerate(row_kinds):
            if kind is _PASSED_OVER:
                continue
            values = {name: column[row] for name, column in columns.items()}
            key = key_of(values)
            if key is None and (changing or needs_key):
                raise SinkError(
                    f"sink '{sink}': a row of a stream that changes has no key for {self.shown}, so nothing says which "
                    f"row it replaces. To go on, {DROP_ROWS}, and filter such out"
                )
            try:
                value = None if kind is _DELETES else value_of(values)
            except ValueTypeError as error:
                raise SinkError(
                    f"sink '{sink}': a row does not fit the schema of {self.shown}: {error}. To go on, "
                    f"{DROP_ROWS}, and filter such out, or set another schema"
                ) from error
            packed += _frame(key, value, self._time(values), self._headers(values))
        return bytes(packed)

    def _key_writer(self, kinds: Mapping[str, pa.DataType]) -> Callable[[Values], bytes | None]:
        if self.format == "raw":
            return lambda row: _bytes(row.get(_KEY))
        if not self.key:
            return lambda _: None
        convert = {name: for_json(kinds[name]) for name in self.key}
        if self.key_format == "json":
            return lambda row: _json({name: one(row[name]) for name, one in convert.items()})
        ((name, plain),) = convert.items()

        def text(row: Values) -> bytes | None:
            own = row[name]
            return own if own is None or isinstance(own, bytes) else scalar_text(plain(own)).encode()

        return text

    def _value_writer(self, kinds: Mapping[str, pa.DataType], sink: str) -> Callable[[Values], bytes | None]:
        if self.format == "raw":
            return lambda row: _bytes(row[_VALUE])
        if self.format == "avro":
            return avro_writer(self.schema, kinds, of=f"sink '{sink}'")
        convert = {name: for_json(kind) for name, kind in kinds.items() if name != self.headers}
        return lambda row: _json({name: one(row[name]) for name, one in convert.items()})

    def _time(self, values: Values) -> int:
        at = values[self.timestamp] if self.timestamp else None
        return _NO_TIME if at is None else int(at.timestamp() * 1000)

    def _headers(self, values: Values) -> list[tuple[str, bytes | None]]:
        given = values[self.headers] if self.headers else None
        pairs = [one if isinstance(one, tuple) else (one["key"], one["value"]) for one in given or []]
        return [(name, _bytes(value)) for name, value in pairs]


@dataclass(frozen=True)
class BecomesRecord(RowRule):
    """A row fits the schema of a topic, has a key where it needs one, and is not too large for a record.

    Attributes:
        target: makes records.
        largest: bytes of a record.
        setting: what says so.
        needs_key: whether each record needs a key, and not only one that replaces or deletes another.
    """

    target: KafkaTarget
    largest: int
    setting: str
    needs_key: bool

    def refused(self, table: pa.Table) -> dict[int, str]:
        return {row: why for row in self._doubtful(table) if (why := self._problem(table.slice(row, 1)))}

    def _doubtful(self, table: pa.Table) -> Sequence[int]:
        try:
            if self.needs_key or self.target.format == "avro" or ROW_KIND in table.column_names:
                self.target.frames(table, sink="", needs_key=self.needs_key)
        except (SinkError, ValueError, OverflowError):
            return range(table.num_rows)
        if table.nbytes * _SWELLS < self.largest:
            return []
        slices = (table.slice(row, 1).nbytes for row in range(table.num_rows))
        return [row for row, size in enumerate(slices) if size * _SWELLS >= self.largest]

    def _problem(self, row: pa.Table) -> str:
        try:
            size = len(self.target.frames(row, sink="", needs_key=self.needs_key)) + _OVERHEAD
        except SinkError as error:
            no_key = "it has no key, and "
            no_key += (
                "the topic is compacted by key" if self.needs_key else "nothing says which row it replaces"
            )
            return str(error.__cause__ or no_key)
        except (ValueError, OverflowError):  # a date that Python does not hold is a matter of its own rule
            return ""
        return (
            ""
            if size <= self.largest
            else f"its record of {counted(size, 'byte')} is larger than {self.setting}={self.largest}"
        )


def marker_frame(key: str, value: str) -> bytes:
    """A record of two texts."""
    return _frame(key.encode(), value.encode(), _NO_TIME, [])


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _is_headers(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return bool(pa.types.is_string(kind.key_type) and _is_text(kind.item_type))
    if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        return False
    fields = {field.name: field.type for field in kind.value_type}
    return set(fields) == {_KEY, _VALUE} and pa.types.is_string(fields[_KEY]) and _is_text(fields[_VALUE])


def _is_instant(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.tz is not None)


_IS_TEXT = (_is_text, "string or binary")
_IS_HEADERS = (_is_headers, "map<string, binary> or array<struct<key: string, value: binary>>")
_IS_INSTANT = (_is_instant, "timestamp")


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _frame(
    key: bytes | None, value: bytes | None, time_ms: int, headers: list[tuple[str, bytes | None]]
) -> bytes:
    parts = [struct.pack(">q", time_ms), _part(key), _part(value), struct.pack(">i", len(headers))]
    for name, content in headers:
        parts += [_part(name.encode()), _part(content)]
    return b"".join(parts)


def _part(content: bytes | None) -> bytes:
    return struct.pack(">i", -1) if content is None else struct.pack(">i", len(content)) + content
