"""``DeltaSink``: which tables it takes, and that staged files are published once, into the table they are for."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from state_engine import DeltaSink
from state_engine.core.checkpoints.checkpoint import StagedSink
from state_engine.core.errors import ConfigurationError, MissingFilesError, SinkError, SinkIdentityError
from state_engine.sinks.delta import DeltaPublisher
from state_engine.storage.delta.kernel import DeltaKernel
from state_engine.storage.delta.log import DeltaLog
from tests.sinks.requests import APP, asked, staged_files

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
COLUMNS = "id BIGINT, text STRING"


@pytest.fixture
def table(tmp_path: Path) -> str:
    return str(tmp_path / "out ü")


def staged(kernel: DeltaKernel, table: str, write_id: str, ids: list[int]) -> StagedSink:
    rows = pa.table({"id": ids, "text": [f"t{i}" for i in ids]}, schema=SCHEMA)
    return staged_files(DeltaSink(table), asked(kernel, SCHEMA, write_id), rows)


def ids(table: str) -> list[int]:
    """Read with delta-rs."""
    return sorted(DeltaTable(table).to_pyarrow_table()["id"].to_pylist())


def test_publish_is_once_and_other_readers_agree(
    spark: SparkSession, kernel: DeltaKernel, tmp_path: Path
) -> None:
    table = str(tmp_path / "out")  # polars does not open tables in directories with spaces
    first, second = staged(kernel, table, "w1", [1, 2]), staged(kernel, table, "w2", [3])
    publisher = DeltaPublisher(kernel)
    assert ids(table) == []
    assert publisher.seen(first.path, APP) == 0
    for one, checkpoint_id in ((first, 1), (first, 1), (second, 5), (second, 5), (first, 1)):
        publisher.publish(one, APP, checkpoint_id)
    assert publisher.seen(first.path, APP) == 5
    assert ids(table) == [1, 2, 3]
    assert sorted(pl.read_delta(table)["text"]) == ["t1", "t2", "t3"]
    assert spark.read.format("delta").load(table).count() == 3
    assert DeltaTable(table).version() == 2, "publishing again commits nothing"


def test_another_attempt_under_the_same_transaction_is_refused(kernel: DeltaKernel, table: str) -> None:
    mine, other = staged(kernel, table, "w1", [1]), staged(kernel, table, "w2", [9])
    DeltaPublisher(kernel).publish(other, APP, 1)
    with pytest.raises(SinkIdentityError, match="already holds other rows of checkpoint 1"):
        DeltaPublisher(kernel).publish(mine, APP, 1)
    assert ids(table) == [9]


def test_published_files_are_known_after_log_checkpoint_and_cleaned_log(
    spark: SparkSession, kernel: DeltaKernel, table: str
) -> None:
    mine = staged(kernel, table, "w1", [1])
    DeltaPublisher(kernel).publish(mine, APP, 1)
    DeltaPublisher(kernel).publish(staged(kernel, table, "w2", [2]), APP, 2)
    DeltaTable(table).create_checkpoint()
    for version in (0, 1):
        (Path(table) / "_delta_log" / f"{version:020d}.json").unlink()
    DeltaPublisher(kernel).publish(mine, APP, 1)
    assert ids(table) == [1, 2]


def test_recreated_table_is_refused_and_the_old_one_is_settled(kernel: DeltaKernel, table: str) -> None:
    mine = staged(kernel, table, "w1", [1])
    shutil.move(table, f"{table} aside")
    with pytest.raises(SinkIdentityError, match="is gone since rows were staged"):
        DeltaPublisher(kernel).publish(mine, APP, 1)
    DeltaSink(table).prepare(asked(kernel, SCHEMA, "w2"))
    with pytest.raises(SinkIdentityError, match="was re-created since rows were staged"):
        DeltaPublisher(kernel).publish(mine, APP, 1)
    assert ids(table) == []
    shutil.rmtree(table)
    shutil.move(f"{table} aside", table)
    DeltaPublisher(kernel).publish(mine, APP, 1)
    assert ids(table) == [1]


@pytest.mark.parametrize("damage", ["deleted", "cut"])
def test_staged_files_that_are_gone_or_changed(kernel: DeltaKernel, table: str, damage: str) -> None:
    mine = staged(kernel, table, "w1", [1])
    file = Path(table) / mine.files[0].path
    if damage == "deleted":
        file.unlink()
    else:
        os.truncate(file, 10)
    with pytest.raises(MissingFilesError, match="is gone" if damage == "deleted" else "has 10 bytes"):
        DeltaPublisher(kernel).publish(mine, APP, 1)
    assert DeltaPublisher(kernel).seen(mine.path, APP) == 0


def test_session_defaults_do_not_reach_tables_that_we_create(
    spark: SparkSession, kernel: DeltaKernel, table: str
) -> None:
    prefix = "spark.databricks.delta.properties.defaults."
    defaults = {
        "columnMapping.mode": "name",
        "enableDeletionVectors": "true",
        "setTransactionRetentionDuration": "interval 1 hours",
        "enableRowTracking": "true",
    }
    for name, value in defaults.items():
        spark.conf.set(prefix + name, value)
    try:
        mine = staged(kernel, table, "w1", [1])
        DeltaPublisher(kernel).publish(mine, APP, 1)
    finally:
        for name in defaults:
            spark.conf.unset(prefix + name)
    facts = kernel.facts(mine.path)
    assert facts is not None
    assert set(facts.properties) & {f"delta.{n}" for n in defaults} == set()
    assert facts.features & {"columnMapping", "deletionVectors", "rowTracking"} == set()
    assert ids(table) == [1]


def test_existing_table_with_another_order_of_columns(
    spark: SparkSession, kernel: DeltaKernel, table: str
) -> None:
    spark.sql(f"CREATE TABLE delta.`{table}` (text STRING COMMENT 'any', id BIGINT) USING delta")
    spark.sql(f"INSERT INTO delta.`{table}` VALUES ('t0', 0)")
    DeltaPublisher(kernel).publish(staged(kernel, table, "w1", [1]), APP, 1)
    assert ids(table) == [0, 1]
    assert sorted(DeltaTable(table).to_pyarrow_table()["text"].to_pylist()) == ["t0", "t1"]


WRONG_COLUMNS = {
    "missing": "id BIGINT",
    "more": "id BIGINT, text STRING, more INT",
    "type": "id INT, text STRING",
    "case": "id BIGINT, Text STRING",
    "nested": "id BIGINT, text STRUCT<a: STRING>",
}


@pytest.mark.parametrize("columns", WRONG_COLUMNS.values(), ids=WRONG_COLUMNS)
def test_other_columns_are_refused_and_both_sides_shown(
    spark: SparkSession, kernel: DeltaKernel, table: str, columns: str
) -> None:
    spark.sql(f"CREATE TABLE delta.`{table}` ({columns}) USING delta")
    with pytest.raises(SinkError, match="the output has id long, text string") as caught:
        DeltaSink(table).prepare(asked(kernel, SCHEMA, "w1"))
    assert all(c.split()[0] in str(caught.value) for c in columns.split(", "))


BY_SPARK: dict[str, tuple[str, str, str]] = {
    "column_mapping": (COLUMNS, "", "'delta.columnMapping.mode' = 'name'"),
    "not_null": ("id BIGINT NOT NULL, text STRING", "", ""),
    "generated": ("id BIGINT, text STRING, more STRING GENERATED ALWAYS AS (CAST(id AS STRING))", "", ""),
    "varchar": ("id BIGINT, text VARCHAR(2)", "", ""),
    "partitioned": (COLUMNS, "PARTITIONED BY (text)", ""),
    "clustered": (COLUMNS, "CLUSTER BY (id)", ""),
    "row_tracking": (COLUMNS, "", "'delta.enableRowTracking' = 'true'"),
    "widening": (COLUMNS, "", "'delta.enableTypeWidening' = 'true'"),
    "v2_checkpoint": (COLUMNS, "", "'delta.checkpointPolicy' = 'v2'"),
}


@pytest.mark.parametrize(("columns", "layout", "properties"), BY_SPARK.values(), ids=BY_SPARK)
def test_tables_that_plain_files_are_wrong_for_are_written_by_spark(
    spark: SparkSession, kernel: DeltaKernel, table: str, columns: str, layout: str, properties: str
) -> None:
    extra = f"TBLPROPERTIES ({properties})" if properties else ""
    spark.sql(f"CREATE TABLE delta.`{table}` ({columns}) USING delta {layout} {extra}")
    target = DeltaSink(table).prepare(asked(kernel, SCHEMA, "w1"))
    assert (target.kind, target.directory) == ("delta_spark", f"{target.uri}/_statelake_staged/w1")


def test_table_that_forgets_transactions_is_refused(
    spark: SparkSession, kernel: DeltaKernel, table: str
) -> None:
    forgets = "'delta.setTransactionRetentionDuration' = 'interval 1 hours'"
    spark.sql(f"CREATE TABLE delta.`{table}` ({COLUMNS}) USING delta TBLPROPERTIES ({forgets})")
    with pytest.raises(SinkError, match=r"forgets what was published. Unset it"):
        DeltaSink(table).prepare(asked(kernel, SCHEMA, "w1"))


def test_identity_column_belongs_to_the_table(spark: SparkSession, kernel: DeltaKernel, table: str) -> None:
    _identity_table(spark, table)
    with pytest.raises(SinkError, match="identity column 'id'; leave it out"):
        DeltaSink(table).prepare(asked(kernel, SCHEMA, "w1"))
    text = pa.schema([("text", pa.string())])
    assert DeltaSink(table).prepare(asked(kernel, text, "w1")).kind == "delta_spark"


def _identity_table(spark: SparkSession, table: str) -> None:
    from delta.tables import DeltaTable as Builder
    from delta.tables import IdentityGenerator

    builder = Builder.create(spark).location(table).addColumn("text", "STRING")
    builder.addColumn("id", "BIGINT", generatedAlwaysAs=IdentityGenerator()).execute()


def test_constraint_that_is_added_between_stage_and_publish(
    spark: SparkSession, kernel: DeltaKernel, table: str
) -> None:
    mine = staged(kernel, table, "w1", [1])
    spark.sql(f"ALTER TABLE delta.`{table}` ADD CONSTRAINT positive CHECK (id > 5)")
    with pytest.raises(SinkError, match="the constraint positive"):
        DeltaPublisher(kernel).publish(mine, APP, 1)
    spark.sql(f"ALTER TABLE delta.`{table}` DROP CONSTRAINT positive")
    DeltaPublisher(kernel).publish(mine, APP, 1)
    assert ids(table) == [1]


def test_nested_not_null_is_seen(spark: SparkSession, kernel: DeltaKernel, table: str) -> None:
    schema = pa.schema([("s", pa.struct([("a", pa.int64())]))])
    spark.sql(f"CREATE TABLE delta.`{table}` (s STRUCT<a: BIGINT NOT NULL>) USING delta")
    assert DeltaSink(table).prepare(asked(kernel, schema, "w1")).kind == "delta_spark"


@pytest.mark.long
def test_features_that_do_not_matter_to_plain_files(
    spark: SparkSession, kernel: DeltaKernel, table: str
) -> None:
    properties = "'delta.enableDeletionVectors' = 'true', 'delta.appendOnly' = 'false'"
    spark.sql(f"CREATE TABLE delta.`{table}` ({COLUMNS}) USING delta TBLPROPERTIES ({properties})")
    DeltaPublisher(kernel).publish(staged(kernel, table, "w1", [1, 2]), APP, 1)
    spark.sql(f"DELETE FROM delta.`{table}` WHERE id = 1")
    DeltaPublisher(kernel).publish(staged(kernel, table, "w2", [3]), APP, 2)
    assert sorted(r["id"] for r in spark.read.format("delta").load(table).collect()) == [2, 3]


def test_nothing_staged_publishes_nothing(kernel: DeltaKernel, table: str) -> None:
    empty = replace(staged(kernel, table, "w1", [1]), files=[])
    DeltaPublisher(kernel).publish(empty, APP, 1)
    assert DeltaTable(table).version() == 0


def test_paths_with_patterns_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="pattern"):
        DeltaSink(str(tmp_path / "a*b"))


def test_a_second_root_is_refused_unless_both_say_that_they_share(kernel: DeltaKernel, table: str) -> None:
    """Also where only a log checkpoint knows the first one's transactions."""
    DeltaPublisher(kernel).publish(staged(kernel, table, "w1", [1]), APP, 1)
    other = "4567/job/out"
    for _ in range(12):
        with pytest.raises(SinkIdentityError, match=r"the same job of another root, '0123/job/out'"):
            DeltaSink(table).prepare(asked(kernel, SCHEMA, "w2", app=other))
        kernel.append(f"file://{table}", [])
    kernel.join_hooks()
    log = Path(table) / "_delta_log"
    assert list(log.glob("*.checkpoint.parquet"))
    for commit in log.glob("0000000000000000000[0-9].json"):
        commit.unlink()
    assert DeltaLog(f"file://{table}").writers() == {APP}
    shared = DeltaSink(table, shared=True).prepare(asked(kernel, SCHEMA, "w2", app=other))
    known = DeltaSink(table).prepare(replace(asked(kernel, SCHEMA, "w2", app=other), known=True))
    assert shared == known
    DeltaSink(table).prepare(asked(kernel, SCHEMA, "w2", app="4567/job/too"))  # another sink
