"""A store is used after it was seen to let one of many writers win; else it is refused, or vouched for."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from state_engine import DeltaSink, StateEngine
from state_engine.core.errors import StorageError, UnsafeStoreError
from state_engine.storage.delta import store_checks
from state_engine.storage.delta.kernel import DeltaKernel
from state_engine.storage.delta.kernel_classes import KernelClasses
from state_engine.storage.delta.kernel_engines import KernelEngines
from state_engine.storage.delta.log_stores import PUT_IF_ABSENT, check_log_store, spark_options
from state_engine.storage.delta.store_checks import LogStores, StoreChecks, Verdict, store_name
from state_engine.storage.stores.files import open_location
from state_engine.storage.stores.object_stores import PROCESS_STORES
from tests.sinks.requests import asked
from tests.support import stores
from tests.support.store_proxy import Fault, StoreProxy

SCHEMA = pa.schema([("n", pa.int64())])
Opened = Callable[..., DeltaKernel]


@pytest.fixture
def opened(spark: SparkSession, store: StoreProxy, uri: str) -> Opened:
    """Opens a Kernel that checks stores for the root ``uri``, as a new process does."""

    def kernel(*, single_writer: bool = False, names: int = stores.QUICK_RACE) -> DeltaKernel:
        checks = StoreChecks(uri, spark._jsc, single_writer=single_writer, names=names)
        return DeltaKernel(spark, checks=checks)

    return kernel


def verdicts(uri: str) -> list[Verdict]:
    """What is written down below a root."""
    at = open_location(f"{uri}/_stores")
    return [Verdict(**at.inside(name).read_json()) for name in sorted(at.names(missing_ok=True))]


@pytest.mark.usefixtures("quick_race")
def test_a_store_is_raced_for_once_and_the_verdict_stays(opened: Opened, store: StoreProxy, uri: str) -> None:
    opened().create_table(f"{uri}/a", SCHEMA)
    [verdict] = verdicts(uri)
    assert (verdict.store, verdict.put_if_absent, verdict.log_store) == ("s3a://bucket", True, PUT_IF_ABSENT)
    assert (verdict.names, verdict.writers, verdict.single_writer) == (5, 4, False)
    assert not [name for name in open_location(uri).names() if "race" in name]
    with store.counted() as requests:
        opened().create_table(f"{uri}/b", SCHEMA)
    assert not [path for _, path in requests if "_statelake_race" in path]


@pytest.mark.long
def test_a_whole_race(opened: Opened, store: StoreProxy, uri: str) -> None:
    opened(names=50).create_table(f"{uri}/a", SCHEMA)
    assert [(one.names, one.put_if_absent) for one in verdicts(uri)] == [(50, True)]


def without_condition(_: object) -> Fault:
    return Fault(without_condition=True)


@pytest.mark.usefixtures("quick_race")
def test_a_store_that_ignores_the_condition_is_refused(
    opened: Opened, store: StoreProxy, uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    store.fault = without_condition
    for _ in range(2):
        with pytest.raises(UnsafeStoreError, match=r"several writers create one file.*single_writer=True"):
            opened().create_table(f"{uri}/a", SCHEMA)
    assert not open_location(f"{uri}/a/_delta_log").is_directory()
    assert [verdict.put_if_absent for verdict in verdicts(uri)] == [False]
    for run in range(2):
        with caplog.at_level(logging.WARNING):
            caplog.clear()
            assert opened(single_writer=True).create_table(f"{uri}/{run}", SCHEMA)
        assert "single_writer=True says that only one process writes there" in caplog.text


@pytest.mark.usefixtures("quick_race")
def test_a_sink_that_is_there_is_refused_before_anything_is_staged(
    opened: Opened, store: StoreProxy, uri: str, spark: SparkSession
) -> None:
    """Whoever writes to it, Kernel or Spark."""
    DeltaKernel(spark).create_table(f"{uri}/sink", SCHEMA)
    store.fault = without_condition
    with pytest.raises(UnsafeStoreError, match="several writers"):
        DeltaSink(f"{uri}/sink").prepare(asked(opened(), SCHEMA, "w1"))


@pytest.mark.usefixtures("quick_race")
def test_a_single_writer_is_written_down(opened: Opened, store: StoreProxy, uri: str) -> None:
    store.fault = without_condition
    opened(single_writer=True).create_table(f"{uri}/a", SCHEMA)
    assert [(one.put_if_absent, one.single_writer) for one in verdicts(uri)] == [(False, True)]


@pytest.mark.usefixtures("quick_race")
def test_a_single_writer_with_a_log_store_for_one_process_is_warned(
    opened: Opened,
    store: StoreProxy,
    uri: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The writers of one process would not lose a commit with it, so it is not tried."""
    for_one = "io.delta.storage.S3SingleDriverLogStore"
    monkeypatch.setattr(store_checks, "log_store_of", lambda *_: for_one)
    with pytest.raises(UnsafeStoreError, match="is not known to keep commits of two runners apart"):
        opened().create_table(f"{uri}/a", SCHEMA)
    for run in range(2):
        with caplog.at_level(logging.WARNING):
            caplog.clear()
            assert opened(single_writer=True).create_table(f"{uri}/{run}", SCHEMA)
        assert for_one in caplog.text
    assert [(one.log_store, one.put_if_absent) for one in verdicts(uri)] == [(for_one, False)]


@pytest.mark.usefixtures("quick_race")
def test_log_stores_that_want_a_directory_have_one(spark: SparkSession, tmp_path: Path) -> None:
    """As those of HDFS and Azure do; that of local disks, which knows one writer only, stands for them."""
    log_stores = LogStores(spark._jvm, KernelEngines(spark, KernelClasses.of(spark._jvm)))
    assert store_checks.has_one_winner_each(f"{tmp_path.as_uri()}/race", log_stores, names=5, writers=1)


def test_a_settings_file_says_where_the_root_is_before_spark_is_asked(
    spark: SparkSession, store: StoreProxy, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "statelake.toml").write_text(
        f"""
        [storage]
        endpoint = "{store.endpoint}/"
        access_key_variable = "{stores.KEY}"
        secret_key_variable = "{stores.SECRET}"
        """
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(PROCESS_STORES, "_described", {})
    with store.counted() as requests, StateEngine(uri, spark) as engine:
        assert engine.checkpoints("small") == []
    assert requests


@pytest.mark.usefixtures("quick_race")
def test_a_verdict_of_another_log_store_is_not_believed(opened: Opened, store: StoreProxy, uri: str) -> None:
    opened().create_table(f"{uri}/a", SCHEMA)
    [verdict] = verdicts(uri)
    at = open_location(f"{uri}/_stores")
    at.inside(at.names()[0]).write(json.dumps(asdict(verdict) | {"log_store": "another"}).encode())
    opened().create_table(f"{uri}/b", SCHEMA)
    assert [one.log_store for one in verdicts(uri)] == [PUT_IF_ABSENT]


@pytest.mark.usefixtures("quick_race")
def test_a_store_that_fails_in_the_race_is_no_verdict(opened: Opened, store: StoreProxy, uri: str) -> None:
    store.fault = lambda request: (
        Fault(status=403) if "_statelake_race" in request.path and request.path.endswith(".json") else None
    )
    with pytest.raises(StorageError, match="the permission is denied"):
        opened().create_table(f"{uri}/a", SCHEMA)
    assert verdicts(uri) == []


@pytest.mark.usefixtures("quick_race")
def test_a_local_root_has_a_sink_in_a_store_checked(
    spark: SparkSession, store: StoreProxy, uri: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("root").as_uri()
    kernel = DeltaKernel(
        spark, checks=StoreChecks(root, spark._jsc, single_writer=False, names=stores.QUICK_RACE)
    )
    kernel.create_table(f"{root}/table", SCHEMA)
    assert verdicts(root) == []
    kernel.create_table(f"{uri}/sink", SCHEMA)
    assert [one.store for one in verdicts(root)] == ["s3a://bucket"]


UNSAFE = [
    ("s3a://b/t", "io.delta.storage.S3SingleDriverLogStore", "spark.delta.logStore.s3a.impl"),
    ("s3a://b/t", "io.delta.storage.S3DynamoDBLogStore", "spark.delta.logStore.s3a.impl"),
    ("s3://b/t", "", "spark.delta.logStore.s3.impl"),
    ("hdfs://h/t", "some.Store", "spark.delta.logStore.hdfs.impl=io.delta.storage.HDFSLogStore"),
    ("oss://b/t", "", "is not known"),
    ("s3n://b/t", PUT_IF_ABSENT, "is not known"),
]


@pytest.mark.parametrize(("uri", "log_store", "message"), UNSAFE)
def test_log_stores_that_nobody_knows_are_refused(uri: str, log_store: str, message: str) -> None:
    with pytest.raises(UnsafeStoreError, match=message):
        check_log_store(uri, log_store, single_writer=False)
    check_log_store(uri, log_store, single_writer=True)


@pytest.mark.parametrize(
    ("uri", "log_store"),
    [
        ("s3a://b/t", PUT_IF_ABSENT),
        ("abfss://c@a/t", "io.delta.storage.AzureLogStore"),
        ("gs://b/t", "io.delta.storage.GCSLogStore"),
        ("hdfs://h/t", "io.delta.storage.HDFSLogStore"),
        ("file:///t", "io.delta.storage.LocalLogStore"),
    ],
)
def test_log_stores_that_are_safe(uri: str, log_store: str) -> None:
    check_log_store(uri, log_store, single_writer=False)


def test_a_session_of_ours_has_our_log_store() -> None:
    assert set(spark_options()) == {"spark.delta.logStore.s3a.impl", "spark.delta.logStore.s3.impl"}
    assert store_name("s3a://bucket/a/b") == "s3a://bucket"
