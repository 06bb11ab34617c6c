"""Columns that a Parquet file does not have, has besides, or spells otherwise: one rule, whoever reads the file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from state_engine.core.errors import BadFileError
from state_engine.sources.file import FileSource
from tests.sources.runs import SourceRun
from tests.support.limits import SetLimits
from tests.support.read_rows import table_of

READERS: dict[str, dict[str, Any]] = {
    "driver": {},
    "tasks": {},
    "spark": {"options": {"mergeSchema": "false"}},
}
SCHEMA = "k bigint, v string"
ROWS: dict[str, tuple[dict[str, list[Any]], list[dict[str, Any]]]] = {
    "as declared": ({"k": [1], "v": ["a"]}, [{"k": 1, "v": "a"}]),
    "in another order": ({"v": ["a"], "k": [1]}, [{"k": 1, "v": "a"}]),
    "a further one": ({"k": [1], "x": [7], "v": ["a"]}, [{"k": 1, "v": "a"}]),
    "another case": ({"K": [1], "v": ["a"]}, [{"k": 1, "v": "a"}]),
    "none": ({"k": [1]}, [{"k": 1, "v": None}]),
}
REFUSED: dict[str, tuple[dict[str, list[Any]], str]] = {
    "a further one": ({"k": [1], "x": [7], "v": ["a"]}, r"1\.parquet: the file has 'x' besides the declared"),
    "none": (
        {"k": [1], "w": ["a"]},
        r"1\.parquet: the file has no column 'v', .*it has \['w'\] that are not declared",
    ),
    "two that differ by case": (
        {"k": [1], "V": ["a"], "v": ["b"]},
        r"1\.parquet: the columns \['V', 'v'\] differ",
    ),
}


@pytest.fixture(params=READERS)
def reader(request: pytest.FixtureRequest, limits: SetLimits) -> dict[str, Any]:
    """What makes one of the three readers read."""
    if request.param == "tasks":
        limits(stored_bytes=0)
    options: dict[str, Any] = READERS[request.param]
    return options


def write(directory: Path, *tables: dict[str, list[Any]]) -> None:
    for number, columns in enumerate(tables):
        pq.write_table(pa.table(columns), directory / f"{number}.parquet")


def rows_of(spark: SparkSession, source: FileSource) -> list[dict[str, Any]]:
    part = source.plan(spark, [])
    assert part is not None
    table = table_of(spark, source.read(spark, part, keep_refused=False).rows)
    return table.sort_by([("_statelake_file", "ascending")]).select(["k", "v"]).to_pylist()


@pytest.mark.parametrize("what", ROWS)
def test_columns_go_by_name(tmp_path: Path, spark: SparkSession, reader: dict[str, Any], what: str) -> None:
    columns, expected = ROWS[what]
    write(tmp_path, {"k": [0], "v": ["b"]}, columns)
    rows = rows_of(spark, FileSource(str(tmp_path), schema=SCHEMA, **reader))
    assert rows == [{"k": 0, "v": "b"}, *expected]


@pytest.mark.parametrize("what", REFUSED)
def test_a_file_that_lacks_a_column_or_has_too_many_is_refused(
    tmp_path: Path, spark: SparkSession, reader: dict[str, Any], what: str
) -> None:
    columns, message = REFUSED[what]
    write(tmp_path, {"k": [0], "v": ["b"]}, columns)
    source = FileSource(str(tmp_path), schema=SCHEMA, missing="refuse", further="refuse", **reader)
    with pytest.raises(BadFileError, match=message) as bad:
        rows_of(spark, source)
    assert bad.value.uri == f"file://{tmp_path}/1.parquet"
    aside = replace(source, on_bad_file="dead_letter")
    assert rows_of(spark, aside) == [{"k": 0, "v": "b"}]


def test_the_letter_of_a_file_that_lacks_a_column_names_it(tmp_path: Path, spark: SparkSession) -> None:
    feed = tmp_path / "feed"
    feed.mkdir()
    write(feed, {"id": [0]}, {"di": [1]}, {"id": [2], "x": [3]})
    source = FileSource(str(feed), schema="id bigint", missing="refuse", on_bad_file="dead_letter")
    run = SourceRun(spark, tmp_path, source, on_error="dead_letter")
    assert [(batch.rows_in, batch.rows_refused) for batch in run.run()] == [(2, 1)]
    assert run.ids() == [0, 2]
    (letter,) = run.engine.list_dead_letters(run.job)
    assert letter.row == f"file://{feed}/1.parquet"
    assert "has no column 'id'" in letter.error
