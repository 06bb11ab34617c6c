"""Times and texts that Spark or Arrow holds and Python cannot: the row is a letter, or is named; the others go on."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from state_engine import (
    DeltaSink,
    DeltaSource,
    FileSource,
    KeyedProcessFunction,
    MapFunction,
    Row,
    RuntimeContext,
    StateEngine,
    StatefulJob,
    ValueStateDescriptor,
    max_,
)
from state_engine.core.errors import SourceError, StatelakeError, UserFunctionError
from state_engine.core.types.beyond_python import shown, undecodable
from state_engine.core.types.invalid_text import invalid_text
from state_engine.sources.base import Source
from tests.support.limits import SetLimits

FAR = 1_709_251_200_000_000_000
"""Epoch milliseconds that were taken for seconds: in the year 56134."""
INSTANT, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")
KINDS: dict[str, tuple[pa.DataType, Any, Any, str]] = {
    "far": (INSTANT, FAR, 0, "56134-01-06T00:00:00.000000Z"),
    "local": (LOCAL, FAR, 0, "56134-01-06T00:00:00.000000"),
    "the next year": (INSTANT, 253_402_300_800_000_000, 253_402_300_799_999_999, "10000-01-01"),
    "before year 1": (LOCAL, -62_135_596_800_000_001, -62_135_596_800_000_000, "0000-12-31"),
    "least": (LOCAL, -(2**63) + 1, 0, "-290308-12-21"),
    "date": (pa.date32(), 2_932_897, 2_932_896, "10000-01-01"),
    "old date": (pa.date32(), -719_163, -719_162, "0000-12-31"),
    "in a list": (pa.list_(LOCAL), [0, FAR], [0, None], "56134-01-06"),
    "in a record": (pa.struct([("a", pa.int64()), ("b", LOCAL)]), {"a": 1, "b": FAR}, {"a": 1, "b": 0}, "56134-01-06"),
    "in a map": (pa.map_(pa.string(), LOCAL), [("a", FAR)], [("a", 0)], "56134-01-06"),
}  # fmt: skip


@pytest.mark.parametrize("what", KINDS)
def test_rows_that_python_cannot_hold_are_found(what: str) -> None:
    kind, bad, good, text = KINDS[what]
    column = pa.array([good, bad, None, good, bad], kind)
    assert list(undecodable({"n": pa.array(range(5)), "at": column})) == [1, 4]
    assert list(undecodable({"at": column.slice(2)})) == [2]
    name, reason = undecodable({"at": pa.chunked_array([column[:1], column[1:]])})[1]
    assert name == "at"
    assert text in reason
    assert undecodable({"at": pa.array([good, None], kind)}) == {}


class Seen(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", int, default=0))

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[int, str]]:
        self.count.update(self.count.value() + 1)
        yield value.id, str(value.at)


def shifted(rows: DataFrame) -> DataFrame:
    return rows.withColumn("at", F.col("at") + F.expr("make_interval(id % 2 * 9000)"))


def write(path: Path, form: str, *, far: bool = True) -> Source:
    times = pa.array([0, FAR if far else 1, 2_000_000], INSTANT)
    table = pa.table({"id": [0, 1, 2], "k": ["a", "b", "a"], "at": times})
    path.mkdir()
    if form == "delta":
        write_deltalake(str(path), table)
        return DeltaSource(str(path))
    pq.write_table(table, path / "1.parquet")
    options: dict[str, Any] = {"options": {"mergeSchema": "false"}} if form == "spark" else {}
    return FileSource(str(path), **options)


def job_over(source: Source, directory: Path, on_error: Any, what: str) -> StatefulJob:
    job = StatefulJob("far", on_error=on_error)
    timed = "at" if what == "event time" else None
    stream = job.source("rows", source, event_time=timed, order_by=["at"] if what == "order" else [])
    if what == "transform":
        stream = stream.transform(shifted)
    keyed = stream.key_by("at" if what == "key" else "k")
    if what == "columns":
        out = keyed.aggregate(last=max_("at"), uid="seen")
    else:
        out = keyed.process(Seen(), uid="seen", output_type="id bigint, at string")
    out.sink("out", DeltaSink(str(directory / "out")))
    return job


@pytest.mark.parametrize(("form", "what"), [
    *[("driver", what) for what in ("element", "key", "order", "event time", "transform", "columns")],
    *[(form, what) for form in ("tasks", "spark", "delta") for what in ("element", "event time")],
])  # fmt: skip
def test_the_row_is_a_letter_and_the_others_go_on(
    tmp_path: Path, spark: SparkSession, limits: SetLimits, form: str, what: str
) -> None:
    if form == "tasks":
        limits(stored_bytes=0)
    source = write(tmp_path / "feed", form, far=what != "transform")
    engine = StateEngine(tmp_path / "root", spark)
    job = job_over(source, tmp_path, "fail", what)
    with pytest.raises((StatelakeError, SourceError), match=r"the column 'at' holds .*not within") as failed:
        engine.run(job)
    assert "row 1" in str(failed.value) or what == "transform"
    job = job_over(source, tmp_path, "dead_letter", what)
    engine.run(job)
    rows = DeltaTable(str(tmp_path / "out")).to_pyarrow_table()
    if what != "columns":
        assert sorted(rows["id"].to_pylist()) == [0, 2]
    (letter,) = engine.list_dead_letters(job)
    assert "the column 'at' holds " in letter.error
    assert "not within the years 1 to 9999" in letter.error
    assert '"id": 1' in str(letter.row)


TEXTS: dict[str, list[str]] = {
    "csv": ["10000-01-01T00:00:00Z", "+10000-01-01T00:00:00Z", "0000-12-31T00:00:00Z", "1704448800000", str(-(2**63))],
    "json": ['"10000-01-01T00:00:00Z"', '"0000-12-31T00:00:00Z"', "1704448800000", str(-(2**63)), str(2**63 - 1),
             "253402300800", "-62135596801", "1e30"],
}  # fmt: skip
"""Times that Python cannot hold, as text; most are milliseconds that look like seconds."""


@pytest.mark.parametrize("form", TEXTS)
@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz", "date"])
def test_of_text_the_row_is_a_letter_and_the_others_go_on(
    tmp_path: Path, spark: SparkSession, form: Any, kind: str
) -> None:
    texts = ["2024-01-05", *TEXTS[form], "9999-12-31"]
    if form == "json":
        texts = [f'"{texts[0]}"', *texts[1:-1], f'"{texts[-1]}"']
    line = "{},k,{}" if form == "csv" else '{{"id": {}, "k": "k", "at": {}}}'
    lines = [line.format(place, text) for place, text in enumerate(texts)]
    (tmp_path / "feed").mkdir()
    (tmp_path / "feed" / "1").write_text("\n".join(lines))
    source = FileSource(str(tmp_path / "feed"), schema=f"id bigint, k string, at {kind}", format=form)
    engine = StateEngine(tmp_path / "root", spark)
    with pytest.raises(SourceError, match=r"source 'rows'.*/1: row 1: column 'at': .*declare"):
        engine.run(job_over(source, tmp_path, "fail", "event time"))
    job = job_over(source, tmp_path, "dead_letter", "event time")
    engine.run(job)
    rows = DeltaTable(str(tmp_path / "out")).to_pyarrow_table()
    assert sorted(rows["id"].to_pylist()) == [0, len(texts) - 1]
    letters = engine.list_dead_letters(job)
    assert [letter.row for letter in letters] == lines[1:-1]
    for text, letter in zip(texts[1:-1], letters, strict=True):
        assert "column 'at': " in letter.error
        assert text.strip('"') in letter.error
        assert "declare" in letter.error


BAD = b"caf\xe9"
INVALID_TEXTS = [b"ok", BAD, "grün".encode()]
GOOD = [(1, "ok"), (3, "grün")]
COLUMNS = "k bigint, s string"


def text(values: list[bytes | None]) -> pa.Array:
    return pa.array(values, pa.binary()).view(pa.string())


def test_rows_are_found_at_any_depth_and_shown_without_losing_a_byte() -> None:
    flat = text([b"a", BAD, None, b"b"])
    offsets = [0, 1, 1, 3, 4]
    columns = {
        "list": pa.ListArray.from_arrays(offsets, flat),
        "map": pa.MapArray.from_arrays(offsets, flat.take(pa.array([0, 0, 3, 1])), flat),
        "struct": pa.StructArray.from_arrays([flat, flat], ["x", "y"]),
    }
    assert invalid_text({"list": columns["list"]}) == {2: "list"}
    assert invalid_text({"map": columns["map"]}) == {2: "map", 3: "map"}
    assert invalid_text({"n": pa.array([1] * 4), **columns}) == {1: "struct", 2: "list", 3: "map"}
    assert invalid_text(
        {"list": pa.chunked_array([columns["list"].slice(3), columns["list"].slice(1, 2)])}
    ) == {2: "list"}
    mark = {"base64": base64.b64encode(BAD).decode()}
    assert shown(columns["list"], 2) == [mark, None]
    assert shown(columns["struct"], 1) == {"x": mark, "y": mark}
    assert shown(columns["map"], 3) == [[mark, "b"]]


def prepared(directory: Path, spark: SparkSession) -> dict[str, Any]:
    """One bad text in each format; the Parquet file both as the driver reads it and as Spark does."""
    for name in ("json", "csv", "parquet", "quoted"):
        (directory / name).mkdir()
    lines = [b'{"k":%d,"s":"%s"}' % (i + 1, t) for i, t in enumerate(INVALID_TEXTS)]
    (directory / "json" / "a.json").write_bytes(b"\n".join(lines))
    (directory / "csv" / "a.csv").write_bytes(
        b"\n".join(b"%d,%s" % (i + 1, t) for i, t in enumerate(INVALID_TEXTS))
    )
    quoted = [b'%d;"%s"' % (i + 1, t) for i, t in enumerate(INVALID_TEXTS)]
    (directory / "quoted" / "a.csv").write_bytes(b"\n".join([b"k;s", *quoted]))
    pq.write_table(
        pa.table({"k": [1, 2, 3], "s": text([*INVALID_TEXTS])}), directory / "parquet" / "a.parquet"
    )
    spark.read.parquet(str(directory / "parquet")).write.format("delta").save(str(directory / "delta"))
    options = {"header": "true", "sep": ";", "multiLine": "true"}
    return {
        "json": FileSource(str(directory / "json"), schema=COLUMNS, format="json"),
        "csv": FileSource(str(directory / "csv"), schema=COLUMNS, format="csv"),
        "quoted": FileSource(str(directory / "quoted"), schema=COLUMNS, format="csv", options=options),
        "parquet": FileSource(str(directory / "parquet"), schema=COLUMNS),
        "by_spark": FileSource(str(directory / "parquet"), schema=COLUMNS, options={"mergeSchema": "false"}),
        "delta": DeltaSource(str(directory / "delta")),
    }


class Same(MapFunction):
    def map(self, value: Any) -> Any:
        return value


FORMATS = ["json", "csv", "quoted", "parquet", "by_spark", "delta"]
WAYS = {name: ["by_function"] for name in FORMATS} | {
    "parquet": ["by_function", "by_column", "sink"],
    **{name: ["by_column", "sink"] for name in ("by_spark", "csv", "json")},
}
LINES = {"json": b'{"k":2,"s":"' + BAD + b'"}', "csv": b"2," + BAD, "quoted": b'2;"' + BAD + b'"'}
"""The refused line of a file of text, which is its letter."""
QUICK = {("json", "by_column"), ("csv", "sink"), ("parquet", "by_function")}


class Texts:
    """The sources with their bad texts, and jobs that read them."""

    def __init__(self, directory: Path, spark: SparkSession) -> None:
        self.directory, self.sources = directory, prepared(directory, spark)
        self.engine = StateEngine(directory / "root", spark)

    def job(self, name: str, way: str, on_error: str) -> StatefulJob:
        job = StatefulJob(f"{name}_{way}_{on_error}", on_error=on_error)
        stream = job.source("texts", self.sources[name])
        if way == "by_column":
            stream = stream.key_by("s").map(Same(), uid="same", output_type=COLUMNS)
        elif way == "by_function":
            stream = stream.key_by(lambda r: r.s, key_type=str).map(Same(), uid="same", output_type=COLUMNS)
        stream.sink("out", DeltaSink(str(self.directory / "out" / job.name)))
        return job

    def outputs(self, job: StatefulJob) -> list[tuple[Any, ...]]:
        rows = DeltaTable(str(self.directory / "out" / job.name)).to_pyarrow_table().to_pylist()
        return sorted(tuple(row.values()) for row in rows)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Texts:
    return Texts(tmp_path_factory.mktemp("texts"), spark)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("name", "way"),
    [pytest.param(n, w, marks=() if (n, w) in QUICK else pytest.mark.long) for n in FORMATS for w in WAYS[n]],
)
def test_a_bad_text_is_set_aside(texts: Texts, name: str, way: str) -> None:
    job = texts.job(name, way, "dead_letter")
    (batch,) = texts.engine.run(job).batches
    assert (batch.rows_in, batch.rows_refused, batch.rows_out) == (3, 1, {"out": 2})
    assert texts.outputs(job) == GOOD
    (letter,) = texts.engine.dead_letters(job).collect()
    if name in LINES:
        assert base64.b64decode(json.loads(letter.row)["base64"]) == LINES[name]
        data = bytes(letter.data)  # with its header, where the file has one
        assert data.endswith(b"\n" + LINES[name]) if name == "quoted" else data == LINES[name]
    else:
        mark = base64.b64encode(BAD).decode()
        assert json.loads(letter.row) == {"k": 2, "s": {"base64": mark}}
        assert letter.error == "SourceError: the column 's' holds text that is not UTF-8"
    assert letter.source == "texts"
    assert "source 'texts', file:" in letter.position
    assert letter.position.endswith(", row 1")


@pytest.mark.spark
@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("parquet", "by_function"),
        ("csv", "sink"),
        pytest.param("json", "by_column", marks=pytest.mark.long),
        pytest.param("delta", "by_column", marks=pytest.mark.long),
    ],
)
def test_a_bad_text_is_named(texts: Texts, name: str, way: str) -> None:
    job = texts.job(name, way, "fail")
    with pytest.raises((UserFunctionError, SourceError), match=r"file:.*/a\.|part-0") as caught:
        texts.engine.run(job)
    assert "UTF-8" in str(caught.value)
    assert texts.engine.checkpoints(job) == []
