"""Delta tables that Kernel cannot write: Spark writes them exactly once, and reports rows that they refuse."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.readwriter import DataFrameWriter

from state_engine import DeltaSink
from state_engine.core.checkpoints.checkpoint import StagedSink
from state_engine.core.errors import DamagedFileError, MissingFilesError, SinkError, SinkIdentityError
from state_engine.sinks.delta_spark import SparkDeltaPublisher
from state_engine.storage.delta.kernel import DeltaKernel
from state_engine.storage.stores import durability
from tests.faults.retried_flips import PLACES, flipped
from tests.sinks.requests import APP, asked, staged_files

pytestmark = [pytest.mark.spark, pytest.mark.long]


SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
MAPPED = "'delta.columnMapping.mode' = 'name'"


@pytest.fixture
def table(tmp_path: Path) -> str:
    return str(tmp_path / "out ü")


def create(spark: SparkSession, table: str, columns: str, rest: str = "") -> None:
    spark.sql(f"CREATE TABLE delta.`{table}` ({columns}) USING delta {rest}")


def staged(
    kernel: DeltaKernel, table: str, write_id: str, ids: list[int | None], *, lineage: bool = False
) -> StagedSink:
    rows = pa.table({"id": ids, "text": [f"t{i}" for i in ids]}, schema=SCHEMA)
    outputs = staged_files(DeltaSink(table, lineage=lineage), asked(kernel, SCHEMA, write_id), rows)
    assert outputs.kind == "delta_spark"
    return outputs


def rows(spark: SparkSession, table: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(r) for r in spark.read.format("delta").load(table).collect())


def version(kernel: DeltaKernel, table: str) -> int | None:
    return kernel.version(f"file://{table}")


@pytest.mark.parametrize(
    "end", [KeyboardInterrupt(), PySparkException("the answer is lost")], ids=["dies", "fails"]
)
def test_what_spark_committed_is_synced_whoever_finds_it(
    end: BaseException,
    spark: SparkSession,
    kernel: DeltaKernel,
    table: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the next process, where this one died; or where the answer was lost. No later commit would do so."""
    create(spark, table, "id BIGINT NOT NULL, text STRING", "PARTITIONED BY (text)")
    one, save, synced = staged(kernel, table, "w1", [1, 2]), DataFrameWriter.save, list[str]()
    fsync = durability.fsync_path

    def dies(self: DataFrameWriter, path: str) -> None:
        save(self, path)
        raise end

    def noted(path: str) -> None:
        synced.append(path)
        fsync(path)

    with monkeypatch.context() as patch:
        patch.setattr(DataFrameWriter, "save", dies)
        with suppress(KeyboardInterrupt):
            if isinstance(end, PySparkException):
                patch.setattr(durability, "fsync_path", noted)
            SparkDeltaPublisher(kernel).publish(one, APP, 1)
    if isinstance(end, KeyboardInterrupt):
        monkeypatch.setattr(durability, "fsync_path", noted)
        SparkDeltaPublisher(kernel).check_seen(one, APP, 1)
    added = list(Path(table).glob("text=*/*.parquet"))
    assert len(added) == 2
    assert {*map(str, added), f"{table}/_delta_log/{1:020d}.json"} <= set(synced)


def test_rows_are_written_once_whatever_happens(
    spark: SparkSession, kernel: DeltaKernel, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled = "twice BIGINT GENERATED ALWAYS AS (id * 2)"
    create(
        spark, table, f"id BIGINT NOT NULL, text STRING, {filled}",
        f"PARTITIONED BY (text) TBLPROPERTIES ({MAPPED})",
    )  # fmt: skip
    one, two = staged(kernel, table, "w1", [1, 2]), staged(kernel, table, "w2", [3])
    assert rows(spark, table) == []
    save = DataFrameWriter.save
    for after in (False, True):

        def dies(self: DataFrameWriter, path: str, *, after: bool = after) -> None:
            if after:
                save(self, path)
            raise KeyboardInterrupt

        monkeypatch.setattr(DataFrameWriter, "save", dies)
        with pytest.raises(KeyboardInterrupt):
            SparkDeltaPublisher(kernel).publish(one, APP, 1)
        monkeypatch.undo()
        assert SparkDeltaPublisher(kernel).seen(one.path, APP) == int(after)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: SparkDeltaPublisher(kernel).publish(two, APP, 2), range(3)))
    SparkDeltaPublisher(kernel).publish(one, APP, 1)
    assert rows(spark, table) == [(1, "t1", 2), (2, "t2", 4), (3, "t3", 6)]
    assert version(kernel, table) == 2, "one commit a checkpoint"


def test_a_flipped_bit_in_a_staged_file_is_not_reported_as_rows_that_the_table_refuses(
    spark: SparkSession, kernel: DeltaKernel, table: str
) -> None:
    create(spark, table, "id BIGINT, text STRING", "PARTITIONED BY (id)")
    mine = staged(kernel, table, "w1", [1])
    file = Path(mine.path.removeprefix("file://")) / mine.files[0].path
    for place in PLACES:
        with flipped(file, place), pytest.raises(DamagedFileError, match=file.name):
            SparkDeltaPublisher(kernel).publish(mine, APP, 1)
    SparkDeltaPublisher(kernel).publish(mine, APP, 1)
    assert rows(spark, table) == [(1, "t1")]


def test_another_attempt_under_the_same_transaction_is_refused(
    spark: SparkSession, kernel: DeltaKernel, table: str
) -> None:
    create(spark, table, "id BIGINT, text STRING", "PARTITIONED BY (id)")
    mine, other = staged(kernel, table, "w1", [1]), staged(kernel, table, "w2", [9])
    SparkDeltaPublisher(kernel).publish(other, APP, 1)
    with pytest.raises(SinkIdentityError, match="already holds other rows of checkpoint 1"):
        SparkDeltaPublisher(kernel).publish(mine, APP, 1)
    assert rows(spark, table) == [(9, "t9")]
    shutil.move(table, f"{table} aside")
    with pytest.raises(SinkIdentityError, match="is gone since rows were staged"):
        SparkDeltaPublisher(kernel).publish(mine, APP, 2)


def test_rows_that_the_table_does_not_take(spark: SparkSession, kernel: DeltaKernel, table: str) -> None:
    create(spark, table, "id BIGINT NOT NULL, text STRING")
    spark.sql(f"ALTER TABLE delta.`{table}` ADD CONSTRAINT positive CHECK (id > 0)")
    publisher = SparkDeltaPublisher(kernel)
    negative, nothing = staged(kernel, table, "w1", [1, -1]), staged(kernel, table, "w2", [None])
    for one, shown in (
        (negative, r"CHECK constraint positive"),
        (nothing, r"CHECK constraint positive|NOT NULL"),
    ):
        with pytest.raises(
            SinkError, match=f"does not take the rows of checkpoint 1: .*({shown}).*nothing is lost"
        ):
            publisher.publish(one, APP, 1)
    assert rows(spark, table) == []
    spark.sql(f"ALTER TABLE delta.`{table}` DROP CONSTRAINT positive")
    publisher.publish(negative, APP, 1)
    assert rows(spark, table) == [(-1, "t-1"), (1, "t1")]


def test_staged_rows_that_are_gone(spark: SparkSession, kernel: DeltaKernel, table: str) -> None:
    create(spark, table, "id BIGINT, text STRING", "PARTITIONED BY (id)")
    mine = staged(kernel, table, "w1", [1])
    (Path(table) / mine.files[0].path).unlink()
    with pytest.raises(MissingFilesError, match="is gone"):
        SparkDeltaPublisher(kernel).publish(mine, APP, 1)


def test_rows_are_withdrawn_by_lineage_only(spark: SparkSession, kernel: DeltaKernel, table: str) -> None:
    create(spark, table, "id BIGINT, text STRING, _write_id STRING", "PARTITIONED BY (text)")
    publisher = SparkDeltaPublisher(kernel)
    sinks = [staged(kernel, table, f"w{i}", [i], lineage=True) for i in (1, 2, 3)]
    for checkpoint_id, one in enumerate(sinks[:2], start=1):
        publisher.publish(one, APP, checkpoint_id)
    before = rows(spark, table)
    away = replace(sinks[2], withdrawn=sinks[1].files)
    publisher.check_withdrawable(away)
    for _ in range(2):
        publisher.publish(away, APP, 3)
        assert rows(spark, table) == [(1, "t1", "w1"), (3, "t3", "w3")]
    assert version(kernel, table) == 3, "one commit, and none when it is repeated"
    publisher.publish(replace(sinks[1], withdrawn=sinks[2].files), APP, 4)
    assert rows(spark, table) == before
    publisher.publish(replace(sinks[1], files=[], withdrawn=sinks[1].files), APP, 5)
    assert rows(spark, table) == before[:1]
    assert publisher.seen(sinks[0].path, APP) == 5


def test_without_lineage_nothing_is_withdrawn(spark: SparkSession, kernel: DeltaKernel, table: str) -> None:
    create(spark, table, "id BIGINT, text STRING", "PARTITIONED BY (id)")
    one = staged(kernel, table, "w1", [1])
    SparkDeltaPublisher(kernel).publish(one, APP, 1)
    away = replace(one, files=[], withdrawn=one.files)
    shown = r'only a lineage column.*lineage=True.*outputs="keep"'
    with pytest.raises(SinkError, match=shown):
        SparkDeltaPublisher(kernel).check_withdrawable(away)
    with pytest.raises(SinkError, match=shown):
        SparkDeltaPublisher(kernel).publish(away, APP, 2)
    assert rows(spark, table) == [(1, "t1")]


@pytest.mark.parametrize("columns", ["id BIGINT", "id BIGINT, text STRING, more INT", "id INT, text STRING"])
def test_other_columns_are_refused(
    spark: SparkSession, kernel: DeltaKernel, table: str, columns: str
) -> None:
    create(spark, table, columns, f"TBLPROPERTIES ({MAPPED})")
    with pytest.raises(SinkError, match="the output has id long, text string"):
        DeltaSink(table).prepare(asked(kernel, SCHEMA, "w1"))
