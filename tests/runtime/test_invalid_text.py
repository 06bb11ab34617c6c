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
from state_engine.core.types.invalid_text import invalid_text, shown

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


@pytest.mark.spark
def test_a_bad_text_is_named_or_set_aside(tmp_path: Path, spark: SparkSession) -> None:
    engine = StateEngine(tmp_path / "root", spark)

    def job(name: str, way: str, on_error: str) -> StatefulJob:
        job = StatefulJob(f"{name}_{way}_{on_error}", on_error=on_error)
        stream = job.source("texts", sources[name])
        if way == "by_column":
            stream = stream.key_by("s").map(Same(), uid="same", output_type=COLUMNS)
        elif way == "by_function":
            stream = stream.key_by(lambda r: r.s, key_type=str).map(Same(), uid="same", output_type=COLUMNS)
        stream.sink("out", DeltaSink(str(tmp_path / "out" / job.name)))
        return job

    def outputs(made: StatefulJob) -> list[tuple[Any, ...]]:
        rows = DeltaTable(str(tmp_path / "out" / made.name)).to_pyarrow_table().to_pylist()
        return sorted(tuple(row.values()) for row in rows)

    sources = prepared(tmp_path, spark)
    both = ["by_column", "sink"]
    ways = {"parquet": ["by_function", *both], "by_spark": both, "csv": both, "json": both}
    for name, way in [(n, w) for n in sources for w in ways.get(n, ["by_function"])]:
        made = job(name, way, "dead_letter")
        (batch,) = engine.run(made).batches
        assert (batch.rows_in, batch.rows_refused, batch.rows_out) == (3, 1, {"out": 2}), (name, way)
        assert outputs(made) == GOOD, (name, way)
        (letter,) = engine.dead_letters(made).collect()
        mark = base64.b64encode(BAD).decode()
        if name == "json":
            assert base64.b64decode(json.loads(letter.row)["base64"]) == b'{"k":2,"s":"' + BAD + b'"}'
            assert bytes(letter.data) == b'{"k":2,"s":"' + BAD + b'"}'
        else:
            assert json.loads(letter.row) == {"k": 2, "s": {"base64": mark}}, (name, way)
            assert letter.error == "SourceError: the column 's' holds text that is not UTF-8"
        assert letter.source == "texts"
        assert "source 'texts', file:" in letter.position, (name, way)
        assert letter.position.endswith(", row 1"), (name, letter.position)
    for name, way in [
        ("parquet", "by_function"),
        ("csv", "sink"),
        ("json", "by_column"),
        ("delta", "by_column"),
    ]:
        made = job(name, way, "fail")
        with pytest.raises((UserFunctionError, SourceError), match=r"file:.*/a\.|part-0") as caught:
            engine.run(made)
        assert "UTF-8" in str(caught.value), name
        assert engine.checkpoints(made) == []
