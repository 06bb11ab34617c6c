"""How much a source has that no checkpoint read, against files, rows and commits that the test made."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from state_engine import DeltaSource, FileSource, KafkaSource
from state_engine.core.types.type_parsing import to_type
from state_engine.monitoring.source_lag import SourceLag, source_lag
from state_engine.sources.base import Element
from state_engine.sources.collection import CollectionSource
from state_engine.sources.file_ranges import FileRange
from state_engine.sources.output_type import OutputType
from state_engine.spark.no_spark import NO_SPARK

NOW_MS = 2_000_000_000_000


def put(path: Path, rows: int, *, age_s: int) -> Path:
    pq.write_table(pa.table({"k": range(rows)}), path)
    at_s = NOW_MS / 1000 - age_s
    os.utime(path, (at_s, at_s))
    return path


def consumed(source: FileSource, *paths: Path) -> list[Element]:
    return source.consumed(NO_SPARK, [str(path) for path in paths])


def test_files_rows_bytes_and_age_of_what_is_unread(tmp_path: Path) -> None:
    paths = [put(tmp_path / f"{n}.parquet", 10 + n, age_s=100 * (n + 1)) for n in range(4)]
    (tmp_path / "half.parquet").write_bytes(b"PAR1 and no footer")
    source = FileSource(str(tmp_path))
    read = consumed(source, paths[3])
    size = sum(path.stat().st_size for path in paths[:3])
    assert source_lag(source, read, now_ms=NOW_MS) == SourceLag(3, 10 + 11 + 12, size, 300.0)
    assert source_lag(source, consumed(source, *paths), now_ms=NOW_MS) == SourceLag(0, 0, 0, None)


def test_of_a_file_that_was_read_in_part_the_rest_counts(tmp_path: Path) -> None:
    path = put(tmp_path / "a.parquet", 10, age_s=5)
    source = FileSource(str(tmp_path), max_rows_per_batch=4)
    [element] = consumed(source, path)
    part = FileRange(element["split"], **{**element["position"], "end": 4}).element()
    assert source_lag(source, [part], now_ms=NOW_MS) == SourceLag(1, 6, path.stat().st_size, 5.0)


def test_rows_that_only_reading_shows_are_not_guessed(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"k": 1}\n')
    os.utime(tmp_path / "a.json", (NOW_MS / 1000 - 1, NOW_MS / 1000 - 1))
    text = FileSource(str(tmp_path), format="json", schema="k bigint")
    assert source_lag(text, [], now_ms=NOW_MS) == SourceLag(1, None, 9, 1.0)
    (tmp_path / "a.json").unlink()
    for n in range(3):
        put(tmp_path / f"{n}.parquet", 1, age_s=1)
    lag = source_lag(FileSource(str(tmp_path)), [], now_ms=NOW_MS, most_files=2)
    assert (lag.files, lag.rows) == (3, None)


def test_a_damaged_file_leaves_rows_unknown(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1" + bytes(30) + b"PAR1")
    lag = source_lag(FileSource(str(tmp_path)), [], now_ms=NOW_MS)
    assert (lag.files, lag.rows, lag.bytes) == (1, None, 38)


def test_a_list_counts_its_elements() -> None:
    source = CollectionSource("n", [1, 2, 3, 4, 5], OutputType.of(to_type(int, parameter="n")))
    assert source_lag(source, [{"split": "collection", "position": 2}], now_ms=NOW_MS) == SourceLag(rows=3)


def at(table: Path, version: int, files: int | None = None, **more: Any) -> list[Element]:
    identity = DeltaTable(str(table)).metadata().id
    uri = f"file://{table}"
    return [{"split": uri, "position": {"table": identity, "version": version, "files": files, **more}}]


def test_commits_of_a_table_are_counted_from_its_log(tmp_path: Path) -> None:
    table = tmp_path / "t"
    for rows in (1, 2, 3):
        write_deltalake(str(table), pa.table({"k": range(rows)}), mode="append")
    source, newest = DeltaSource(str(table)), DeltaTable(str(table))
    history = {one["version"]: one["timestamp"] for one in newest.history()}
    sizes = {one["num_records"]: one["size_bytes"] for one in pa.table(newest.get_add_actions()).to_pylist()}
    now_ms = max(history.values()) + 60_000
    lag = source_lag(source, at(table, 0), now_ms=now_ms)
    assert lag == SourceLag(2, 5, sizes[2] + sizes[3], (now_ms - history[1]) / 1000)
    assert source_lag(source, at(table, 2), now_ms=now_ms) == SourceLag(0, 0, 0, None)
    newest.optimize.compact()  # moves rows, and brings none
    assert source_lag(source, at(table, 2), now_ms=now_ms).files == 0
    changes = DeltaSource(str(table), changes=True)
    assert source_lag(changes, at(table, 0), now_ms=now_ms) == SourceLag(seconds=lag.seconds)


def test_what_a_log_does_not_tell_is_not_known(tmp_path: Path) -> None:
    table = tmp_path / "t"
    for _ in range(4):
        write_deltalake(str(table), pa.table({"k": [1]}), mode="append")
    source = DeltaSource(str(table))
    assert source_lag(source, [], now_ms=NOW_MS) == SourceLag()
    assert source_lag(source, at(table, 3, 0, snapshot=True), now_ms=NOW_MS) == SourceLag()
    first = at(table, 0)
    lag = source_lag(source, first, now_ms=NOW_MS, most_commits=2)
    assert (lag.files, lag.rows, lag.bytes, lag.seconds is None) == (None, None, None, False)
    (table / "_delta_log" / f"{1:020d}.json").unlink()
    assert source_lag(source, first, now_ms=NOW_MS) == SourceLag()


def test_of_a_commit_that_was_read_in_part_the_other_files_count(tmp_path: Path) -> None:
    table = tmp_path / "t"
    data = pa.table({"p": ["a", "b", "c"], "k": [1, 2, 3]})
    write_deltalake(str(table), data, partition_by=["p"])
    lag = source_lag(DeltaSource(str(table)), at(table, 0, 1), now_ms=NOW_MS)
    assert (lag.files, lag.rows) == (2, 2)


def test_a_commit_that_takes_rows_away_brings_no_files(tmp_path: Path) -> None:
    table = tmp_path / "t"
    write_deltalake(str(table), pa.table({"k": [1, 2, 3]}))
    DeltaTable(str(table)).delete("k = 2")
    write_deltalake(str(table), pa.table({"k": [4]}), mode="append")
    lag = source_lag(DeltaSource(str(table), on_change="skip"), at(table, 0), now_ms=NOW_MS)
    assert (lag.files, lag.rows) == (1, 1)


def test_a_source_that_only_a_run_can_ask_has_no_numbers() -> None:
    kafka = KafkaSource("broker:9092", "t", schema="k bigint", format="json")
    assert source_lag(kafka, [], now_ms=NOW_MS) == SourceLag()
