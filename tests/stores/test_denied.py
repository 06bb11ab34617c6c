"""A store that denies the right to a place: the message says where, what, and what to do; nothing is lost."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from state_engine import DeltaSink, DeltaStateTable, FileSource, StateEngine, StatefulJob
from state_engine.core.errors import StorageError
from state_engine.microbatch.reports import RunReport
from state_engine.storage.stores.files import write_parquet
from tests.support.store_proxy import Fault, Request, StoreProxy
from tests.support.tiny import Sum

pytestmark = [pytest.mark.usefixtures("quick_race")]
READ, WRITE = ("GET", "HEAD"), ("PUT", "POST", "DELETE")
DENIED: dict[str, tuple[str, tuple[str, ...]]] = {
    "the root to whoever reads": ("root", READ),
    "the root to whoever writes": ("root", WRITE),
    "the root": ("root", READ + WRITE),
    "the files of state": ("root/sums/operators", READ + WRITE),
    "the input": ("inbox", READ),
    "the output to whoever reads": ("sink", READ),
    "the output to whoever writes": ("sink", WRITE),
    "the output": ("sink", READ + WRITE),
}
"""By what is denied: the place, and requests to it."""
TABLE = {"to whoever reads": READ, "to whoever writes": WRITE, "to all": READ + WRITE}


def denied(place: str, methods: tuple[str, ...]) -> Callable[[Request], Fault | None]:
    """What a policy of a bucket does."""

    def fault(asked: Request) -> Fault | None:
        path = unquote(asked.path)
        at_place = f"/{place}/" in path or path.endswith(f"/{place}") or f"/{place}&" in path
        return Fault(status=403) if asked.method in methods and at_place else None

    return fault


def check_message(message: str, uri: str) -> None:
    """It names the path, what was done, the cause, and what to do."""
    assert uri.removeprefix("s3a://") in message
    assert re.search(
        "cannot be (looked at|listed|read|written|read or written): the permission is denied", message
    )
    assert "Give the keys of the store the right to it" in message
    assert re.search("run it again|earlier commits are unchanged|That run brings it up to date", message)


class Site:
    """A job whose input, root, output and published table are in the store."""

    def __init__(self, uri: str, spark: SparkSession) -> None:
        self.uri, self.spark, self.files = uri, spark, 0

    def put(self) -> None:
        rows = pa.table({"k": ["a", "b"], "v": pa.array([self.files, 1], pa.int64())})
        write_parquet(rows, f"{self.uri}/inbox/{self.files}.parquet")
        self.files += 1

    def run(self) -> RunReport:
        job = StatefulJob("sums", parallelism=1)
        rows = job.source("rows", FileSource(f"{self.uri}/inbox", schema="k string, v bigint"))
        sums = rows.key_by("k").process(Sum(), uid="sums", output_type="k string, v bigint, total bigint")
        sums.sink("out", DeltaSink(f"{self.uri}/sink"))
        sums.publish_state("total", DeltaStateTable(f"{self.uri}/shown"), name="shown")
        with StateEngine(f"{self.uri}/root", self.spark) as engine:
            return engine.run(job)

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        frame = self.spark.read.format("delta").load(f"{self.uri}/{name}")
        return sorted(tuple(row) for row in frame.select(*frame.columns[:3]).collect())

    def check(self) -> None:
        """Every row was taken once, and the table shows the state."""
        outputs, total = [], 0
        for n in range(self.files):
            total += n
            outputs += [("a", n, total), ("b", 1, n + 1)]
        assert self.rows("sink") == sorted(outputs)
        assert [row[:2] for row in self.rows("shown")] == [("a", total), ("b", self.files)]


@pytest.fixture
def site(store: StoreProxy, uri: str, spark: SparkSession) -> Site:
    site = Site(uri, spark)
    site.put()
    site.run()
    site.put()
    return site


@pytest.mark.parametrize("what", DENIED)
def test_a_place_that_is_denied_is_named_with_what_to_do(what: str, site: Site, store: StoreProxy) -> None:
    place, methods = DENIED[what]
    store.fault = denied(place, methods)
    with pytest.raises(StorageError, match="job 'sums': ") as caught:
        site.run()
    store.fault = lambda _: None
    check_message(str(caught.value), f"{site.uri}/{place}")
    site.run()
    site.check()


@pytest.mark.parametrize("what", TABLE)
def test_a_published_table_that_is_denied_stays_behind_alone(
    what: str, site: Site, store: StoreProxy
) -> None:
    store.fault = denied("shown", TABLE[what])
    report = site.run()
    store.fault = lambda _: None
    assert report.tables
    for table in report.tables:
        check_message(table.problem, f"{site.uri}/shown")
        assert not re.search("damaged|rebuild|delete", table.problem)
    assert len(site.rows("sink")) == 4
    assert [row[:2] for row in site.rows("shown")] == [("a", 0), ("b", 1)]
    site.run()
    site.check()


@pytest.mark.parametrize("place", ["root", "inbox", "sink"])
def test_a_place_that_is_denied_from_the_beginning(
    place: str, store: StoreProxy, uri: str, spark: SparkSession
) -> None:
    site = Site(uri, spark)
    site.put()
    store.fault = denied(place, READ + WRITE)
    with pytest.raises(StorageError, match="job 'sums': ") as caught:
        site.run()
    store.fault = lambda _: None
    check_message(str(caught.value), f"{uri}/{place}")
    site.run()
    site.check()
