"""``DeltaKernel``: tables, commits and their ends; and that two processes cannot damage a log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from state_engine.core.checkpoints.checkpoint import DataFile
from state_engine.core.errors import CommitFailedError, LockTimeoutError
from state_engine.storage.delta.commit_actions import CommitActions
from state_engine.storage.delta.kernel import (
    DeltaKernel,
    FileGroup,
    InactiveFilesError,
    Transaction,
    TransactionTakenError,
)
from state_engine.storage.delta.kernel_engines import use_plain_local_files
from state_engine.storage.delta.log import DeltaLog
from state_engine.storage.layout import TABLE_PROPERTIES
from state_engine.storage.stores.files import write_parquet
from state_engine.storage.stores.locks import table_lock

SCHEMA = pa.schema([("who", pa.string()), ("n", pa.int64())])


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"file://{tmp_path}/a table"


def file(uri: str, who: str, n: int) -> DataFile:
    name = f"{who}-{n}.parquet"
    size = write_parquet(pa.table({"who": [who], "n": [n]}, schema=SCHEMA), f"{uri}/{name}").bytes
    return DataFile(path=name, bytes=size, rows=1, subtask=0)


def append(kernel: DeltaKernel, uri: str, who: str, times: int) -> None:
    for n in range(times):
        kernel.append(uri, [file(uri, who, n)])


def rows(uri: str) -> list[tuple[str, int]]:
    """Read with delta-rs."""
    stored = DeltaTable(uri.removeprefix("file://")).to_pyarrow_table().to_pylist()
    return sorted((r["who"], r["n"]) for r in stored)


def test_create_once_and_look(kernel: DeltaKernel, uri: str) -> None:
    assert (kernel.exists(uri), kernel.version(uri), kernel.facts(uri), kernel.active_files(uri)) == (
        False, None, None, []
    )  # fmt: skip
    assert kernel.create_table(uri, SCHEMA, properties={"delta.logRetentionDuration": "interval 9 days"})
    assert not kernel.create_table(uri, SCHEMA)
    facts = kernel.facts(uri)
    assert facts is not None
    assert facts.properties["delta.logRetentionDuration"] == "interval 9 days"
    assert [f["name"] for f in facts.schema["fields"]] == ["who", "n"]
    append(kernel, uri, "me", 2)
    assert sorted(kernel.active_files(uri)) == ["me-0.parquet", "me-1.parquet"]
    assert kernel.version(uri) == 2
    assert rows(uri) == [("me", 0), ("me", 1)]


def test_a_transaction_version_is_taken_once(kernel: DeltaKernel, uri: str) -> None:
    kernel.create_table(uri, SCHEMA)
    assert kernel.latest_transaction(uri, "app") is None
    kernel.append(uri, [file(uri, "first", 1)], transaction=Transaction("app", 3))
    for version in (3, 2):
        with pytest.raises(TransactionTakenError):
            kernel.append(uri, [file(uri, "second", version)], transaction=Transaction("app", version))
    kernel.append(uri, [file(uri, "other", 1)], transaction=Transaction("other app", 1))
    assert kernel.latest_transaction(uri, "app") == 3
    assert rows(uri) == [("first", 1), ("other", 1)]


def test_exactly_one_of_many_threads_commits_a_transaction(kernel: DeltaKernel, uri: str) -> None:
    kernel.create_table(uri, SCHEMA)

    def attempt(n: int) -> bool:
        try:
            kernel.append(uri, [file(uri, "racer", n)], transaction=Transaction("app", 1))
        except CommitFailedError:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        won = list(pool.map(attempt, range(6)))
    assert won.count(True) == 1
    assert rows(uri) == [("racer", won.index(True))]


def test_a_held_lock_stops_commits(spark: SparkSession, kernel: DeltaKernel, uri: str) -> None:
    kernel.create_table(uri, SCHEMA)
    impatient = DeltaKernel(spark, lock_timeout_s=0.05)
    with table_lock(uri), pytest.raises(LockTimeoutError, match="a table"):
        impatient.append(uri, [file(uri, "me", 1)])
    assert rows(uri) == []
    impatient.append(uri, [file(uri, "me", 1)])
    impatient.close()
    assert rows(uri) == [("me", 1)]


def actions(uri: str, version: int) -> list[tuple[str, str | int]]:
    """Kind and name of what a commit holds, besides who made it."""
    entry = Path(uri.removeprefix("file://")) / "_delta_log" / f"{version:020d}.json"
    versions: list[tuple[str, str | int]] = []
    for line in entry.read_text().splitlines():
        ((kind, action),) = json.loads(line).items()
        if kind != "commitInfo":
            versions.append((kind, action["version"] if kind == "txn" else action["path"]))
    return sorted(versions)


def test_files_come_and_go_in_one_commit(spark: SparkSession, kernel: DeltaKernel, uri: str) -> None:
    kernel.create_table(uri, SCHEMA)
    append(kernel, uri, "old", 3)
    new = FileGroup([file(uri, "new", 7)])
    at = Transaction("app", 4)
    version = kernel.change(uri, add=[new], remove=["old-0.parquet", "old-2.parquet"], transaction=at)
    assert actions(uri, version) == [
        ("add", "new-7.parquet"), ("remove", "old-0.parquet"), ("remove", "old-2.parquet"), ("txn", 4)
    ]  # fmt: skip
    assert rows(uri) == [("new", 7), ("old", 1)]
    assert spark.read.format("delta").load(uri).count() == 2
    assert sorted(kernel.active_files(uri)) == ["new-7.parquet", "old-1.parquet"]
    kernel.change(uri, add=[FileGroup([file(uri, "old", 0)])], remove=["new-7.parquet", "old-1.parquet"])
    assert rows(uri) == [("old", 0)], "a file that was removed may come back"
    kernel.change(uri, add=[], remove=["old-0.parquet"])
    assert rows(uri) == []
    with pytest.raises(TransactionTakenError):
        kernel.change(uri, add=[new], remove=["old-0.parquet"], transaction=at)


def test_files_of_several_partitions_in_one_commit(kernel: DeltaKernel, uri: str) -> None:
    kernel.create_table(uri, pa.schema([*SCHEMA, ("part", pa.string())]), partition_by=["part"])
    groups = [FileGroup([file(uri, who, 1)], {"part": who}) for who in ("a", "b")]
    kernel.change(uri, add=groups)
    stored = DeltaTable(uri.removeprefix("file://")).to_pyarrow_table().to_pylist()
    assert sorted((r["who"], r["part"]) for r in stored) == [("a", "a"), ("b", "b")]


def test_what_the_log_says_of_a_file(spark: SparkSession, kernel: DeltaKernel, uri: str) -> None:
    """Values of partitions as text, a path that readers decode, and statistics of columns that stand in the file."""
    columns = pa.schema([("key_hash", pa.int64()), ("base_id", pa.string()), ("key_group", pa.int64())])
    kernel.create_table(uri, columns, partition_by=["base_id", "key_group"])
    size = write_parquet(pa.table({"key_hash": [-3, 8]}), f"{uri}/part=1/a b%ü.parquet").bytes
    file = DataFile("part=1/a b%ü.parquet", size, 2, 0, 5, 5, -3, 8)
    version = kernel.change(uri, add=[FileGroup([file], {"base_id": "one", "key_group": 5})])
    (add,) = DeltaLog(uri).commit(version).of("add")
    assert add.pop("modificationTime") == pytest.approx(time.time() * 1000, abs=60_000)
    assert {name: value for name, value in add.items() if value is not None} == {
        "path": "part=1/a%20b%25%C3%BC.parquet",
        "partitionValues": {"base_id": "one", "key_group": "5"},
        "size": size,
        "dataChange": True,
        "stats": '{"numRecords": 2, "minValues": {"key_hash": -3}, "maxValues": {"key_hash": 8}}',
    }
    read = spark.read.format("delta").load(uri)
    assert {tuple(row) for row in read.collect()} == {(-3, "one", 5), (8, "one", 5)}
    assert read.where("key_hash > 8").count() == 0
    assert DeltaTable(uri.removeprefix("file://")).to_pyarrow_table().num_rows == 2
    assert kernel.active_files(uri) == [file.path]


@pytest.mark.parametrize("partition", [{}, {"part": "a", "more": "b"}, {"other": "a"}])
def test_files_of_other_partition_columns_are_refused(
    kernel: DeltaKernel, uri: str, partition: dict[str, str]
) -> None:
    kernel.create_table(uri, pa.schema([*SCHEMA, ("part", pa.string())]), partition_by=["part"])
    with pytest.raises(CommitFailedError, match=r"partitioned by \[part\].*Nothing was written"):
        kernel.append(uri, [file(uri, "a", 1)], partition=partition)
    assert kernel.version(uri) == 0


def test_files_to_remove_that_are_not_there_stop_the_commit(kernel: DeltaKernel, uri: str) -> None:
    kernel.create_table(uri, SCHEMA)
    append(kernel, uri, "old", 1)
    new = FileGroup([file(uri, "new", 7)])
    with pytest.raises(InactiveFilesError, match=r"no longer has 1 file .*: gone\.parquet") as caught:
        kernel.change(uri, add=[new], remove=["old-0.parquet", "gone.parquet"])
    assert caught.value.paths == ["gone.parquet"]
    assert rows(uri) == [("old", 0)]


@pytest.mark.parametrize("rewritten", [False, True], ids=["beside", "the same file"])
def test_another_writer_between_looking_and_committing(
    kernel: DeltaKernel, uri: str, monkeypatch: pytest.MonkeyPatch, rewritten: bool
) -> None:
    kernel.create_table(uri, SCHEMA)
    append(kernel, uri, "old", 2)
    scan = CommitActions.scan
    shown: list[DeltaTable] = []

    def interrupted(self: CommitActions, *args: Any) -> Any:
        scanned = list(scan(self, *args))
        if not shown:
            shown.append(DeltaTable(uri.removeprefix("file://")))
            if rewritten:
                shown[0].optimize.compact()
            else:
                write_deltalake(shown[0], pa.table({"who": ["user"], "n": [5]}), mode="append")
        return scanned

    monkeypatch.setattr(CommitActions, "scan", interrupted)
    new = FileGroup([file(uri, "new", 7)])
    if rewritten:
        with pytest.raises(InactiveFilesError):
            kernel.change(uri, add=[new], remove=["old-0.parquet"])
        assert rows(uri) == [("old", 0), ("old", 1)]
    else:
        kernel.change(uri, add=[new], remove=["old-0.parquet"])
        assert rows(uri) == [("new", 7), ("old", 1), ("user", 5)]


def test_a_log_that_another_process_cleaned_up_is_read_anew(kernel: DeltaKernel, uri: str) -> None:
    """No version came since, but what the snapshot was read from is gone."""
    kernel.create_table(uri, SCHEMA)
    append(kernel, uri, "old", 3)
    DeltaTable(uri.removeprefix("file://")).create_checkpoint()
    for version in range(3):
        (Path(uri.removeprefix("file://")) / "_delta_log" / f"{version:020d}.json").unlink()
    assert sorted(kernel.active_files(uri)) == ["old-0.parquet", "old-1.parquet", "old-2.parquet"]


def test_a_log_is_cleaned_up_and_forgets_no_transaction(kernel: DeltaKernel, uri: str) -> None:
    kernel.create_table(uri, SCHEMA, properties=TABLE_PROPERTIES)
    log = Path(uri.removeprefix("file://")) / "_delta_log"
    kernel.append(uri, [file(uri, "me", 0)], transaction=Transaction("app", 7))
    append(kernel, uri, "old", 28)
    kernel.join_hooks()
    for one in log.iterdir():
        before = time.time() - timedelta(days=1, hours=1).total_seconds()
        os.utime(one, (before, before))
    append(kernel, uri, "new", 5)
    kernel.join_hooks()
    left = sorted(f.name[:20].lstrip("0") + f.name[20:] for f in log.iterdir() if f.name[0] != "_")
    kept = [f"{v}.json" for v in range(20, 35)] + ["20.checkpoint.parquet", "30.checkpoint.parquet"]
    checksums = [f"{v}.crc" for v in range(30, 35)]
    assert left == sorted([*kept, *checksums])
    assert kernel.latest_transaction(uri, "app") == 7
    assert rows(uri) == sorted([("me", 0), *(("old", n) for n in range(28)), *(("new", n) for n in range(5))])
    snapshot = DeltaLog(uri).newest()
    assert snapshot is not None
    assert (snapshot.version, snapshot.transactions["app"], len(snapshot.files)) == (34, 7, 34)


OTHER_PROCESS = """
import sys
from state_engine.storage.delta.kernel import DeltaKernel
from state_engine.spark.session import local_session
from state_engine.machine.settings import SparkSettings
from tests.storage.test_kernel import append
kernel = DeltaKernel(local_session(SparkSettings(master="local[1]", driver_memory="1g")))
print("ready", flush=True)
sys.stdin.readline()
append(kernel, sys.argv[1], "other", 25)
kernel.close()
print("done", flush=True)
"""


@pytest.mark.long
def test_two_processes_append_to_one_table(kernel: DeltaKernel, uri: str) -> None:
    kernel.create_table(uri, SCHEMA)
    other = subprocess.Popen(
        [sys.executable, "-c", OTHER_PROCESS, uri],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert other.stdin is not None
        assert other.stdout is not None
        assert "ready" in other.stdout.readline()
        other.stdin.write("\n")
        other.stdin.flush()
        append(kernel, uri, "me", 25)
        kernel.join_hooks()
        out, _ = other.communicate()
        assert "done" in out
    finally:
        other.kill()
        other.wait()
    assert rows(uri) == sorted([(who, n) for who in ("me", "other") for n in range(25)])
    assert kernel.version(uri) == 50
    assert len(kernel.active_files(uri)) == 50


def test_a_local_file_is_created_without_a_process(spark: SparkSession, tmp_path: Path) -> None:
    jvm: Any = spark._jvm
    context: Any = spark._jsc
    configuration = context.hadoopConfiguration()
    own = jvm.org.apache.hadoop.conf.Configuration(configuration)
    use_plain_local_files(jvm, own)
    path = jvm.org.apache.hadoop.fs.Path(f"file:{tmp_path}/of-hadoop")
    files = path.getFileSystem(own)
    assert files.getClass().getName() == "statelake.PlainLocalFileSystem"
    files.create(path, True).close()
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / "of-hadoop").stat().st_mode & 0o777 == 0o666 & ~umask
    files.setPermission(path, jvm.org.apache.hadoop.fs.permission.FsPermission("640"))
    assert (tmp_path / "of-hadoop").stat().st_mode & 0o777 == 0o640
    assert path.getFileSystem(configuration).getClass().getName() != "statelake.PlainLocalFileSystem"
