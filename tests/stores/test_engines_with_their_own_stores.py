"""Engines of one process that reach different stores, each with keys of its own."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from state_engine import (
    DeltaSink,
    FileSource,
    KeyedProcessFunction,
    RuntimeContext,
    StateEngine,
    StatefulJob,
    StoreAccess,
    ValueStateDescriptor,
)
from state_engine.core.errors import ConfigurationError
from state_engine.storage.stores.files import write_parquet
from tests.support.moto import moto_server
from tests.support.store_proxy import Fault, Request, StoreProxy, store_proxy
from tests.support.stores import has_bucket

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])


class Total(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", int))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        self.total.update((self.total.value() or 0) + value.n)
        yield value.k, self.total.value()


@dataclass
class Store:
    """A server that takes requests with one key only, and a bucket in it."""

    name: str
    proxy: StoreProxy
    bucket: str
    refused: list[str] = field(default_factory=list)

    @property
    def key_id(self) -> str:
        return f"id-of-{self.name}"

    @property
    def access(self) -> StoreAccess:
        return StoreAccess(
            endpoint=self.proxy.endpoint,
            access_key_variable=f"KEY_OF_{self.name.upper()}",
            secret_key_variable=f"SECRET_OF_{self.name.upper()}",
        )

    def only_with_the_key(self, request: Request) -> Fault | None:
        headers = {name.lower(): value for name, value in request.headers.items()}
        signed = headers.get("authorization", "")
        if f"Credential={self.key_id}/" in signed:
            return None
        self.refused.append(f"{request.method} {request.path} {signed}")
        return Fault(status=403)

    def run(self, spark: SparkSession, numbers: list[int]) -> list[tuple[str, int]]:
        """Micro-batches with a number each; the state then."""
        place = f"s3a://{self.bucket}"
        job = StatefulJob("totals", parallelism=2)
        rows = job.source(
            "rows", FileSource(f"{place}/inbox", schema="k string, n bigint", max_files_per_batch=1)
        )
        totals = rows.key_by("k").process(Total(), uid="total", output_type="k string, n bigint")
        totals.sink("out", DeltaSink(f"{place}/sink"))
        with StateEngine(f"{place}/root", spark, stores=self.access) as engine:
            for at, number in enumerate(numbers):
                write_parquet(
                    pa.table({"k": [self.name], "n": [number]}, schema=SCHEMA),
                    f"{place}/inbox/{at}.parquet",
                )
            engine.run(job)
            engine.compact(job)
            sink = engine.spark.read.format("delta").load(f"{place}/sink").count()
            assert sink == len(numbers)
            return [(row.k, row.value) for row in engine.read_state(job, "total", "total").collect()]


@pytest.fixture
def two_stores(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Store]]:
    with ExitStack() as stack:
        stores = []
        for name in ("north", "south"):
            port, bucket = stack.enter_context(moto_server()), f"{name}-{uuid4().hex}"
            assert has_bucket(port, bucket)
            one = Store(name, stack.enter_context(store_proxy(port)), bucket)
            one.proxy.fault = one.only_with_the_key
            monkeypatch.setenv(one.access.access_key_variable, one.key_id)
            monkeypatch.setenv(one.access.secret_key_variable, "a secret")
            stores.append(one)
        yield stores


@pytest.mark.usefixtures("store", "quick_race")
def test_two_engines_in_two_threads(two_stores: list[Store], spark: SparkSession) -> None:
    """Beside them, all other buckets are reached as they were."""
    with ThreadPoolExecutor(2) as threads:
        states = list(threads.map(lambda one: one.run(spark, [1, 2, 39]), two_stores))
    assert states == [[("north", 42)], [("south", 42)]]
    assert [one.refused for one in two_stores] == [[], []]
    assert all(len(one.proxy.seen) > 50 for one in two_stores)
    north, south = two_stores
    with pytest.raises(ConfigurationError, match=rf"bucket '{north.bucket}' in another way already"):
        StateEngine(f"s3a://{north.bucket}/root", spark, stores=south.access)


def test_an_engine_on_a_disk_names_the_buckets(tmp_path: Any) -> None:
    with pytest.raises(ConfigurationError, match="is in no bucket: name those"):
        StateEngine(tmp_path, stores=StoreAccess(endpoint="http://localhost:1"))
