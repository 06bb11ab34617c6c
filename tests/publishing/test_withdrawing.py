"""Outputs that are withdrawn from a Delta sink and published again, by their files or lineage column; dead letters."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from state_engine import DeltaSink
from state_engine.core.checkpoints.checkpoint import DataFile, StagedSink
from state_engine.core.checkpoints.row_outputs import DEAD_LETTERS
from state_engine.core.errors import ConfigurationError, MissingFilesError, SinkError, SinkIdentityError
from state_engine.job.job_tables import JobTables
from state_engine.publishing.publishers import DeadLetterPublisher
from state_engine.sinks.delta import DeltaPublisher
from state_engine.storage.delta.kernel import DeltaKernel
from state_engine.storage.layout import DEAD_LETTERS_SCHEMA, JobLayout, file_name, partition_path
from state_engine.storage.stores.files import join, write_parquet
from tests.sinks.requests import APP, asked, move, staged_files

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


@pytest.fixture
def table(tmp_path: Path) -> str:
    return str(tmp_path / "out ü")


def staged(
    kernel: DeltaKernel, table: str, write_id: str, ids: list[int], *, lineage: bool = False
) -> StagedSink:
    """The staged outputs of one attempt with two subtasks."""
    subtasks = [
        pa.table({"id": some, "text": [f"t{i}" for i in some]}, schema=SCHEMA)
        for some in (ids[::2], ids[1::2])
    ]
    return staged_files(DeltaSink(table, lineage=lineage), asked(kernel, SCHEMA, write_id), *subtasks)


def published(kernel: DeltaKernel, table: str, *, lineage: bool = False) -> list[StagedSink]:
    """Three checkpoints."""
    sinks = [staged(kernel, table, f"w{i}", [i * 10, i * 10 + 1], lineage=lineage) for i in (1, 2, 3)]
    for checkpoint_id, one in enumerate(sinks, start=1):
        DeltaPublisher(kernel).publish(one, APP, checkpoint_id)
    return sinks


def ids(table: str) -> list[int]:
    """Read with delta-rs."""
    return sorted(DeltaTable(table).to_pyarrow_table()["id"].to_pylist())


def by_spark(spark: SparkSession, table: str) -> list[tuple[int, str]]:
    return sorted((r["id"], r["text"]) for r in spark.read.format("delta").load(table).collect())


def test_outputs_are_withdrawn_and_come_again(spark: SparkSession, kernel: DeltaKernel, table: str) -> None:
    one, two, three = published(kernel, table)
    before, publisher = by_spark(spark, table), DeltaPublisher(kernel)
    other = staged(kernel, table, "w4", [40])
    away = move(one, add=[other], withdraw=[two, three])
    publisher.check_withdrawable(away)
    for _ in range(2):
        publisher.publish(away, APP, 4)
        assert ids(table) == [10, 11, 40]
    assert DeltaTable(table).version() == 4, "one commit, and none when it is repeated"
    assert publisher.seen(one.path, APP) == 4
    back = move(one, add=[two, three], withdraw=[other])
    publisher.check_withdrawable(back)
    publisher.publish(back, APP, 5)
    assert by_spark(spark, table) == before
    publisher.publish(away, APP, 4)
    publisher.publish(three, APP, 3)
    assert ids(table) == [10, 11, 20, 21, 30, 31], "what is published late changes nothing"
    publisher.publish(move(one, add=[], withdraw=[one, two, three]), APP, 6)
    assert ids(table) == []


def test_crash_before_and_after_the_commit_of_a_move(
    kernel: DeltaKernel, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, three = published(kernel, table)
    target = move(one, add=[], withdraw=[two, three])
    change = DeltaKernel.change
    for after in (False, True):

        def dies(self: DeltaKernel, uri: str, *, after: bool = after, **asked: Any) -> int:
            if after:
                change(self, uri, **asked)
            raise KeyboardInterrupt

        monkeypatch.setattr(DeltaKernel, "change", dies)
        with pytest.raises(KeyboardInterrupt):
            DeltaPublisher(kernel).publish(target, APP, 4)
        assert ids(table) == ([10, 11] if after else [10, 11, 20, 21, 30, 31])
        monkeypatch.undo()
    DeltaPublisher(kernel).publish(target, APP, 4)
    assert ids(table) == [10, 11]


def test_a_move_and_its_twins_at_once(kernel: DeltaKernel, table: str) -> None:
    one, two, three = published(kernel, table)
    target = move(one, add=[staged(kernel, table, "w4", [40])], withdraw=[two, three])
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: DeltaPublisher(kernel).publish(target, APP, 4), range(4)))
    assert ids(table) == [10, 11, 40]
    assert DeltaTable(table).version() == 4


def test_another_move_under_the_same_number_is_refused(kernel: DeltaKernel, table: str) -> None:
    one, two, three = published(kernel, table)
    DeltaPublisher(kernel).publish(move(one, add=[], withdraw=[two]), APP, 4)
    with pytest.raises(SinkIdentityError, match="already holds other rows of checkpoint 4"):
        DeltaPublisher(kernel).publish(move(one, add=[], withdraw=[three]), APP, 4)
    assert ids(table) == [10, 11, 30, 31]


@pytest.mark.parametrize("promise", ["appendOnly", "enableChangeDataFeed"])
def test_tables_that_promised_to_keep_rows(
    spark: SparkSession, kernel: DeltaKernel, table: str, promise: str
) -> None:
    one, two, _ = published(kernel, table)
    DeltaTable(table).alter.set_table_properties({f"delta.{promise}": "true"})
    target = move(one, add=[], withdraw=[two])
    shown = rf'{promise}=true.*outputs="keep"'
    with pytest.raises(SinkError, match=shown):
        DeltaPublisher(kernel).check_withdrawable(target)
    with pytest.raises(SinkError, match=shown):
        DeltaPublisher(kernel).publish(target, APP, 4)
    more = move(one, add=[staged(kernel, table, "w4", [40])], withdraw=[])
    DeltaPublisher(kernel).check_withdrawable(more)
    DeltaPublisher(kernel).publish(more, APP, 4)
    assert by_spark(spark, table)[-1] == (40, "t40")


@pytest.mark.long
def test_rewritten_files_without_lineage_and_the_way_out(
    spark: SparkSession, kernel: DeltaKernel, table: str
) -> None:
    one, two, three = published(kernel, table)
    spark.sql(f"OPTIMIZE delta.`{table}`")
    target, publisher = move(one, add=[], withdraw=[two, three]), DeltaPublisher(kernel)
    shown = r'4 of their files.*part-00000-w2-\w+-0.*outputs="keep".*RESTORE'
    with pytest.raises(SinkError, match=shown):
        publisher.check_withdrawable(target)
    with pytest.raises(SinkError, match=shown):
        publisher.publish(target, APP, 4)
    assert publisher.seen(one.path, APP) == 3
    spark.sql(f"RESTORE delta.`{table}` TO VERSION AS OF 3")
    publisher.publish(target, APP, 4)
    assert ids(table) == [10, 11]


def test_files_to_add_that_were_collected(kernel: DeltaKernel, table: str) -> None:
    one, two, _ = published(kernel, table)
    DeltaPublisher(kernel).publish(move(one, add=[], withdraw=[two]), APP, 4)
    (Path(table) / two.files[0].path).unlink()
    with pytest.raises(MissingFilesError):
        DeltaPublisher(kernel).check_withdrawable(move(one, add=[two], withdraw=[]))


@pytest.mark.long
def test_rewritten_rows_are_known_by_their_lineage(
    spark: SparkSession, kernel: DeltaKernel, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, three = published(kernel, table, lineage=True)
    spark.sql(f"OPTIMIZE delta.`{table}`")
    spark.sql(f"INSERT INTO delta.`{table}` VALUES (99, 'of a user', null)")
    before, version = by_spark(spark, table), DeltaTable(table).version()
    other = staged(kernel, table, "w4", [40], lineage=True)
    target, publisher = move(one, add=[other], withdraw=[two, three]), DeltaPublisher(kernel)
    publisher.check_withdrawable(target)
    for _ in range(2):
        publisher.publish(target, APP, 4)
        assert by_spark(spark, table) == [(10, "t10"), (11, "t11"), (40, "t40"), (99, "of a user")]
    assert DeltaTable(table).version() == version + 1, "one commit"
    rows = DeltaTable(table).to_pyarrow_table().to_pylist()
    assert {r["id"]: r["_write_id"] for r in rows} == {10: "w1", 11: "w1", 40: "w4", 99: None}
    publisher.publish(move(one, add=[two, three], withdraw=[other]), APP, 5)
    assert by_spark(spark, table) == before
    with pytest.raises(SinkIdentityError, match="already holds other rows of checkpoint 5"):
        publisher.publish(move(one, add=[], withdraw=[two]), APP, 5)


def test_lineage_needs_its_column(spark: SparkSession, kernel: DeltaKernel, table: str) -> None:
    DeltaPublisher(kernel).publish(staged(kernel, table, "w1", [1]), APP, 1)
    with pytest.raises(SinkError, match="for _write_id, see lineage="):
        staged(kernel, table, "w2", [2], lineage=True)
    spark.sql(f"ALTER TABLE delta.`{table}` ADD COLUMNS (_write_id STRING)")
    DeltaPublisher(kernel).publish(staged(kernel, table, "w2", [2], lineage=True), APP, 2)
    assert ids(table) == [1, 2]
    own = SCHEMA.append(pa.field("_write_id", pa.string()))
    with pytest.raises(ConfigurationError, match="has a column _write_id already"):
        DeltaSink(table, lineage=True).prepare(asked(kernel, own, "w3"))


# -- dead letters -----------------------------------------------------------------------------------------------------

LETTERS = "0123/job/dead_letters"


def letter(uri: str, write_id: str) -> DataFile:
    """A file with one refused row."""
    row = {f.name: [write_id if pa.types.is_string(f.type) else None] for f in DEAD_LETTERS_SCHEMA}
    path = partition_path(write_id, file_name(write_id, 0, 0))
    file = write_parquet(pa.table(row, schema=DEAD_LETTERS_SCHEMA), join(uri, path))
    return DataFile(path=path, bytes=file.bytes, rows=1, subtask=0)


def test_letters_are_withdrawn_and_come_again(spark: SparkSession, tmp_path: Path) -> None:
    kernel, layout = DeltaKernel(spark), JobLayout(f"file://{tmp_path}", "job")
    publisher = DeadLetterPublisher(kernel, JobTables(spark, kernel, layout, "0123"))
    uri = layout.dead_letters
    one, two, three = (letter(uri, w) for w in ("w1", "w2", "w3"))

    def row(files: list[DataFile], withdrawn: list[DataFile]) -> StagedSink:
        return StagedSink(DEAD_LETTERS, DEAD_LETTERS, uri, "w", "", files, withdrawn)

    def visible() -> list[tuple[str, str]]:
        rows = DeltaTable(uri.removeprefix("file://")).to_pyarrow_table().to_pylist()
        return sorted((r["error"], r["write_id"]) for r in rows)

    for checkpoint_id, files in enumerate(([one], [two], [three]), start=1):
        publisher.publish(row(files, []), LETTERS, checkpoint_id)
    for _ in range(2):
        publisher.publish(row([], [two, three]), LETTERS, 4)
        assert visible() == [("w1", "w1")]
    publisher.check_withdrawable(row([two, three], [one]))
    publisher.publish(row([two, three], [one]), LETTERS, 5)
    assert visible() == [("w2", "w2"), ("w3", "w3")]
    with pytest.raises(SinkError, match="1 of their files were rewritten or removed"):
        publisher.check_withdrawable(row([], [one]))
    with pytest.raises(SinkError, match="1 of their files were rewritten or removed"):
        publisher.publish(row([], [one]), LETTERS, 6)
    kernel.close()
