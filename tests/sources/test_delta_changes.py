"""``DeltaSource(changes=True)`` on real tables: what it reads is Delta's own change data feed, wherever it is cut."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from pyspark.sql import SparkSession

from state_engine import (
    DeltaSource,
    KeyedProcessFunction,
    RowKind,
    StateEngine,
    StatefulJob,
    ValueStateDescriptor,
)
from state_engine.core.errors import ConfigurationError, SourceError
from state_engine.sources.base import FILE_COLUMN, ROW_COLUMN, Element, Slice
from state_engine.sources.changes.delta_changes import ChangeFile, _changes_nothing, _scans
from state_engine.sources.rows import TaskRows
from state_engine.sources.stream_columns import ROW_KIND
from state_engine.storage.delta.log import LogCommit

BEFORE = (RowKind.DELETE.value, RowKind.UPDATE_BEFORE.value)
TYPES = {"insert": 0, "update_preimage": 1, "update_postimage": 2, "delete": 3}


@pytest.fixture
def table(tmp_path: Path) -> str:
    return str(tmp_path / "events ü")


def create(spark: SparkSession, table: str, *, vectors: bool = False, mapping: str = "none") -> None:
    spark.sql(
        f"CREATE TABLE delta.`{table}` (id BIGINT, part STRING, v INT) USING delta PARTITIONED BY (part) "
        "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true', "
        f"'delta.enableDeletionVectors' = '{str(vectors).lower()}', "
        f"'delta.columnMapping.mode' = '{mapping}')"
    )


def slices(spark: SparkSession, source: DeltaSource, before: list[Element] | None = None) -> Iterator[Slice]:
    elements = list(before or [])
    while (part := source.plan(spark, elements)) is not None:
        yield part
        elements += part.elements


def rows_of(spark: SparkSession, source: DeltaSource, part: Slice) -> list[dict[str, Any]]:
    """The rows of a slice in total order; each has a place of its own."""
    frame = source.read(spark, part, keep_refused=False).rows
    assert not isinstance(frame, pa.Table | TaskRows)
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


def contents(spark: SparkSession, table: str) -> dict[Any, dict[str, Any]]:
    return {r["id"]: r.asDict() for r in spark.read.format("delta").load(table).collect()}


SHORT = [
    "INSERT INTO {0} SELECT /*+ COALESCE(1) */ id, concat('p ', id % 2), 0 FROM range(0, 40)",
    "DELETE FROM {0} WHERE id = 3",
    "DELETE FROM {0} WHERE id = 5",
    "UPDATE {0} SET v = v + 1 WHERE id IN (1, 2)",
    "DELETE FROM {0} WHERE part = 'p 1'",
]
LONG = [
    *SHORT[:4],
    "MERGE INTO {0} t USING (SELECT explode(array(4, 5, 20, 21)) AS id) s ON t.id = s.id "
    "WHEN MATCHED AND s.id = 4 THEN DELETE WHEN MATCHED THEN UPDATE SET v = 50 "
    "WHEN NOT MATCHED THEN INSERT (id, part, v) VALUES (s.id, 'p 0', 7)",
    "OPTIMIZE {0}",
    SHORT[4],
    "UPDATE {0} SET id = id + 100 WHERE id = 20",
    "RESTORE {0} TO VERSION AS OF 3",
    "DELETE FROM {0} WHERE id = 0",
    "INSERT OVERWRITE {0} SELECT id, 'p 0', 9 FROM range(2, 4)",
]


@pytest.mark.parametrize(
    ("vectors", "statements"),
    [
        pytest.param(True, SHORT, id="vectors"),
        pytest.param(True, LONG, marks=pytest.mark.long, id="vectors, each kind of commit"),
        pytest.param(False, LONG, marks=pytest.mark.long, id="rewritten files, each kind of commit"),
    ],
)
def test_rows_and_kinds_are_those_of_deltas_own_feed(
    spark: SparkSession, table: str, vectors: bool, statements: list[str]
) -> None:
    create(spark, table, vectors=vectors)
    for statement in statements:
        spark.sql(statement.format(f"delta.`{table}`"))
    whole = DeltaSource(table, changes=True, starting_version=0, with_metadata=True)
    (part,) = slices(spark, whole)
    rows = rows_of(spark, whole, part)
    assert {f.part for f in part.detail.files} == {"insert", "delete", "before", "after"}
    assert vectors == any('"storageType": "i"' in f.action for f in part.detail.files)
    assert Counter(map(text_of, rows)) == own_feed(spark, table, 0)
    assert all(TYPES[r["_change_type"]] == r[ROW_KIND] for r in rows)
    assert [r["_commit_version"] for r in rows] == sorted(r["_commit_version"] for r in rows)
    for version in {r["_commit_version"] for r in rows}:
        of_commit = [r[ROW_KIND] in BEFORE for r in rows if r["_commit_version"] == version]
        assert of_commit == sorted(of_commit, reverse=True), "what is taken away comes first"
    committed = [r["_commit_timestamp"] for r in rows]
    assert committed == sorted(committed)

    plain = [{k: v for k, v in r.items() if not k.startswith("_c")} for r in rows]
    assert folded(plain) == contents(spark, table)
    cut = DeltaSource(table, changes=True, starting_version=0, max_rows_per_batch=15)
    parts = list(slices(spark, cut))
    assert [row for one in parts for row in rows_of(spark, cut, one)] == plain
    for before, one in pairwise(parts):
        assert before.position_to == one.position_from
    one_by_one = list(slices(spark, replace(cut, max_rows_per_batch=None, max_files_per_batch=1)))
    assert [s.detail.files for s in one_by_one] == [[f] for f in part.detail.files]


def test_slices_that_were_recorded_are_read_again_and_cut_anew(spark: SparkSession, table: str) -> None:
    grown(table, Random(3), 12)
    source = DeltaSource(table, changes=True, max_files_per_batch=3)
    (first,) = slices(spark, replace(source, max_files_per_batch=99))
    recorded = [first, *grown_slices(spark, source, table, first)]
    elements = [e for part in recorded for e in part.elements]
    for place, part in enumerate(recorded):
        before = [e for one in recorded[:place] for e in one.elements]
        again = source.replan(spark, before, part.elements)
        assert (again.elements, again.labels, again.detail.files) == (
            part.elements, part.labels, part.detail.files,
        )  # fmt: skip
    anew: list[Slice] = []
    wider = replace(source, max_files_per_batch=50)
    while (cut := wider.rebatch(spark, [e for s in anew for e in s.elements], elements)) is not None:
        anew.append(cut)
    assert len(anew) < len(recorded)
    assert [f for s in anew for f in s.detail.files] == [f for s in recorded for f in s.detail.files]
    with pytest.raises(SourceError, match=r"was read with changes=True, .* replay with the setting that it"):
        DeltaSource(table).replan(spark, [], recorded[0].elements)


def grown_slices(spark: SparkSession, source: DeltaSource, table: str, first: Slice) -> list[Slice]:
    grown(table, Random(4), 12)
    return list(slices(spark, source, first.elements))


def grown(table: str, random: Random, commits: int) -> None:
    """Random commits by delta-rs, which takes a tenth of Spark's time."""
    if not Path(table).exists():
        feed = {"delta.enableChangeDataFeed": "true"}
        write_deltalake(table, accounts(random, range(6)), partition_by=["part"], configuration=feed)
    for _ in range(commits):
        there = DeltaTable(table)
        known = sorted(r["id"] for r in there.to_pyarrow_table(columns=["id"]).to_pylist())
        commit(there, table, random, known)


def accounts(random: Random, ids: Iterable[int]) -> pa.Table:
    rows = [{"id": i, "part": random.choice("ab"), "v": random.randrange(100)} for i in ids]
    return pa.Table.from_pylist(
        rows, pa.schema([("id", pa.int64()), ("part", pa.string()), ("v", pa.int32())])
    )


def commit(there: DeltaTable, table: str, random: Random, known: list[int]) -> None:
    some = random.sample(known, min(len(known), random.randrange(1, 4)))
    new = range(max([*known, 0]) + 1, max([*known, 0]) + 1 + random.randrange(1, 4))
    listed = ", ".join(map(str, some)) or "-1"
    match random.choice(["append", "delete", "update", "move", "merge", "optimize", "overwrite", "restore"]):
        case "append":
            write_deltalake(table, accounts(random, new), mode="append")
        case "delete":
            there.delete(f"id IN ({listed})" if random.random() < 0.8 else "part = 'a'")
        case "update":
            there.update(updates={"v": "v + 1", "part": "'b'"}, predicate=f"id IN ({listed})")
        case "move" if known:
            there.update(updates={"id": f"id + {max(known) + 1}"}, predicate=f"id IN ({listed})")
        case "merge":
            source = accounts(random, [*some, *new])
            merge = there.merge(source, "t.id = s.id", source_alias="s", target_alias="t")
            merge.when_matched_delete(
                "s.v < 30"
            ).when_matched_update_all().when_not_matched_insert_all().execute()
        case "optimize":
            there.optimize.compact()
        case "overwrite" if random.random() < 0.4:
            write_deltalake(table, accounts(random, new), mode="overwrite")
        case "restore" if there.version() > 2:
            there.restore(random.randrange(there.version() - 2, there.version()))


@pytest.mark.parametrize(
    ("seed", "commits"), [(0, 10), *[pytest.param(seed, 25, marks=pytest.mark.long) for seed in range(1, 12)]]
)
def test_random_histories_lead_to_the_final_table_wherever_they_are_cut(
    spark: SparkSession, table: str, seed: int, commits: int
) -> None:
    random = Random(seed)
    grown(table, random, 3)
    start: Any = random.choice(["snapshot", 0])
    elements: list[Element] = []
    rows: list[dict[str, Any]] = []
    while DeltaTable(table).version() < commits:
        grown(table, random, random.randrange(1, 6))
        bounds: Any = random.choice(
            [{"max_files_per_batch": random.randrange(1, 6)}, {"max_rows_per_batch": 4}, {}]
        )
        source = DeltaSource(table, changes=True, starting_version=start, **bounds)
        for part in islice(slices(spark, source, elements), random.choice([1, 2, None])):
            rows += rows_of(spark, source, part)
            elements += part.elements
    for part in slices(spark, DeltaSource(table, changes=True, starting_version=start), elements):
        rows += rows_of(spark, source, part)
    assert folded(rows) == contents(spark, table)


def test_a_table_without_feed_is_refused_with_the_way_to_turn_it_on(spark: SparkSession, table: str) -> None:
    write_deltalake(table, accounts(Random(0), range(3)))
    for source in (DeltaSource(table, changes=True), DeltaSource(table, changes=True, on_change="restart")):
        with pytest.raises(SourceError, match=r"has no change data feed, .*ALTER TABLE delta\.`.*` SET"):
            source.plan(spark, [])
    spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')")
    early = DeltaSource(table, changes=True, starting_version=0)
    with pytest.raises(SourceError, match="the change data feed was off at version 0"):
        early.plan(spark, [])
    write_deltalake(table, accounts(Random(0), range(3, 5)), mode="append")
    assert len(all_rows(spark, DeltaSource(table, changes=True, starting_version=1))) == 2
    assert len(all_rows(spark, DeltaSource(table, changes=True))) == 5

    read = DeltaSource(table, changes=True)
    elements = [e for part in slices(spark, read) for e in part.elements]
    write_deltalake(table, accounts(Random(0), range(5, 6)), mode="append")
    spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'false')")
    (part,) = islice(slices(spark, read, elements), 1)
    assert len(rows_of(spark, read, part)) == 1, "what came before that is read"
    with pytest.raises(SourceError, match="version 4 turned the change data feed") as caught:
        read.plan(spark, [*elements, *part.elements])
    assert "skip" not in str(caught.value)
    restarting = replace(read, on_change="restart")
    with pytest.raises(SourceError, match="has no change data feed"):
        restarting.plan(spark, [*elements, *part.elements])
    spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')")
    (again,) = islice(slices(spark, restarting, [*elements, *part.elements]), 1)
    assert len(rows_of(spark, restarting, again)) == 6


def test_changes_begin_where_what_is_added_was_read_up_to(spark: SparkSession, table: str) -> None:
    grown(table, Random(1), 0)
    plain = DeltaSource(table, starting_version=0)
    (part,) = slices(spark, plain)
    changing = DeltaSource(table, changes=True, max_files_per_batch=1)
    DeltaTable(table).update(updates={"v": "v + 1"})
    (first, *_) = islice(slices(spark, changing, part.elements), 2)
    assert {r[ROW_KIND] for r in rows_of(spark, changing, first)} == {RowKind.UPDATE_BEFORE.value}
    with pytest.raises(SourceError, match="version 1 was begun with changes=True, and its rest cannot be"):
        plain.plan(spark, [*part.elements, *first.elements])
    spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'false')")
    write_deltalake(table, accounts(Random(0), [70]), mode="append")
    with pytest.raises(SourceError, match="has no change data feed"):
        changing.plan(spark, plain.consumed(spark, 2))
    with pytest.raises(SourceError, match="has no change data feed"):
        changing.consumed(spark, 2)


def test_history_that_is_gone_and_schemas_are_handled_as_for_the_plain_source(
    spark: SparkSession, table: str
) -> None:
    grown(table, Random(1), 0)
    source = DeltaSource(table, changes=True)
    elements = [e for part in slices(spark, source) for e in part.elements]
    DeltaTable(table).update(updates={"v": "v + 1"}, predicate="id = 1")
    DeltaTable(table).alter.add_columns([Field("more", PrimitiveType("string"))])
    write_deltalake(
        table,
        pa.table({"id": [50], "part": ["a"], "v": pa.array([1], pa.int32()), "more": ["x"]}),
        mode="append",
    )
    updated, added = slices(spark, source, elements)
    assert [sorted(r) for r in rows_of(spark, source, updated)] == [[ROW_KIND, "id", "part", "v"]] * 2
    assert [r["more"] for r in rows_of(spark, source, added)] == ["x"]

    (cdc,) = {f.uri for f in updated.detail.files}
    assert "/_change_data/" in cdc
    Path(unquote(cdc).removeprefix("file://")).unlink()
    with pytest.raises(SourceError, match=r"_change_data.* is gone or has another size: VACUUM"):
        source.plan(spark, elements)
    with pytest.raises(SourceError, match="is gone"):
        source.confirm(updated)
    restarting = replace(source, on_change="restart")
    assert len(rows_of(spark, restarting, next(slices(spark, restarting, elements)))) == 7


def test_columns_that_are_mapped_by_id_are_refused(spark: SparkSession, table: str) -> None:
    create(spark, table, mapping="id")
    with pytest.raises(SourceError, match=r"its columns are mapped by id .*: changes are read of tables"):
        DeltaSource(table, changes=True).plan(spark, [])


@pytest.mark.long
def test_columns_that_are_mapped_by_name(spark: SparkSession, table: str) -> None:
    create(spark, table, vectors=True, mapping="name")
    name = f"delta.`{table}`"
    spark.sql(f"INSERT INTO {name} SELECT id, 'a', 0 FROM range(0, 4)")
    spark.sql(f"UPDATE {name} SET v = 1 WHERE id = 2")
    source = DeltaSource(table, changes=True, starting_version=0)
    parts = list(slices(spark, source))
    rows = [row for part in parts for row in rows_of(spark, source, part)]
    assert folded(rows) == contents(spark, table)
    assert [r[ROW_KIND] for r in rows[4:]] == [RowKind.UPDATE_BEFORE.value, RowKind.UPDATE_AFTER.value]
    spark.sql(f"ALTER TABLE {name} RENAME COLUMN v TO `the value`")
    elements = [e for part in parts for e in part.elements]
    with pytest.raises(SourceError, match="version 3 changed the schema: column 'v' was dropped or renamed"):
        source.plan(spark, elements)
    again = next(slices(spark, replace(source, on_change="restart"), elements))
    (first, *_) = rows_of(spark, source, again)
    assert set(first) == {"id", "part", "the value", ROW_KIND}


def test_wrong_configuration() -> None:
    with pytest.raises(ConfigurationError, match="changes=True reads these: use 'fail' or 'restart'"):
        DeltaSource("/t", changes=True, on_change="skip")
    with pytest.raises(ConfigurationError, match="with_metadata is about what a commit did to a row"):
        DeltaSource("/t", with_metadata=True)
    assert (DeltaSource("/t", changes=True).changing, DeltaSource("/t").changing) == (True, False)


def changed(part: Any, version: int, uri: str = "file:///t/a", action: str = "") -> ChangeFile:
    return ChangeFile(uri, 1, 1, action or f"{uri}@{version}", part, version, None)


def test_a_slice_holds_rows_of_one_file_from_several_commits_each_with_a_scan_of_its_own() -> None:
    many = [changed("delete", version) for version in range(40)]
    assert [file.repeats(many[:place]) for place, file in enumerate(many)] == [False] * 16 + [True] * 24
    before, after = changed("before", 1, action="cdc"), changed("after", 1, action="cdc")
    assert not after.repeats([before])
    other = changed("insert", 1, uri="file:///t/b")
    assert _scans([before, other, after, many[2]]) == [
        {"file:///t/a": [0, 2], "file:///t/b": [1]},
        {"file:///t/a": [3]},
    ]


def test_a_merge_that_changed_nothing_has_no_changes() -> None:
    def commit_of(operation: str, updated: str) -> LogCommit:
        metrics = {"numTargetRowsInserted": "0", "numTargetRowsUpdated": updated, "numTargetRowsDeleted": "0"}
        return LogCommit([{"commitInfo": {"operation": operation, "operationMetrics": metrics}}])

    assert _changes_nothing(commit_of("MERGE", "0"))
    assert not _changes_nothing(commit_of("MERGE", "1"))
    assert not _changes_nothing(commit_of("WRITE", "0"))
    assert not _changes_nothing(LogCommit([{"commitInfo": {"operation": "MERGE"}}]))


GIVEN = (RowKind.INSERT, RowKind.UPDATE_AFTER)


class Kept(KeyedProcessFunction):
    """The row of each id; what is taken away must be there, what comes must not."""

    accepts_changes = True

    def open(self, runtime_context: Any) -> None:
        self.row = runtime_context.get_state(ValueStateDescriptor("row", "part string, v int"))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        plain = (value.part, value.v)
        if ctx.row_kind() in GIVEN:
            assert self.row.value() is None
            self.row.update(plain)
        else:
            assert tuple(self.row.value()) == plain
            self.row.clear()
        yield value.id


class Sums(KeyedProcessFunction):
    """The sum and the number of the rows of a part; a part without rows has no state."""

    accepts_changes = True

    def open(self, runtime_context: Any) -> None:
        self.held = runtime_context.get_state(ValueStateDescriptor("held", "total bigint, rows bigint"))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        sign = 1 if ctx.row_kind() in GIVEN else -1
        total, rows = self.held.value() or (0, 0)
        self.held.update((total + sign * value.v, rows + sign) if rows + sign else None)
        yield value.part


def job_over(source: DeltaSource, parallelism: int) -> StatefulJob:
    job = StatefulJob("mirror", parallelism=parallelism)
    rows = job.source("rows", source)
    rows.key_by("id").process(Kept(), "bigint", uid="kept")
    rows.filter(lambda row: row.v >= 0).key_by("part").process(Sums(), "string", uid="sums")
    return job


def of_table(table: str) -> tuple[dict[Any, Any], dict[Any, Any]]:
    rows = DeltaTable(table).to_pyarrow_table().to_pylist()
    sums: dict[Any, Any] = defaultdict(lambda: (0, 0))
    for row in rows:
        total, count = sums[row["part"]]
        sums[row["part"]] = (total + row["v"], count + 1)
    return {r["id"]: (r["part"], r["v"]) for r in rows}, dict(sums)


def of_state(engine: StateEngine, job: StatefulJob) -> tuple[dict[Any, Any], dict[Any, Any]]:
    kept = engine.read_state(job, "kept", "row").collect()
    sums = engine.read_state(job, "sums", "held").collect()
    return {r["id"]: tuple(r["value"]) for r in kept}, {r["part"]: tuple(r["value"]) for r in sums}


@pytest.mark.parametrize("seed", [0, *[pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 8)]])
def test_what_a_job_remembers_is_the_final_table(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    random, table = Random(seed), str(tmp_path / "rows")
    grown(table, random, 2)
    engine = StateEngine(tmp_path / "root", spark)
    while DeltaTable(table).version() < (10 if seed == 0 else 25):
        grown(table, random, random.randrange(1, 6))
        bounds: Any = random.choice(
            [{"max_files_per_batch": random.randrange(2, 6)}, {"max_rows_per_batch": 6}, {}]
        )
        job = job_over(DeltaSource(table, changes=True, **bounds), 2)
        engine.run(job, max_batches=random.choice([1, 3, None]))
    job = job_over(DeltaSource(table, changes=True), 2)
    engine.run(job)
    assert of_state(engine, job) == of_table(table)
    report = engine.replay(job, rebatch=True)
    engine.promote(job, report.branch)
    assert of_state(engine, job) == of_table(table)
