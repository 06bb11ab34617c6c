"""Text that is not UTF-8, in every format and on every way: the row is named, or set aside as bytes, and no other."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from state_engine import DeltaSink, DeltaSource, FileSource, MapFunction, StateEngine, StatefulJob
from state_engine.core.errors import SourceError, UserFunctionError
from state_engine.core.types.beyond_python import shown
from state_engine.core.types.invalid_text import invalid_text

BAD = b"caf\xe9"
TEXTS = [b"ok", BAD, "grün".encode()]
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
    lines = [b'{"k":%d,"s":"%s"}' % (i + 1, t) for i, t in enumerate(TEXTS)]
    (directory / "json" / "a.json").write_bytes(b"\n".join(lines))
    (directory / "csv" / "a.csv").write_bytes(b"\n".join(b"%d,%s" % (i + 1, t) for i, t in enumerate(TEXTS)))
    quoted = [b'%d;"%s"' % (i + 1, t) for i, t in enumerate(TEXTS)]
    (directory / "quoted" / "a.csv").write_bytes(b"\n".join([b"k;s", *quoted]))
    pq.write_table(pa.table({"k": [1, 2, 3], "s": text([*TEXTS])}), directory / "parquet" / "a.parquet")
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
