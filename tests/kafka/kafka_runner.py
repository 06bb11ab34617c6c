"""A process that runs a job from a topic to a topic, a Delta table and a database, until it has caught up or is killed.

    python -m tests.kafka.kafka_runner <servers> <topic in> <topic out> <directory> [<database> [<password variable>]]

``STATELAKE_TEST_DIE`` names a point, ``<call>:<number>``: there the whole process group dies by SIGKILL, or
at ``frozen`` stops until it is woken up.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import SparkSession

from state_engine import (
    DeltaSink,
    KafkaSink,
    KafkaSource,
    KeyedProcessFunction,
    SqlSink,
    StateEngine,
    StatefulJob,
    ValueStateDescriptor,
)
from state_engine.machine.settings import SparkSettings
from state_engine.spark.kafka.clients import TransactionalProducer
from state_engine.spark.session import local_session
from state_engine.storage.delta.kernel import DeltaKernel
from tests.support.java import SHORT_LIVED_JAVA

# workers cannot import the tests
cloudpickle.register_pickle_by_value(sys.modules[__name__])

DIE = "STATELAKE_TEST_DIE"
OUT = "id bigint, name string, n bigint"


class Counts(KeyedProcessFunction):
    """Every element with how many of its key have come."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", int, default=0))

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        self.count.update(self.count.value() + 1)
        yield value.id, value.name, self.count.value()


def built(servers: str, given: str, out: str, directory: Path, sql: SqlSink | None = None) -> StatefulJob:
    """The job; a database joins its sinks where it is given."""
    job = StatefulJob("counts", parallelism=2)
    source = KafkaSource(servers, given, schema="id bigint, name string", max_offsets_per_batch=40)
    counts = job.source("events", source).key_by("name")
    counted = counts.process(Counts(), uid="counts", output_type=OUT)
    counted.sink("topic", KafkaSink(servers, out, key=["name"], max_rows_per_transaction=7))
    counted.sink("table", DeltaSink(str(directory / "table")))
    if sql is not None:
        counted.sink("database", sql)
    return job


def dies_at(point: str) -> None:
    """Have this process group die at a call."""
    name, _, number = point.partition(":")
    owner, method = {
        "commit": (TransactionalProducer, "commit"),
        "committed": (TransactionalProducer, "commit"),
        "send": (TransactionalProducer, "send"),
        "frozen": (TransactionalProducer, "commit"),
        "checkpoint": (DeltaKernel, "_commit"),
    }[name]
    original: Callable[..., Any] = getattr(owner, method)
    calls = count(1)

    def call(*arguments: Any, **options: Any) -> Any:
        strikes = next(calls) == int(number)
        if strikes and name != "committed":
            os.killpg(0, signal.SIGSTOP if name == "frozen" else signal.SIGKILL)
        answer = original(*arguments, **options)
        if strikes and name == "committed":
            os.killpg(0, signal.SIGKILL)
        return answer

    setattr(owner, method, call)


def main(servers: str, given: str, out: str, directory: str, url: str = "", password: str = "") -> None:
    options = {"spark.driver.extraJavaOptions": SHORT_LIVED_JAVA}
    spark: SparkSession = local_session(
        SparkSettings(master="local[2]", driver_memory="1g", options=options), app_name="statelake-kafka"
    )
    if point := os.environ.get(DIE):
        dies_at(point)
    sql = SqlSink(url, "counts", password_env=password or None) if url else None
    with StateEngine(Path(directory) / "root", spark) as engine:
        engine.run(built(servers, given, out, Path(directory), sql))


if __name__ == "__main__":
    main(*sys.argv[1:])
