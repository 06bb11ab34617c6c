"""A store with S3's interface, and a proxy before it through which everything goes."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from state_engine.spark.stores import reach_stores
from state_engine.storage.stores.object_stores import PROCESS_STORES
from tests.support import stores
from tests.support.moto import moto_server
from tests.support.store_proxy import StoreProxy, store_proxy
from tests.support.stores import access_to

SECRET = "a-secret-of-the-tests"


LONGEST_FIRST = (
    "test_many_runners_on_moto",
    "test_many_runners_on_seaweed",
    "test_a_killed_process_changes_no_result",
    "test_file_sinks_on_hdfs",
)
"""Each of these takes minutes: begun last, one would run alone while the other worker waits."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first; the others as they are."""

    def place(item: pytest.Item) -> int:
        here = item.nodeid.startswith("tests/stores/")
        long = (at for at, name in enumerate(LONGEST_FIRST) if here and name in item.nodeid)
        return next(long, len(LONGEST_FIRST))

    items.sort(key=place)


@pytest.fixture(scope="session")
def server() -> Iterator[int]:
    """Port of a server."""
    with moto_server() as port:
        yield port


@pytest.fixture(scope="session")
def running(server: int, spark: SparkSession) -> Iterator[StoreProxy]:
    """A proxy that this process and the session of Spark reach stores through."""
    with store_proxy(server) as proxy, pytest.MonkeyPatch.context() as patch:
        patch.setenv(stores.KEY, "an-id")
        patch.setenv(stores.SECRET, SECRET)
        patch.setattr(PROCESS_STORES, "_described", {})
        PROCESS_STORES.describe(access_to(proxy.endpoint))
        # Hadoop keeps its connections for as long as Spark runs; tests of faults cannot wait for all its patience
        configuration = spark._jsc.hadoopConfiguration()
        configuration.set("fs.s3a.attempts.maximum", "1")
        configuration.set("fs.s3a.retry.limit", "1")
        reach_stores(spark)
        yield proxy


@pytest.fixture
def store(running: StoreProxy) -> Iterator[StoreProxy]:
    """The proxy, which does nothing to requests unless the test says so."""
    yield running
    running.fault = lambda _: None


@pytest.fixture
def quick_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers race for a few names only."""
    stores.quick_race(monkeypatch)


@pytest.fixture
def uri() -> str:
    """A new directory in the store."""
    return f"s3a://bucket/{uuid4().hex}"
