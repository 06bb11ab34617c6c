"""Commits by put-if-absent: one of many writers wins, also where an answer leaves open whether an entry was written."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from state_engine.core.checkpoints.checkpoint import DataFile
from state_engine.core.errors import JarsError
from state_engine.spark.log_store import LOG_STORE_JAR
from state_engine.storage.delta.kernel import DeltaKernel, Transaction, TransactionTakenError
from state_engine.storage.delta.log import DeltaLog
from state_engine.storage.root import open_root
from state_engine.storage.stores.files import open_location, write_parquet
from tests.support.store_proxy import Fault, Request, StoreProxy

SCHEMA = pa.schema([("who", pa.string()), ("n", pa.int64())])


def file(uri: str, who: str, n: int) -> DataFile:
    """A file with one row."""
    name = f"{who}-{n}.parquet"
    size = write_parquet(pa.table({"who": [who], "n": [n]}, schema=SCHEMA), f"{uri}/{name}").bytes
    return DataFile(path=name, bytes=size, rows=1, subtask=0)


def test_the_jar_is_made_of_the_source(spark: SparkSession) -> None:
    made = LOG_STORE_JAR.compiled(spark._jvm)
    assert made == LOG_STORE_JAR.path().read_bytes()
    assert hashlib.sha256(made).hexdigest() == LOG_STORE_JAR.sha256


def test_another_jar_than_the_pinned_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.jar").write_bytes(b"other")
    with pytest.raises(JarsError, match="install statelake again"):
        replace(LOG_STORE_JAR, jar=tmp_path / "other.jar").path()


def test_what_is_there_is_not_written_again(kernel: DeltaKernel, store: StoreProxy, uri: str) -> None:
    assert kernel.write_new(f"{uri}/a.json", "mine")
    assert not kernel.write_new(f"{uri}/a.json", "another's")
    assert kernel.write_new(f"{uri}/a.json", "mine"), "it is there, as it was to be written"
    assert open_location(f"{uri}/a.json").read() == b"mine\n"


class Once:
    """A fault of the first request that creates an entry, and of no other."""

    def __init__(self, fault: Fault) -> None:
        self.fault, self.happened = fault, 0

    def __call__(self, request: Request) -> Fault | None:
        if self.happened or not request.creates_an_entry:
            return None
        self.happened += 1
        return self.fault


OPEN = {
    "the answer is lost": Fault(lose_answer=True),
    "the request comes later": Fault(late_s=0.1),
    "the request comes much later": Fault(late_s=3.0),
    "a conflict is reported": Fault(status=409),
    "the store is busy": Fault(status=503),
    "the store breaks": Fault(status=500),
}


@pytest.mark.parametrize("fault", OPEN.values(), ids=OPEN.keys())
def test_an_open_answer_is_resolved_by_who_wrote_the_entry(
    kernel: DeltaKernel, store: StoreProxy, uri: str, fault: Fault
) -> None:
    kernel.create_table(uri, SCHEMA)
    store.fault = once = Once(fault)
    assert kernel.append(uri, [file(uri, "me", 1)], transaction=Transaction("app", 1)) == 1
    assert once.happened == 1
    for late in store.late:
        late.join()
    with pytest.raises(TransactionTakenError):
        kernel.append(uri, [file(uri, "me", 1)], transaction=Transaction("app", 1))
    newest = DeltaLog(uri).newest()
    assert newest is not None
    assert (newest.version, sorted(newest.files), dict(newest.transactions)) == (
        1,
        ["me-1.parquet"],
        {"app": 1},
    )


@pytest.mark.parametrize("fault", OPEN.values(), ids=OPEN.keys())
def test_an_open_answer_after_another_writer_was_faster(
    spark: SparkSession, kernel: DeltaKernel, store: StoreProxy, uri: str, fault: Fault
) -> None:
    """The entry that is there is the other's, and this one takes the next version."""
    kernel.create_table(uri, SCHEMA)
    other = DeltaKernel(spark)
    once = Once(fault)

    def overtaken(request: Request) -> Fault | None:
        if not once.happened and request.creates_an_entry:
            decision = once(request)
            assert other.append(uri, [file(uri, "other", 1)], transaction=Transaction("other", 1)) == 1
            return decision
        return None

    store.fault = overtaken
    assert kernel.append(uri, [file(uri, "me", 1)], transaction=Transaction("app", 1)) == 2
    for late in store.late:
        late.join()
    newest = DeltaLog(uri).newest()
    assert newest is not None
    assert newest.files == {"me-1.parquet", "other-1.parquet"}
    assert newest.transactions == {"app": 1, "other": 1}
    other.close()


def test_no_commit_of_many_writers_is_lost(spark: SparkSession, store: StoreProxy, uri: str) -> None:
    DeltaKernel(spark).create_table(uri, SCHEMA)

    def write(who: int) -> list[int]:
        kernel = DeltaKernel(spark)
        versions = [kernel.append(uri, [file(uri, f"w{who}", n)]) for n in range(4)]
        kernel.close()
        return versions

    with ThreadPoolExecutor(4) as pool:
        versions = [version for of_one in pool.map(write, range(4)) for version in of_one]
    assert sorted(versions) == list(range(1, 17)), "each version has one writer"
    newest = DeltaLog(uri).newest()
    assert newest is not None
    assert newest.files == {f"w{who}-{n}.parquet" for who in range(4) for n in range(4)}


def at_once(action: Callable[[DeltaKernel], Any], spark: SparkSession) -> list[Any]:
    """What several runners get for an action, each with a Kernel of its own."""
    kernels = [DeltaKernel(spark) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(action, kernels))


def test_one_of_many_makes_a_table_and_the_others_have_it(
    spark: SparkSession, store: StoreProxy, uri: str
) -> None:
    made = at_once(lambda kernel: kernel.create_table(uri, SCHEMA), spark)
    assert sorted(made) == [False, False, False, True]


def test_first_runners_get_one_id_for_their_root(spark: SparkSession, store: StoreProxy, uri: str) -> None:
    ids = at_once(lambda kernel: open_root(uri, create=True, write_new=kernel.write_new), spark)
    assert set(ids) == {open_root(uri, create=False)} != {None}


def test_spark_writes_with_the_same_log_store(spark: SparkSession, store: StoreProxy, uri: str) -> None:
    kernel = DeltaKernel(spark)
    kernel.create_table(uri, SCHEMA)
    store.fault = once = Once(Fault(lose_answer=True))
    rows = spark.createDataFrame([("spark", 1)], "who string, n bigint")
    rows.write.format("delta").mode("append").save(uri)
    assert once.happened == 1
    assert kernel.version(uri) == 1
    assert [tuple(row) for row in spark.read.format("delta").load(uri).collect()] == [("spark", 1)]
