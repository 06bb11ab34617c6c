"""``DeltaSource`` on real tables: snapshots, commits, cuts, deletion vectors, column mapping, lost history."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from state_engine import DeltaSource
from state_engine.core.errors import ConfigurationError, SourceError
from state_engine.sources import delta_table
from state_engine.sources.base import Slice
from state_engine.sources.delta_table import SourceTable, TableFile
from state_engine.sources.partition_rows import as_frame
from state_engine.storage.delta.log import DeltaLog
from tests.sources.runs import SourceRun


@pytest.fixture
def table(tmp_path: Path) -> str:
    return str(tmp_path / "events ü")


@pytest.fixture
def append(table: str) -> Callable[..., None]:
    """Appends ids, as one file; and a column where it is given. By delta-rs, which takes a tenth of Spark's time."""

    def append_ids(start: int, count: int, **columns: str) -> None:
        rows = {"id": list(range(start, start + count))} | {n: [v] * count for n, v in columns.items()}
        write_deltalake(table, pa.table(rows), mode="append", schema_mode="merge")

    return append_ids


def test_snapshot_first_and_then_what_is_added(
    spark: SparkSession, tmp_path: Path, table: str, append: Callable[..., None]
) -> None:
    append(0, 10)
    append(10, 10)
    run = SourceRun(spark, tmp_path, DeltaSource(table), parallelism=2)
    assert [b.rows_in for b in run.run()] == [20]
    assert run.ids() == list(range(20))
    assert run.run() == []
    append(20, 5)
    append(25, 5)
    assert [b.rows_in for b in run.run()] == [10]
    assert run.ids() == list(range(30))


@pytest.mark.long
def test_any_cut_gives_the_same_rows_in_the_same_order(
    spark: SparkSession, tmp_path: Path, table: str, append: Callable[..., None]
) -> None:
    for start in (0, 10, 20):
        append(start, 10)
    run = SourceRun(spark, tmp_path, DeltaSource(table, max_rows_per_batch=10))
    assert [b.rows_in for b in run.run(max_batches=2)] == [10, 10]
    # the snapshot is still being read: what comes now waits for its end
    spark.range(30, 60, 1, 1).repartition(3).write.format("delta").mode("append").save(table)
    run.use(DeltaSource(table, max_files_per_batch=2))
    batches = run.run()
    assert sum(b.rows_in for b in batches) == 40
    assert len(batches) == 2
    ids = run.ids()
    assert ids[:30] == list(range(30))
    assert sorted(ids) == list(range(60))

    whole = SourceRun(spark, tmp_path / "whole", DeltaSource(table, starting_version=0))
    whole.run()
    assert whole.ids() == ids
    rows_in = [r.rows_in for r in run.engine.checkpoints("numbered")]
    assert rows_in[:2] == [10, 10]


def test_a_file_larger_than_the_bound_is_read_whole(
    spark: SparkSession, tmp_path: Path, table: str, append: Callable[..., None]
) -> None:
    append(0, 10)
    append(10, 3)
    run = SourceRun(spark, tmp_path, DeltaSource(table, max_rows_per_batch=5))
    assert [b.rows_in for b in run.run()] == [10, 3]


@pytest.mark.long
def test_rearranged_files_are_passed_over(
    spark: SparkSession, tmp_path: Path, table: str, append: Callable[..., None]
) -> None:
    append(0, 10)
    append(10, 10)
    run = SourceRun(spark, tmp_path, DeltaSource(table))
    run.run()
    spark.sql(f"OPTIMIZE delta.`{table}`")
    assert run.run() == []
    append(20, 10)
    run.run()
    assert run.ids() == list(range(30))


def test_a_commit_that_takes_rows_away(
    spark: SparkSession, tmp_path: Path, table: str, append: Callable[..., None]
) -> None:
    append(0, 10)
    run = SourceRun(spark, tmp_path, DeltaSource(table))
    run.run()
    append(10, 10)
    DeltaTable(table).delete("id = 3")
    append(20, 10)
    with pytest.raises(SourceError, match=r"version 2 \(DELETE\) takes rows"):
        run.run()
    assert run.ids() == list(range(20)), "what came before that commit is delivered, and nothing after it"

    run.use(DeltaSource(table, on_change="skip"))
    run.run()
    assert run.ids() == list(range(30))

    DeltaTable(table).update({"id": "105"}, predicate="id = 5")
    run.use(DeltaSource(table, on_change="restart"))
    run.run()
    again = run.ids()[30:]
    assert sorted(again) == sorted((set(range(30)) - {3, 5}) | {105})
    assert run.run() == []
    append(30, 1)
    run.run()
    assert run.ids()[-1] == 30


@pytest.mark.long
def test_merge_that_only_inserts_and_overwrite(
    spark: SparkSession, tmp_path: Path, table: str, append: Callable[..., None]
) -> None:
    append(0, 3)
    run = SourceRun(spark, tmp_path, DeltaSource(table, on_change="skip"))
    run.run()
    spark.sql(
        f"MERGE INTO delta.`{table}` t USING (SELECT 7L AS id) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *"
    )
    run.run()
    assert run.ids() == [0, 1, 2, 7]
    spark.range(50, 52, 1, 1).write.format("delta").mode("overwrite").save(table)
    append(52, 1)
    run.run()
    assert run.ids() == [0, 1, 2, 7, 52], "an overwrite is skipped with the rows that it wrote"


@pytest.mark.parametrize("mapping", ["none", pytest.param("name", marks=pytest.mark.long)])
def test_deletion_vectors_column_mapping_and_partitions(
    spark: SparkSession, tmp_path: Path, table: str, mapping: str
) -> None:
    spark.sql(
        f"CREATE TABLE delta.`{table}` (id BIGINT, part STRING, v DOUBLE) USING delta PARTITIONED BY (part) "
        f"TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', 'delta.columnMapping.mode' = '{mapping}')"
    )
    spark.sql(
        f"INSERT INTO delta.`{table}` SELECT /*+ COALESCE(1) */ id, concat('a b/%ü=', id % 2), id / 2D FROM range(20)"
    )
    spark.sql(f"DELETE FROM delta.`{table}` WHERE id IN (4, 5, 18)")
    if mapping == "name":
        spark.sql(f"ALTER TABLE delta.`{table}` RENAME COLUMN v TO `half of it`")
    name = "half of it" if mapping == "name" else "v"
    run = SourceRun(spark, tmp_path, DeltaSource(table, max_rows_per_batch=17), parallelism=2)
    assert [b.rows_in for b in run.run()] == [17], "rows are counted without the deleted ones"
    rows = run.rows()
    assert {r["id"] for r in rows} == set(range(20)) - {4, 5, 18}
    assert all(r["part"] == f"a b/%ü={r['id'] % 2}" and r[name] == r["id"] / 2 for r in rows)
    for half in (0, 1):
        ids = [r["id"] for r in rows if r["id"] % 2 == half]
        assert ids == sorted(ids), "rows of a file come in its order"


@pytest.mark.long
def test_files_of_a_short_log_are_those_that_spark_lists(
    spark: SparkSession, table: str, append: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.sql(
        f"CREATE TABLE delta.`{table}` (id BIGINT, part STRING) USING delta PARTITIONED BY (part) "
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    spark.sql(
        f"INSERT INTO delta.`{table}` SELECT /*+ COALESCE(1) */ id, concat('a b/%ü=', id % 2) FROM range(20)"
    )
    for deleted in ("id = 4", "id = 6", "part LIKE '%1'"):  # a vector, another one of the same file, a file
        spark.sql(f"DELETE FROM delta.`{table}` WHERE {deleted}")
    append(50, 2, part="c")
    log = SourceTable(spark, f"file://{table}")

    def listed(version: int) -> list[TableFile]:
        delta_table._listings.clear()
        return log.snapshot_files(version)

    with monkeypatch.context() as patch:
        patch.setattr(SourceTable, "_listed_by_spark", None)
        short = [listed(version) for version in range(log.version + 1)]
    assert [[file.rows for file in files] for files in short] == [[], [10, 10], [9, 10], [8, 10], [8], [8, 2]]
    monkeypatch.setattr(DeltaLog, "files_at", lambda *_: None)

    def plain(files: list[TableFile]) -> list[tuple[object, ...]]:
        return [(file.uri, file.size, file.rows, json.loads(file.action)) for file in files]

    assert [plain(listed(version)) for version in range(log.version + 1)] == [*map(plain, short)]


@pytest.mark.long
def test_place_and_row_locate_a_row_despite_deletion_vectors(
    spark: SparkSession, tmp_path: Path, table: str, append: Callable[..., None]
) -> None:
    append(0, 5)
    append(5, 5)
    spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"DELETE FROM delta.`{table}` WHERE id IN (1, 7)")
    source = DeltaSource(table)
    part = source.plan(spark, [])
    assert part is not None
    frame = as_frame(spark, source.read(spark, part, keep_refused=False).rows)
    rows = [tuple(r) for r in frame.orderBy("id").collect()]
    places = [(i, i // 5, i % 5) for i in range(10) if i not in (1, 7)]
    assert [(i, row) for i, _, row in rows] == [(i, row) for i, _, row in places]
    assert [p for _, p, _ in rows] in ([0] * 4 + [1] * 4, [1] * 4 + [0] * 4)
    first = next(i for i, place, _ in rows if place == 0)
    add = json.loads(part.detail.files[0].action)["add"]
    assert part.labels[0].endswith(add["path"])
    assert spark.read.parquet(f"{table}/{add['path']}").collect()[0][0] == (0 if first < 5 else 5)


@pytest.mark.long
def test_many_files_in_one_batch(spark: SparkSession, tmp_path: Path, table: str) -> None:
    spark.range(0, 140, 1, 70).write.format("delta").save(table)
    run = SourceRun(spark, tmp_path, DeltaSource(table))
    assert [b.rows_in for b in run.run()] == [140]
    ids = run.ids()
    assert sorted(ids) == list(range(140))
    assert all(ids[i + 1] == ids[i] + 1 for i in range(0, 140, 2))


def test_latest_pins_its_place_in_the_first_run(
    spark: SparkSession, tmp_path: Path, table: str, append: Callable[..., None]
) -> None:
    append(0, 10)
    run = SourceRun(spark, tmp_path, DeltaSource(table, starting_version="latest"))
    assert [b.rows_in for b in run.run()] == [0]
    append(10, 1)
    append(11, 1)
    run.run()
    assert run.ids() == [10, 11]


def test_starting_version(
    spark: SparkSession, tmp_path: Path, table: str, append: Callable[..., None]
) -> None:
    for start in (0, 10, 20):
        append(start, 2)
    run = SourceRun(spark, tmp_path, DeltaSource(table, starting_version=1))
    run.run()
    assert run.ids() == [10, 11, 20, 21]
    with pytest.raises(SourceError, match="starting_version is 9, the newest version is 2"):
        SourceRun(spark, tmp_path / "b", DeltaSource(table, starting_version=9)).run()
    with pytest.raises(ConfigurationError, match="starting_version"):
        DeltaSource(table, starting_version=-1)


def test_added_columns_are_picked_up_at_the_commit_that_brought_them(
    spark: SparkSession, tmp_path: Path, table: str, append: Callable[..., None]
) -> None:
    append(0, 1)
    append(1, 1)
    append(2, 1, extra="x")
    append(3, 1)
    run = SourceRun(spark, tmp_path, DeltaSource(table, starting_version=0))
    assert [b.rows_in for b in run.run()] == [2, 2], "a batch never reaches over a change of the schema"
    assert run.rows() == [{"id": 0}, {"id": 1}, {"id": 2, "extra": "x"}, {"id": 3, "extra": None}]


@pytest.mark.long
def test_renamed_column_is_refused(
    spark: SparkSession, tmp_path: Path, table: str, append: Callable[..., None]
) -> None:
    append(0, 1, extra="x")
    run = SourceRun(spark, tmp_path, DeltaSource(table))
    run.run()
    spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    for version, column in (
        (1, "extra"),
        (2, "other"),
    ):  # by Spark: delta-rs cannot write where columns are mapped
        if column == "other":
            spark.sql(f"ALTER TABLE delta.`{table}` RENAME COLUMN extra TO other")
        rows = spark.createDataFrame([(version, "x")], f"id bigint, {column} string")
        rows.write.format("delta").mode("append").save(table)
    with pytest.raises(SourceError, match="version 3 changed the schema: column 'extra' was dropped or"):
        run.run()
    assert run.rows() == [{"id": 0, "extra": "x"}, {"id": 1, "extra": "x"}]
    run.use(DeltaSource(table, on_change="restart"))
    run.run()
    assert run.rows()[2:] == [{"id": i, "other": "x"} for i in range(3)]


def test_no_table(spark: SparkSession, tmp_path: Path, table: str) -> None:
    with pytest.raises(SourceError, match="is not a Delta table"):
        SourceRun(spark, tmp_path, DeltaSource(table)).run()


def test_recreated_table_is_refused(
    spark: SparkSession, tmp_path: Path, table: str, append: Callable[..., None]
) -> None:
    append(0, 2)
    run = SourceRun(spark, tmp_path, DeltaSource(table))
    run.run()
    shutil.move(table, f"{table} moved")
    run.use(DeltaSource(f"{table} moved"))
    assert run.run() == [], "a table that was only moved is the same table"
    run.use(DeltaSource(table))
    append(10, 2)
    append(12, 2)
    with pytest.raises(SourceError, match="dropped and created again"):
        run.run()
    run.use(DeltaSource(table, on_change="restart"))
    run.run()
    assert run.ids() == [0, 1, 10, 11, 12, 13]


@pytest.mark.long
def test_cleaned_log(spark: SparkSession, tmp_path: Path, table: str, append: Callable[..., None]) -> None:
    append(0, 2)
    run = SourceRun(spark, tmp_path, DeltaSource(table))
    run.run()
    append(2, 2)
    append(4, 2)
    log = spark._jvm.org.apache.spark.sql.delta.DeltaLog  # type: ignore[union-attr]
    log.clearCache()  # it does not know what delta-rs has appended
    log.forTable(spark._jsparkSession, table).checkpoint()
    log.clearCache()
    for version in (0, 1):
        (Path(table) / "_delta_log" / f"{version:020d}.json").unlink()
    with pytest.raises(SourceError, match="version 1 is no longer in the log"):
        run.run()
    run.use(DeltaSource(table, on_change="restart"))
    run.run()
    assert run.ids() == [0, 1, *range(6)]


@pytest.mark.long
def test_vacuumed_file(spark: SparkSession, tmp_path: Path, table: str, append: Callable[..., None]) -> None:
    append(0, 2)
    run = SourceRun(spark, tmp_path, DeltaSource(table))
    run.run()
    append(2, 2)
    spark.range(90, 92, 1, 1).write.format("delta").mode("overwrite").save(table)
    added = json.loads((Path(table) / "_delta_log" / f"{1:020d}.json").read_text().splitlines()[-1])
    (Path(table) / added["add"]["path"]).unlink()
    before = run.heads()
    with pytest.raises(SourceError, match="is gone or has another size: VACUUM"):
        run.run()
    assert run.heads() == before
    run.use(DeltaSource(table, on_change="restart"))
    run.run()
    assert run.ids() == [0, 1, 90, 91]


def test_file_that_vanishes_while_it_is_read(
    spark: SparkSession, table: str, append: Callable[..., None]
) -> None:
    append(0, 2)
    source = DeltaSource(table)
    part = source.plan(spark, [])
    assert part is not None
    source.confirm(part)
    Path(part.labels[0].removeprefix("file://")).unlink()
    with pytest.raises(SourceError, match="is gone"):
        source.confirm(part)


def test_positions_are_contiguous_and_shown_as_a_table(
    spark: SparkSession, tmp_path: Path, table: str, append: Callable[..., None]
) -> None:
    append(0, 2)
    append(2, 2)
    run = SourceRun(spark, tmp_path, DeltaSource(table, max_files_per_batch=1))
    run.run()
    append(4, 2)
    run.run()
    progress = [row.sources[0] for row in run.engine.checkpoints("numbered")]
    assert len(progress) == 3
    for one, after in pairwise(progress):
        assert one.position_to == after.position_from != after.position_to
    ends = [json.loads(p.position_to) for p in progress]
    assert [(e["version"], e["files"], e["snapshot"]) for e in ends] == [
        (1, 1, True),
        (1, None, True),
        (2, None, False),
    ]


def plans(spark: SparkSession, source: DeltaSource) -> list[Slice]:
    slices: list[Slice] = []
    while (part := source.plan(spark, [e for s in slices for e in s.elements])) is not None:
        slices.append(part)
    return slices


@pytest.mark.long
def test_recorded_slices_are_planned_again_and_may_be_cut_anew(
    spark: SparkSession, table: str, append: Callable[..., None]
) -> None:
    for start in (0, 10, 20):
        append(start, 10)
    bounded = DeltaSource(table, max_files_per_batch=2, on_change="skip")
    slices = plans(spark, bounded)  # the snapshot
    spark.range(30, 45, 1, 3).write.format("delta").mode("append").save(table)
    append(45, 5, extra="x")
    spark.sql(f"DELETE FROM delta.`{table}` WHERE id = 3")
    append(50, 5)
    elements = [e for s in slices for e in s.elements]
    while (part := bounded.plan(spark, elements)) is not None:
        slices.append(part)
        elements += part.elements
    assert [len(s.labels) for s in slices] == [2, 1, 2, 1, 2]

    append(60, 5)  # is no part of what was recorded
    for i, part in enumerate(slices):
        before = [e for s in slices[:i] for e in s.elements]
        again = DeltaSource(table).replan(spark, before, part.elements)
        assert (again.elements, again.labels) == (part.elements, part.labels)
        assert (again.position_from, again.position_to) == (part.position_from, part.position_to)
        assert again.detail.version == part.detail.version

    cut: list[Slice] = []
    source = DeltaSource(table, max_files_per_batch=4)
    while (anew := source.rebatch(spark, [e for s in cut for e in s.elements], elements)) is not None:
        cut.append(anew)
    assert [len(s.labels) for s in cut] == [4, 2, 2], "a slice ends where the schema changes"
    assert [uri for s in cut for uri in s.labels] == [uri for s in slices for uri in s.labels]
    assert cut[-1].elements[0] == slices[-1].elements[0]

    with pytest.raises(SourceError, match="give the source the starting_version that it had"):
        DeltaSource(table).replan(spark, [], slices[-1].elements)
    Path(slices[0].labels[0].removeprefix("file://")).unlink()
    with pytest.raises(SourceError, match=r"\.parquet is in the table's log, but it is gone"):
        bounded.replan(spark, [], slices[0].elements)
