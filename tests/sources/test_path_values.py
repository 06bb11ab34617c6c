"""Values of directories: those that Spark gives for the directory, whoever reads, in every format; or a refusal."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from state_engine.core.errors import BadFileError, SourceError
from state_engine.core.types.ddl import ddl_text
from state_engine.core.types.type_parsing import to_type
from state_engine.sources.base import FILE_COLUMN
from state_engine.sources.file import FileSource
from state_engine.sources.path_values import inferred_columns, texts_in_path, values_in_path
from tests.sources.runs import SourceRun
from tests.support.limits import SetLimits
from tests.support.read_rows import table_of

NO_SPARK: Any = None
VALUES: list[tuple[str, str, Any]] = [
    ("string", "a%20b", "a b"), ("string", "c%2Fd", "c/d"), ("string", "007", "007"), ("string", "", ""),
    ("int", "007", 7), ("int", "-3", -3), ("int", "__HIVE_DEFAULT_PARTITION__", None),
    ("bigint", "3000000000", 3 * 10**9),
    ("double", "1.5", 1.5), ("double", "1e3", 1000.0), ("double", "inf", float("inf")),
    ("decimal(5,2)", "1.25", Decimal("1.25")),
    ("boolean", "true", True), ("boolean", "FALSE", False), ("date", "2024-01-05", date(2024, 1, 5)),
    ("date", "2024-1-5", date(2024, 1, 5)), ("binary", "ab", b"ab"),
    ("timestamp", "2024-01-05 10%3A00%3A00", datetime(2024, 1, 5, 10, tzinfo=UTC)),
    ("timestamp", "2024-01-05T10%3A00%3A00.5+02%3A00", datetime(2024, 1, 5, 8, 0, 0, 500_000, tzinfo=UTC)),
    ("timestamp", "2024-01-05", datetime(2024, 1, 5, tzinfo=UTC)),
    ("timestamp_ntz", "2024-01-05 10%3A00%3A00", datetime(2024, 1, 5, 10)),
]  # fmt: skip
REFUSED = [
    ("int", "x"), ("int", "3000000000"), ("int", "1.0"), ("int", ""), ("tinyint", "200"), ("double", "1_0"),
    ("double", "x"), ("decimal(5,2)", "1.255"), ("decimal(5,2)", "10000"), ("boolean", "yes"), ("date", "2024-13-01"),
    ("date", "2024-01-05x"), ("date", "2024-01-05 10:00:00"), ("timestamp", "10:00"), ("timestamp_ntz", "2024-01-05Z"),
    ("array<int>", "1"), ("double", "1e400"), ("double", "9007199254740993"), ("date", "0000-01-01"),
    ("timestamp", "2024-02-30 10:00:00"), ("int", "٣"), ("boolean", ""), ("double", "0.10000000000000000001"),
]  # fmt: skip


def columns(ddl: str) -> list[pa.Field]:
    return list(to_type(ddl, parameter="schema").arrow)


@pytest.mark.parametrize(("kind", "text", "value"), VALUES)
def test_a_text_is_a_value_of_the_declared_type(kind: str, text: str, value: Any) -> None:
    assert values_in_path(f"file:///in/c={text}/x", "file:///in", columns(f"c {kind}, d int")) == {"c": value}


@pytest.mark.parametrize(("kind", "text"), REFUSED)
def test_a_text_that_is_no_value_is_refused_with_file_column_and_value(kind: str, text: str) -> None:
    uri = f"file:///in/c={text}/x"
    with pytest.raises(BadFileError) as refused:
        values_in_path(uri, "file:///in", columns(f"c {kind}"))
    assert refused.value.uri == uri
    assert f"{uri}: the directory gives column 'c' the value {text!r}, which is not a {kind}." in str(
        refused.value
    )


@pytest.mark.parametrize("text", ["%FF", "caf%E9", "%ED%A0%80"])
def test_bytes_that_are_not_utf_8_are_refused(text: str) -> None:
    with pytest.raises(
        BadFileError, match=r"the directory gives column 'c' the value .* which is not a string"
    ):
        values_in_path(f"file:///in/c={text}/x", "file:///in", columns("c string"))
    assert values_in_path("file:///in/c=caf%C3%A9/x", "file:///in", columns("c string")) == {"c": "café"}


def test_only_directories_below_the_path_of_the_source_count() -> None:
    uri = "file:///in/day=1/hour=2/x=3.csv"
    assert texts_in_path(uri, "file:///in") == [("day", "1"), ("hour", "2")]
    assert texts_in_path(uri, "file:///in/day=1") == [("hour", "2")]
    assert texts_in_path(uri, uri) == []


def test_names_go_as_names_of_columns_do() -> None:
    assert values_in_path("file:///in/Day=1/x", "file:///in", columns("day int")) == {"day": 1}
    with pytest.raises(BadFileError, match="'day' is declared: rename"):
        values_in_path("file:///in/day=1/DAY=2/x", "file:///in", columns("day int"))


INFERRED = {
    "i": ["1", "2"], "l": ["1", "3000000000"], "dec": ["1", "99999999999999999999"], "dbl": ["1", "1.5"],
    "date": ["2024-01-05", "2024-02-06"], "odd": ["2024-01-05", "2024-1-6"],
    "at": ["2024-01-05", "2024-01-05 10:00:00"], "s": ["1", "a"], "z": ["007", "08"], "b": ["true", "false"],
    "n": ["__HIVE_DEFAULT_PARTITION__", "3"], "mix": ["2024-01-05", "3"], "zoned": ["2024-01-05T10:00:00Z"],
    "sp": ["a%20b", "c%2Fd"], "f": ["1.0f", "2.0d"], "nan": ["NaN"], "e": ["1e5"], "neg": ["-1", "+2"],
    "ld": ["3000000000", "1.5"], "decd": ["99999999999999999999", "1.5"], "month": ["2024-01"], "no": ["2024-13-01"],
}  # fmt: skip


def test_types_are_inferred_as_spark_infers_them(tmp_path: Path, spark: SparkSession) -> None:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    for name, texts in INFERRED.items():
        for number, text in enumerate(texts):
            write(tmp_path / name / f"c={text}", {"id": [number]}, "parquet")
        theirs = spark.read.parquet(str(tmp_path / name))
        uris = [f"file://{tmp_path}/{name}/c={text}/0.parquet" for text in texts]
        (mine,) = inferred_columns(uris, f"file://{tmp_path}/{name}")
        assert (name, ddl_text(mine.type)) == (name, theirs.schema["c"].dataType.simpleString())
        table = sorted(rows_of(spark, FileSource(str(tmp_path / name))), key=lambda row: row["id"])
        assert [str(row["c"]) for row in table] == [
            str(r["c"]) for r in theirs.orderBy("id").toArrow().to_pylist()
        ]


def write(directory: Path, rows: dict[str, list[Any]], form: str, name: str = "0") -> None:
    directory.mkdir(parents=True, exist_ok=True)
    table = pa.table(rows)
    if form == "parquet":
        pq.write_table(table, directory / f"{name}.parquet")
    elif form == "json":
        (directory / f"{name}.json").write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    else:
        lines = [",".join(map(str, row.values())) for row in table.to_pylist()]
        (directory / f"{name}.csv").write_text("\n".join(lines) + "\n")


def rows_of(spark: SparkSession, source: FileSource, before: Any = ()) -> list[dict[str, Any]]:
    """The rows in the order of files, without hidden columns."""
    part = source.plan(spark, list(before))
    assert part is not None
    table = table_of(spark, source.read(spark, part, keep_refused=False).rows)
    ordered = table.sort_by([(FILE_COLUMN, "ascending")])
    return ordered.select([c for c in ordered.column_names if not c.startswith("_statelake")]).to_pylist()


READERS: dict[str, tuple[str, dict[str, Any]]] = {
    "driver": ("parquet", {}),
    "tasks": ("parquet", {}),
    "spark": ("parquet", {"options": {"mergeSchema": "false"}}),
    "csv": ("csv", {}),
    "json": ("json", {}),
}


@pytest.fixture(params=READERS)
def reader(request: pytest.FixtureRequest, limits: SetLimits) -> tuple[str, dict[str, Any]]:
    """A format, and what makes one of the three readers of Parquet read."""
    if request.param == "tasks":
        limits(stored_bytes=0)
    return READERS[request.param]


def test_every_reader_gives_what_spark_gives_for_the_directory(
    tmp_path: Path, spark: SparkSession, reader: tuple[str, dict[str, Any]]
) -> None:
    form, options = reader
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    days = ["2024-01-05", "2024-01-06", "__HIVE_DEFAULT_PARTITION__"]
    for number, (day, place) in enumerate((d, p) for d in days for p in ("a%2Fb", "ü c")):
        write(tmp_path / f"day={day}" / f"place={place}", {"id": [number, number]}, form)
    schema = "day date, id bigint, place string"
    rows = rows_of(spark, FileSource(str(tmp_path), schema=schema, format=form, **options))  # type: ignore[arg-type]
    theirs = spark.read.schema(schema).format(form).load(str(tmp_path)).select("day", "id", "place")
    key = repr
    assert sorted(rows, key=key) == sorted(theirs.toArrow().to_pylist(), key=key)
    assert list(rows[0]) == ["day", "id", "place"]
    assert {row["place"] for row in rows} == {"a/b", "ü c"}
    assert [row["day"] for row in rows].count(None) == 4


def test_the_path_wins_over_the_file_and_the_file_where_the_path_says_nothing(
    tmp_path: Path, spark: SparkSession, reader: tuple[str, dict[str, Any]]
) -> None:
    form, options = reader
    if form != "csv":  # whose columns go by their places, as in Spark
        write(tmp_path / "c=1", {"id": [0], "c": [9]}, form)
        rows = rows_of(spark, FileSource(str(tmp_path), schema="id bigint, c bigint", format=form, **options))  # type: ignore[arg-type]
        assert rows == [{"id": 0, "c": 1}]
    else:
        write(tmp_path / "c=1", {"id": [0], "c": [1]}, form)
    write(tmp_path, {"id": [1], "c": [7]}, form, "z")
    rows = rows_of(spark, FileSource(str(tmp_path), schema="id bigint, c bigint", format=form, **options))  # type: ignore[arg-type]
    assert rows == [{"id": 0, "c": 1}, {"id": 1, "c": 7}]


def test_values_of_every_type_in_every_reader(
    tmp_path: Path, spark: SparkSession, reader: tuple[str, dict[str, Any]]
) -> None:
    form, options = reader
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    kinds = [(f"c{i}", kind, text, value) for i, (kind, text, value) in enumerate(VALUES) if text]
    write(tmp_path.joinpath(*[f"{name}={text}" for name, _, text, _ in kinds]), {"id": [1]}, form)
    schema = ", ".join(["id bigint", *[f"{name} {kind}" for name, kind, _, _ in kinds]])
    (row,) = rows_of(spark, FileSource(str(tmp_path), schema=schema, format=form, **options))  # type: ignore[arg-type]
    expected = {"id": 1} | {name: value for name, _, _, value in kinds}
    assert {k: str(v) for k, v in row.items()} == {k: str(v) for k, v in expected.items()}


def test_rows_whose_columns_all_come_from_their_path(
    tmp_path: Path, spark: SparkSession, reader: tuple[str, dict[str, Any]]
) -> None:
    form, options = reader
    write(tmp_path / "a=1", {"id": [1, 2]}, form)
    if form != "parquet":
        with pytest.raises(SourceError, match="declare one of the files, too"):
            rows_of(spark, FileSource(str(tmp_path), schema="a int", format=form))  # type: ignore[arg-type]
        return
    rows = rows_of(spark, FileSource(str(tmp_path), schema="a int", format=form, **options))  # type: ignore[arg-type]
    assert rows == [{"a": 1}, {"a": 1}]


def test_directories_of_values_may_begin_as_hidden_ones_do(tmp_path: Path) -> None:
    write(tmp_path / "_a=1", {"id": [1]}, "parquet")
    write(tmp_path / "_a", {"id": [1]}, "parquet")
    write(tmp_path / "_b=1", {"id": [1]}, "parquet", "_c=0")
    part = FileSource(str(tmp_path), schema="id bigint").plan(NO_SPARK, [])
    assert part is not None
    assert part.labels == [f"file://{tmp_path}/_a=1/0.parquet"]


def test_the_inferred_types_are_recorded_and_what_does_not_fit_later_is_a_letter(
    tmp_path: Path, spark: SparkSession
) -> None:
    feed = tmp_path / "feed"
    write(feed / "hour=1", {"id": [0]}, "parquet")
    write(feed / "hour=2", {"id": [1]}, "parquet")
    run = SourceRun(spark, tmp_path, FileSource(str(feed), max_files_per_batch=1))
    run.run()
    write(feed / "hour=x", {"id": [2]}, "parquet")
    write(feed / "hour=3", {"id": [3]}, "parquet")
    with pytest.raises(BadFileError, match=r"hour=x/0\.parquet: the directory gives column 'hour' the value"):
        run.run()
    run.use(FileSource(str(feed), on_bad_file="dead_letter"), on_error="dead_letter")
    run.run()
    assert [(row["id"], row["hour"]) for row in run.rows()] == [(0, 1), (1, 2), (3, 3)]
    (letter,) = run.engine.list_dead_letters(run.job)
    assert letter.row == f"file://{feed}/hour=x/0.parquet"
