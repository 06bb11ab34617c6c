"""What the records of a topic become, and what becomes of those that do not fit; and rows as records."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from state_engine import (
    ChangeFormat,
    DeltaSink,
    FileSink,
    FileSource,
    KafkaSink,
    KafkaSource,
    KeyedProcessFunction,
    RowKind,
    StateEngine,
    StatefulJob,
    ValueStateDescriptor,
)
from state_engine.core.errors import ConfigurationError, SourceError, UserFunctionError
from state_engine.core.types.ddl import quoted
from state_engine.sinks.row_rules import refused_rows
from tests.kafka.topics import Topics
from tests.sources.test_kafka_decoding import ODD_NAMES
from tests.support.guides import GUIDES, code_blocks

CLICKS = "id bigint, name string"
AVRO = json.dumps(
    {
        "type": "record",
        "name": "Click",
        "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}],
    }
)


class Shown(KeyedProcessFunction):
    """Every element with its kind, as text."""

    accepts_changes = True

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        yield str(ctx.row_kind()), value.id, value.name


class Run:
    """A job from a source to a table."""

    def __init__(self, spark: SparkSession, directory: Path, source: KafkaSource, **options: Any) -> None:
        self.engine, self.directory = StateEngine(directory / "root", spark), directory
        self.use(source, **options)

    def use(self, source: KafkaSource, *, format: Any = None, **options: Any) -> None:
        self.job = StatefulJob("shown", **options)
        stream = self.job.source("input", source, format=format).key_by("id")
        out = stream.process(Shown(), uid="shown", output_type="kind string, id bigint, name string")
        out.sink("out", DeltaSink(str(self.directory / "out")))

    def rows(self) -> list[tuple[Any, ...]]:
        table = DeltaTable(str(self.directory / "out")).to_pyarrow_table()
        return sorted(tuple(row.values()) for row in table.to_pylist())


BAD: list[Any] = ["no json", "[1]", '{"id": "seven"}', b'{"id": 5, "name": "caf\xe9"}', "", None]


def test_records_that_do_not_fit_become_dead_letters(
    spark: SparkSession, tmp_path: Path, topics: Topics
) -> None:
    topic = topics.new()
    topics.send(
        topic, (None, '{"id": 1, "name": "a", "more": 7}'), *[("k", one) for one in BAD], (None, '{"id": 2}')
    )
    strict = Run(spark, tmp_path / "strict", KafkaSource(topics.servers, topic, schema=CLICKS))
    with pytest.raises(
        SourceError, match=rf"{topic}/0, offset 1: its value does not fit the declared schema"
    ):
        strict.engine.run(strict.job)
    run = Run(spark, tmp_path, KafkaSource(topics.servers, topic, schema=CLICKS), on_error="dead_letter")
    (report,) = run.engine.run(run.job).batches
    assert run.rows() == [("+I", 1, "a"), ("+I", 2, None)]
    assert report.rows_refused == len(BAD)
    letters = sorted(run.engine.list_dead_letters("shown"), key=lambda one: str(one.position))
    assert [one.position for one in letters] == [
        f"source 'input', {topic}/0, row {offset}" for offset in range(1, 7)
    ]
    assert "is not UTF-8" in letters[3].error
    assert "changes=True" in letters[5].error
    assert json.loads(letters[0].row or "")["value"] == "no json"


def test_dead_letters_are_decoded_again(spark: SparkSession, tmp_path: Path, topics: Topics) -> None:
    topic = topics.new()
    topics.send(topic, ("k", '{"id": "seven", "name": "x"}'), ("k", "no json"))
    run = Run(spark, tmp_path, KafkaSource(topics.servers, topic, schema=CLICKS), on_error="dead_letter")
    run.engine.run(run.job)
    run.use(KafkaSource(topics.servers, topic, schema="id string, name string"), on_error="dead_letter")
    letters = run.engine.list_dead_letters("shown")
    assert len(letters) == 2
    run.job = StatefulJob("shown", on_error="dead_letter")
    source = KafkaSource(topics.servers, topic, schema="id string, name string", with_metadata=True)
    stream = run.job.source("input", source).map(
        lambda row: (7, f"{row.id}/{row.kafka_offset}"), output_type="id bigint, name string"
    )
    out = stream.key_by("id").process(Shown(), uid="shown", output_type="kind string, id bigint, name string")
    out.sink("out", DeltaSink(str(tmp_path / "out")))
    run.engine.replay_dead_letters(run.job)
    assert run.rows() == [("+I", 7, "seven/0")]
    assert [one.error for one in run.engine.list_dead_letters("shown")]


def test_tombstones_delete_the_row_of_their_key(spark: SparkSession, tmp_path: Path, topics: Topics) -> None:
    topic = topics.new()
    topics.send(
        topic,
        ('{"id": 1}', '{"id": 1, "name": "a"}'),
        ('{"id": 1}', '{"id": 1, "name": "b"}'),
        ('{"id": 1}', None),
        ("no key", None),
    )
    source = KafkaSource(topics.servers, topic, schema=CLICKS, changes=True, key=["id"])
    run = Run(spark, tmp_path, source, on_error="dead_letter")
    (report,) = run.engine.run(run.job).batches
    assert run.rows() == [("+U", 1, "a"), ("+U", 1, "b"), ("-D", 1, None)]
    assert report.rows_refused == 1


def test_a_key_may_be_text(spark: SparkSession, tmp_path: Path, topics: Topics) -> None:
    topic = topics.new()
    topics.send(topic, ("7", '{"id": 7, "name": "a"}'), ("7", None))
    source = KafkaSource(topics.servers, topic, schema=CLICKS, changes=True, key=["id"], key_format="raw")
    run = Run(spark, tmp_path, source)
    run.engine.run(run.job)
    assert run.rows() == [("+U", 7, "a"), ("-D", 7, None)]


def test_envelopes_in_raw_values_are_decoded(spark: SparkSession, tmp_path: Path, topics: Topics) -> None:
    topic = topics.new()
    envelope = {"op": "c", "before": None, "after": {"id": 1, "name": "a"}}
    topics.send(topic, ("k", json.dumps(envelope)), ("k", None))
    run = Run(
        spark, tmp_path, KafkaSource(topics.servers, topic, format="raw"),
        format=ChangeFormat.debezium(column="value", schema=CLICKS),
    )  # fmt: skip
    run.engine.run(run.job)
    assert run.rows() == [("+I", 1, "a")]


def test_avro_is_read_by_its_schema(spark: SparkSession, tmp_path: Path, topics: Topics) -> None:
    topic = topics.new()
    good = b"\x02\x02\x02a"  # 1, then the second branch of the union: "a"
    nothing = b"\x00\x00"  # 0, and null
    topics.send(topic, (None, good), (None, nothing), (None, b"\xff"))
    source = KafkaSource(topics.servers, topic, format="avro", schema=AVRO)
    run = Run(spark, tmp_path, source, on_error="dead_letter")
    (report,) = run.engine.run(run.job).batches
    assert run.rows() == [("+I", 0, None), ("+I", 1, "a")]
    assert report.rows_refused == 1


EVERY_TYPE = {
    "id": (pa.int64(), 7),
    "text": (pa.string(), 'a "ü"'),
    "yes": (pa.bool_(), True),
    "real": (pa.float64(), float("inf")),
    "price": (pa.decimal128(20, 4), Decimal("1234567890.1234")),
    "day": (pa.date32(), date(2026, 11, 25)),
    "at": (pa.timestamp("us", "UTC"), datetime(2026, 11, 25, 1, 2, 3, 456789, UTC)),
    "data": (pa.binary(), b"\x00\xff"),
    "several": (pa.list_(pa.int64()), [1, 2]),
    "named": (pa.map_(pa.string(), pa.int64()), [("a", 1)]),
    "part": (pa.struct([("x", pa.int64())]), {"x": 1}),
    "nothing": (pa.string(), None),
}
DDL = (
    "id bigint, text string, yes boolean, real double, price decimal(20,4), day date, at timestamp, data binary, "
    "several array<bigint>, named map<string,bigint>, part struct<x: bigint>, nothing string"
)


AVRO_OF_EVERY_TYPE = {
    "id": "long", "text": "string", "yes": "boolean", "real": "double",
    "price": {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 4},
    "day": {"type": "int", "logicalType": "date"},
    "at": {"type": "long", "logicalType": "timestamp-micros"},
    "data": "bytes",
    "several": {"type": "array", "items": "long"},
    "named": {"type": "map", "values": ["null", "long"]},
    "part": {"type": "record", "name": "Part", "fields": [{"name": "x", "type": ["long", "null"]}]},
    "nothing": ["null", "string"],
}  # fmt: skip


def avro_record(fields: dict[str, Any]) -> str:
    given = [{"name": name, "type": kind} for name, kind in fields.items()]
    return json.dumps({"type": "record", "name": "Row", "fields": given})


@pytest.mark.parametrize("format", ["json", "avro"])
def test_what_a_sink_writes_a_source_reads(
    spark: SparkSession, tmp_path: Path, topics: Topics, format: Any
) -> None:
    topic = topics.new()
    (tmp_path / "feed").mkdir()
    table = pa.table({name: pa.array([value], kind) for name, (kind, value) in EVERY_TYPE.items()})
    pq.write_table(table, tmp_path / "feed" / "1.parquet")
    avro = avro_record(AVRO_OF_EVERY_TYPE)
    written, read_by = ("", DDL) if format == "json" else (avro, avro)
    with StateEngine(tmp_path / "root", spark) as engine:
        there = StatefulJob("there")
        rows = there.source("rows", FileSource(str(tmp_path / "feed")))
        sink = KafkaSink(
            topics.servers, topic, format=format, schema=written, timestamp="at", key=["id", "day"]
        )
        rows.sink("out", sink)
        engine.run(there)
        back = StatefulJob("back")
        read = back.source("rows", KafkaSource(topics.servers, topic, format=format, schema=read_by))
        read.sink("out", DeltaSink(str(tmp_path / "back")))
        engine.run(back)
    assert (
        DeltaTable(str(tmp_path / "back")).to_pyarrow_table().cast(table.schema).to_pylist()
        == table.to_pylist()
    )
    (record,) = topics.committed(topic)
    assert record["key"] == '{"id":7,"day":"2026-11-25"}'
    assert record["timestamp"] == datetime(2026, 11, 25, 1, 2, 3, 456000)
    if format == "json":
        assert json.loads(record["value"])["real"] == "Infinity"


def test_columns_have_any_name_in_records(spark: SparkSession, tmp_path: Path, topics: Topics) -> None:
    topic = topics.new()
    ddl = ", ".join(f"{quoted(name)} string" for name in ODD_NAMES)
    row = tuple(f"v{place}" for place, _ in enumerate(ODD_NAMES))
    with StateEngine(tmp_path / "root", spark) as engine:
        there = StatefulJob("there")
        rows = there.from_collection([row], ddl)
        rows.sink("out", KafkaSink(topics.servers, topic, key=ODD_NAMES[:2]))
        engine.run(there)
        back = StatefulJob("back")
        back.source("rows", KafkaSource(topics.servers, topic, schema=ddl)).sink(
            "out", FileSink(str(tmp_path / "back"))
        )
        engine.run(back)
    read = ds.dataset(tmp_path / "back", partitioning="hive").to_table().select(ODD_NAMES)
    assert read.to_pylist() == [dict(zip(ODD_NAMES, row, strict=True))]
    (record,) = topics.committed(topic)
    assert json.loads(record["key"]) == dict(zip(ODD_NAMES[:2], row[:2], strict=True))


def test_avro_takes_the_columns_of_its_schema(spark: SparkSession, tmp_path: Path, topics: Topics) -> None:
    """A key and a time may be left out of values; any other column may not, and none may be missing."""
    topic = topics.new()
    write_rows(tmp_path / "feed", id=[1, 2], name=["a", None], at=[datetime(2026, 1, 1, tzinfo=UTC)] * 2)
    of_name = {"name": ["null", "string"]}

    def run(fields: dict[str, Any], **options: Any) -> None:
        job = StatefulJob("there")
        sink = KafkaSink(topics.servers, topic, format="avro", schema=avro_record(fields), **options)
        job.source("rows", FileSource(str(tmp_path / "feed"))).sink("out", sink)
        with StateEngine(tmp_path / "root", spark) as engine:
            engine.run(job)

    with pytest.raises(ConfigurationError, match="sink 'out': the schema has no field for the columns"):
        run(of_name, key=["id"])
    with pytest.raises(ConfigurationError, match=r"sink 'out': there is no column for the fields \['town'\]"):
        run({**of_name, "town": "string"}, key=["id"], timestamp="at")
    with pytest.raises(ConfigurationError, match=r"sink \'out\': the column name is string, which the type"):
        run({"name": "bytes"}, key=["id"], timestamp="at")
    with pytest.raises(UserFunctionError, match=r"row 1: SinkError: .*name is null, and not in the schema"):
        run({"name": "string"}, key=["id"], timestamp="at")
    with StateEngine(tmp_path / "root", spark) as engine:
        assert engine.checkpoints("there") == [], "refused before the commit"
    assert topics.committed(topic) == []


def write_rows(directory: Path, **columns: list[Any]) -> None:
    directory.mkdir()
    pq.write_table(pa.table(columns), directory / "1.parquet")


class Latest(KeyedProcessFunction):
    """The newest name of an id, as a stream that changes."""

    accepts_changes = True
    emits_changes = True

    def open(self, runtime_context: Any) -> None:
        self.name = runtime_context.get_state(ValueStateDescriptor("name", str))

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        before = self.name.value()
        if ctx.row_kind() is RowKind.DELETE:
            self.name.clear()
            yield RowKind.DELETE, (value.id, before)
            return
        self.name.update(value.name)
        if before is not None:
            yield RowKind.UPDATE_BEFORE, (value.id, before)
        yield RowKind.UPDATE_AFTER, (value.id, value.name)


def test_deletes_become_tombstones(spark: SparkSession, tmp_path: Path, topics: Topics) -> None:
    given, topic = topics.new(), topics.new()
    for value in ('{"id": 1, "name": "a"}', '{"id": 1, "name": "b"}', None):
        topics.send(given, ("1", value))
    with StateEngine(tmp_path / "root", spark) as engine:
        job = StatefulJob("latest")
        source = KafkaSource(topics.servers, given, schema=CLICKS, changes=True, key=["id"], key_format="raw")
        names = job.source("rows", source).key_by("id").process(Latest(), uid="latest", output_type=CLICKS)
        names.sink("out", KafkaSink(topics.servers, topic, key=["id"], key_format="raw"))
        engine.run(job)
    assert [(one["key"], one["value"]) for one in topics.committed(topic)] == [
        ("1", '{"id":1,"name":"a"}'),
        ("1", '{"id":1,"name":"b"}'),
        ("1", None),
    ]


def test_deletes_become_tombstones_beside_avro(spark: SparkSession, tmp_path: Path, topics: Topics) -> None:
    """What a delete has beside its key may be null, whatever the schema says."""
    given, topic = topics.new(), topics.new()
    for value in ('{"id": 1, "name": "a"}', None):
        topics.send(given, ("1", value))
    plain = avro_record({"id": "long", "name": "string"})
    with StateEngine(tmp_path / "root", spark) as engine:
        job = StatefulJob("copies")
        source = KafkaSource(topics.servers, given, schema=CLICKS, changes=True, key=["id"], key_format="raw")
        sink = KafkaSink(topics.servers, topic, format="avro", schema=plain, key=["id"], key_format="raw")
        job.source("rows", source).sink("out", sink)
        engine.run(job)
    records = topics.committed(topic)
    assert [one["key"] for one in records] == ["1", "1"]
    assert [one["value"] for one in records] == ["\x02\x02a", None]


def test_raw_rows_with_headers_are_sent_as_they_are(
    spark: SparkSession, tmp_path: Path, topics: Topics
) -> None:
    given, topic = topics.new(), topics.new()
    topics.send(given, ("k", b"\x00\xff"), headers={"trace": b"abc"})
    with StateEngine(tmp_path / "root", spark) as engine:
        job = StatefulJob("copy")
        rows = job.source("rows", KafkaSource(topics.servers, given, format="raw"))
        rows.sink(
            "out", KafkaSink(topics.servers, topic, format="raw", headers="headers", timestamp="timestamp")
        )
        engine.run(job)
    (before,), (after,) = topics.committed(given), topics.committed(topic)
    assert {k: v for k, v in after.items() if k != "offset"} == {
        k: v for k, v in before.items() if k != "offset"
    }


YEAR_US = 365 * 86_400 * 1_000_000


@pytest.mark.parametrize(
    ("options", "bad", "why"),
    [
        ({}, ("x" * 2**20, 0), "its record of 1,048,.* bytes is larger than max.request.size=1048576"),
        ({"options": {"max.request.size": "300"}}, ("x" * 200, 0), "larger than max.request.size=300"),
        ({}, ("a", 9_000 * YEAR_US), "'at' holds 10964-.* not within the years 1 to 9999"),
        ({"timestamp": "at"}, ("a", -YEAR_US), "'at' holds 1969-01-01 .*: a record has no time before 1970"),
        ({"format": "avro", "schema": AVRO, "timestamp": "at"}, (None, 0), "name"),
    ],
)
def test_rows_that_cannot_become_records_are_refused_before_they_are_staged(
    options: dict[str, Any], bad: tuple[Any, int], why: str
) -> None:
    """Without a broker: the rules are those of the topic's format, key and client."""
    names, times = zip(("a", YEAR_US), bad, strict=True)
    at = pa.array(times, pa.int64()).cast(pa.timestamp("us", "UTC"))
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "name": pa.array(names, pa.string()), "at": at})
    options = options | (
        {"schema": AVRO.replace('["null", "string"]', '"string"')} if "schema" in options else {}
    )
    refused = refused_rows(KafkaSink("broker:9092", "clicks", **options)._target().rules(), rows)
    assert list(refused) == [1]
    assert re.search(why, refused[1])


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
