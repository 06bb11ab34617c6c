"""``DeltaSource(changes=True)`` on real tables: what it reads is Delta's own change data feed, wherever it is cut."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from state_engine import DeltaSource, RowKind
from state_engine.sources.base import FILE_COLUMN, ROW_COLUMN, Element, Slice
from state_engine.sources.stream_columns import ROW_KIND

BEFORE = (RowKind.DELETE.value, RowKind.UPDATE_BEFORE.value)
TYPES = {"insert": 0, "update_preimage": 1, "update_postimage": 2, "delete": 3}


@pytest.fixture
def table(tmp_path: Path) -> str:
    """Path of the table that is read."""
    return str(tmp_path / "events ü")


def create(spark: SparkSession, table: str, *, vectors: bool = False, mapping: str = "none") -> None:
    spark.sql(
        f"CREATE TABLE delta.`{table}` (id BIGINT, part STRING, v INT) USING delta PARTITIONED BY (part) "
        f"TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true', 'delta.enableDeletionVectors' = '{str(vectors).lower()}', "
        f"'delta.columnMapping.mode' = '{mapping}')"
    )


def slices(spark: SparkSession, source: DeltaSource, before: list[Element] | None = None) -> Iterator[Slice]:
    """Slices until there is nothing new."""
    elements = list(before or [])
    while (part := source.plan(spark, elements)) is not None:
        yield part
        elements += part.elements


def rows_of(spark: SparkSession, source: DeltaSource, part: Slice) -> list[dict[str, Any]]:
    """The rows of a slice in total order; each has a place of its own."""
    frame = source.read(spark, part, keep_refused=False).rows
    assert not isinstance(frame, pa.Table)
    rows = sorted((r.asDict() for r in frame.collect()), key=lambda r: (r[FILE_COLUMN], r[ROW_COLUMN]))
    places = [(r.pop(FILE_COLUMN), r.pop(ROW_COLUMN)) for r in rows]
    assert len(set(places)) == len(places)
    return rows


def all_rows(spark: SparkSession, source: DeltaSource) -> list[dict[str, Any]]:
    return [row for part in slices(spark, source) for row in rows_of(spark, source, part)]


def own_feed(spark: SparkSession, table: str, start: int) -> Counter[str]:
    """Delta's own change data feed; the time of a commit is another one there."""
    reader = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", start)
    return Counter(text_of(r.asDict()) for r in reader.load(table).drop("_commit_timestamp").collect())


def text_of(row: dict[str, Any]) -> str:
    return json.dumps(
        {k: v for k, v in row.items() if k not in (ROW_KIND, "_commit_timestamp")}, sort_keys=True
    )


def folded(rows: list[dict[str, Any]], key: str = "id") -> dict[Any, dict[str, Any]]:
    """The rows that are left, by key."""
    left: dict[Any, dict[str, Any]] = {}
    for row in rows:
        kind = row[ROW_KIND]
        plain = {k: v for k, v in row.items() if k != ROW_KIND and not k.startswith("_c")}
        if kind in BEFORE:
            assert left.pop(row[key]) == plain, "what is taken away was there"
        else:
            assert row[key] not in left
            left[row[key]] = plain
    return left


def contents(table: str) -> dict[Any, dict[str, Any]]:
    return {r["id"]: r for r in DeltaTable(table).to_pyarrow_table().to_pylist()}


def spark_contents(spark: SparkSession, table: str) -> dict[Any, dict[str, Any]]:
    return {r["id"]: r.asDict() for r in spark.read.format("delta").load(table).collect()}


def history(spark: SparkSession, table: str) -> None:
    """Each kind of commit once; version 0 made the table."""
    name = f"delta.`{table}`"
    spark.sql(f"INSERT INTO {name} SELECT id, concat('p ', id % 2), 0 FROM range(0, 8)")
    spark.sql(f"UPDATE {name} SET v = v + 1 WHERE id IN (1, 2)")
    spark.sql(f"DELETE FROM {name} WHERE id = 3")
    spark.sql(
        f"MERGE INTO {name} t USING (SELECT explode(array(4, 5, 20, 21)) AS id) s ON t.id = s.id "
        "WHEN MATCHED AND s.id = 4 THEN DELETE WHEN MATCHED THEN UPDATE SET v = 50 "
        "WHEN NOT MATCHED THEN INSERT (id, part, v) VALUES (s.id, 'p 0', 7)"
    )
    spark.sql(f"OPTIMIZE {name}")
    spark.sql(f"DELETE FROM {name} WHERE part = 'p 1'")
    spark.sql(f"UPDATE {name} SET id = id + 100 WHERE id = 20")
    spark.sql(f"RESTORE {name} TO VERSION AS OF 3")
    spark.sql(f"DELETE FROM {name} WHERE id = 0")
    spark.sql(f"INSERT OVERWRITE {name} SELECT id, 'p 0', 9 FROM range(2, 4)")


@pytest.mark.parametrize("vectors", [False, True], ids=["rewritten files", "deletion vectors"])
def test_rows_and_kinds_are_those_of_deltas_own_feed(spark: SparkSession, table: str, vectors: bool) -> None:
    create(spark, table, vectors=vectors)
    history(spark, table)
    whole = DeltaSource(table, changes=True, starting_version=0, with_metadata=True)
    rows = all_rows(spark, whole)
    assert Counter(map(text_of, rows)) == own_feed(spark, table, 0)
    assert all(TYPES[r["_change_type"]] == r[ROW_KIND] for r in rows)
    assert [r["_commit_version"] for r in rows] == sorted(r["_commit_version"] for r in rows)
    for version in {r["_commit_version"] for r in rows}:
        of_commit = [r[ROW_KIND] in BEFORE for r in rows if r["_commit_version"] == version]
        assert of_commit == sorted(of_commit, reverse=True), "what is taken away comes first"
    assert all(r["_commit_timestamp"] is not None for r in rows)

    plain = [{k: v for k, v in r.items() if not k.startswith("_c")} for r in rows]
    for bounds in ({"max_files_per_batch": 1}, {"max_rows_per_batch": 3}):
        cut = DeltaSource(table, changes=True, starting_version=0, **bounds)  # type: ignore[arg-type]
        assert all_rows(spark, cut) == plain
    assert folded(plain) == spark_contents(spark, table)
