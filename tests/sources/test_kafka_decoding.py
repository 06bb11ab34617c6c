"""Records of Kafka as rows, without a broker: JSON by the rules of files, keys of deleted rows, what does not fit."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from state_engine import KafkaSink
from state_engine.core.errors import SourceError
from state_engine.core.types.ddl import quoted
from state_engine.core.types.every_type import StructType
from state_engine.core.types.type_parsing import to_type
from state_engine.sources.base import ROW_COLUMN
from state_engine.sources.frames import ROW_KIND
from state_engine.sources.kafka.decoding import _DECODED, REFUSED_TEXT, Decoding, _RecordReader, record_schema
from state_engine.sources.kafka.offset_ranges import (
    BEGUN,
    OffsetRange,
    Offsets,
    cut,
    left_over,
    position_summary,
    recorded_ranges,
)
from state_engine.spark.kafka.clients import Topic

AT = datetime(2024, 1, 5, tzinfo=UTC)
Message = tuple[bytes | None, bytes | None]
ODD_NAMES = [
    "a.b",
    "a`b",
    'a"b',
    "é😀",
    "key",
    "value",
    "kafka_key",
    "bill city",
    "a;b",
    "a\nb",
    "100 %",
    "x" * 300,
]


def decoded(spark: SparkSession, decoding: Decoding, messages: Sequence[Message]) -> tuple[Any, Any]:
    """Rows by offset, and errors by offset."""
    records: list[Any] = [
        (key, value, "t", 0, row, AT, [], 0, row) for row, (key, value) in enumerate(messages)
    ]
    read = decoding.decoded(spark.createDataFrame(records, record_schema()), keep_refused=True)
    assert isinstance(read.rows, DataFrame)
    assert isinstance(read.refused, DataFrame)
    rows = {row[ROW_COLUMN]: row.asDict() for row in read.rows.collect()}
    return rows, {row[ROW_COLUMN]: row["reason"] for row in read.refused.collect()}


def test_json_is_read_by_the_rules_of_files(spark: SparkSession) -> None:
    values = [
        b'{"k": "a", "d": 1.50, "at": "2024-01-05T10:00:00Z", "more": 1}', b'{"K": 5}', b'{"d": 10.005}',
        b'{"k": 1}{"k": 2}',
        b"[1]", b"", b'{"k": "caf\xe9"}', b'{"k": 1, "k": 2}', b'{"at": 1704067200000}', None,
    ]  # fmt: skip
    decoding = Decoding("json", "k string, d decimal(9,2), at timestamp")
    rows, errors = decoded(spark, decoding, [(None, value) for value in values])
    assert [(rows[i]["k"], rows[i]["d"]) for i in sorted(rows)] == [("a", Decimal("1.50")), ("5", None)]
    assert rows[0]["at"].astimezone(UTC) == datetime(2024, 1, 5, 10, tzinfo=UTC)
    assert sorted(errors) == [2, 3, 4, 5, 6, 7, 8, 9]
    fits = "SourceError: its value does not fit the declared schema: "
    assert errors[2].startswith(fits + "column 'd': 10.005: it does not fit into the type decimal(9,2)")
    assert errors[3] == fits + "it holds 2 objects, not one"
    assert "1 is not an object" in errors[4]
    assert errors[6] == fits + "it is not UTF-8"
    assert "the key 'k' is there twice" in errors[7]
    assert "whole seconds since 1970" in errors[8]
    assert "changes=True" in errors[9]


@pytest.mark.parametrize(
    ("form", "good", "bad"), [("json", b'{"id": 7}', [b'{"id": "x"}', b"no"]), ("raw", b"7", [b"x", b" 7"])]
)
def test_keys_say_which_row_is_deleted(spark: SparkSession, form: Any, good: bytes, bad: list[bytes]) -> None:
    decoding = Decoding("json", "id int, v string", key=("id",), key_format=form, changes=True)
    messages = [(good, b'{"id": 7, "v": "a"}'), (good, None), *[(key, None) for key in bad], (None, None)]
    rows, errors = decoded(spark, decoding, messages)
    assert [(rows[i]["id"], rows[i]["v"], rows[i][ROW_KIND]) for i in sorted(rows)] == [
        (7, "a", 2),
        (7, None, 3),
    ]
    assert sorted(errors) == [2, 3, 4]
    assert all("its key does not hold ['id']" in error for error in errors.values())


@pytest.mark.parametrize("key_format", ["json", "raw"])
def test_what_a_sink_writes_under_any_name_is_read_by_it(spark: SparkSession, key_format: Any) -> None:
    for name in ODD_NAMES:
        sink = KafkaSink("broker:9092", "t", key=[name], key_format=key_format)
        rows = pa.table({name: ["k1", "k2"], "n": [1, 2]})
        messages = [(key, value) for key, value in frames(sink._target().frames(rows, sink="out"))]
        decoding = Decoding(
            "json", f"{quoted(name)} string, n bigint", key=(name,), key_format=key_format, changes=True
        )
        read, errors = decoded(spark, decoding, [messages[0], (messages[1][0], None)])
        assert not errors
        assert [(read[i][name], read[i]["n"]) for i in sorted(read)] == [("k1", 1), ("k2", None)], name


def frames(packed: bytes) -> Iterator[Message]:
    """Keys and values of records without headers, as ``KafkaRecords.send`` takes them."""
    at = 0

    def part() -> bytes:
        nonlocal at
        (size,) = struct.unpack_from(">i", packed, at)
        at += 4 + size
        return packed[at - size : at]

    while at < len(packed):
        at += 8
        yield part(), part()
        at += 4


def test_avro_keeps_what_spark_decoded() -> None:
    columns = to_type("id int, at timestamp", parameter="p")
    assert isinstance(columns, StructType)
    reader = _RecordReader(Decoding("avro", key=("id",), changes=True), columns)
    row = pa.array([{"id": 1, "at": AT, "_statelake_ok": 1}, None, None], pa.struct(
        [("id", pa.int32()), ("at", pa.timestamp("us", "Europe/Berlin")), ("_statelake_ok", pa.int32())]
    ))  # fmt: skip
    keys, values = (
        pa.array([None, None, b'{"id": 9}'], pa.binary()),
        pa.array([b"a", b"b", None], pa.binary()),
    )
    (batch,) = reader.batches([pa.record_batch({"key": keys, "value": values, _DECODED: row})])
    assert batch[_DECODED].to_pylist() == [
        {"id": 1, "at": AT},
        {"id": None, "at": None},
        {"id": 9, "at": None},
    ]
    assert batch[REFUSED_TEXT].to_pylist() == [None, "its value does not fit the declared schema", None]


TOPIC = Topic("t", "id", (0,))
PLACE = ("t", 0)


def there(begin: int, end: int, topic: Topic = TOPIC) -> Offsets:
    return Offsets({PLACE: topic}, {PLACE: begin}, {PLACE: end})


def one(start: int, end: int, *, partition: int = 0, topic_id: str = "id") -> OffsetRange:
    return OffsetRange("t", partition, topic_id, start, end)


@pytest.mark.parametrize(
    ("offsets", "start", "end", "lost"),
    [
        (there(0, 9), 5, 9, 0),
        (there(5, 5), 5, 5, 0),
        (there(7, 9), 7, 9, 2),
        (there(0, 3), 3, 3, 2),
        (there(2, 4, Topic("t", "another", (0,))), 2, 4, 0),
    ],
)
def test_what_comes_after_a_position(offsets: Offsets, start: int, end: int, lost: int) -> None:
    after, why = offsets.after(one(0, 5))
    assert (after.start, after.end, after.lost) == (start, end, lost)
    assert bool(why) == (lost > 0 or after.topic_id == "another")


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=6), st.integers(1, 60))
def test_cuts_are_full_and_come_to_the_end(sizes: list[tuple[int, int]], limit: int) -> None:
    wanted = [one(start, start + size, partition=p) for p, (start, size) in enumerate(sizes)]
    total, position = sum(r.size for r in wanted), wanted
    for _ in range(total + 1):
        part = cut(position, limit)
        assert sum(r.size for r in part) == min(limit, sum(r.size for r in position))
        assert [r.start for r in part] == [r.start for r in position]
        position = [
            one(done.end, whole.end, partition=whole.partition)
            for done, whole in zip(part, position, strict=True)
        ]
        if not any(r.size for r in position):
            break
    assert not any(r.size for r in position)


def test_what_is_left_of_what_was_recorded() -> None:
    recorded = [one(0, 3).element(), one(0, 2, partition=1).element(), one(3, 9).element()]
    assert left_over([], recorded) == [one(0, 9), one(0, 2, partition=1)]
    assert left_over(recorded[:2], recorded) == [one(3, 9)]
    assert left_over(recorded, recorded) == []
    with pytest.raises(SourceError, match=r"recreated.*rebatch=False"):
        left_over([], [*recorded, one(0, 1, topic_id="another").element()])


def test_ranges_are_read_again_as_they_were_only() -> None:
    there(0, 9).check_there([one(0, 9), one(4, 4)])
    with pytest.raises(SourceError, match="has offsets 1 to 9, and 0 to 9 are wanted"):
        there(1, 9).check_there([one(0, 9)])
    with pytest.raises(SourceError, match="is gone, or was recreated"):
        there(0, 9).check_there([one(0, 9, topic_id="another")])


def test_a_position_is_shown_by_topic_and_partition() -> None:
    elements = [{"split": BEGUN, "position": {}}, one(0, 3).element(), one(5, 9).element()]
    assert json.loads(position_summary(elements))["offsets"] == {"t": {"0": 9}}
    assert recorded_ranges(elements) == [one(0, 3), one(5, 9)]
