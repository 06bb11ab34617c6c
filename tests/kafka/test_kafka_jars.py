"""The jar of our own class, and a session that does not have Kafka's jars."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.java_gateway import JavaPackage
from pyspark.sql import SparkSession

from state_engine import StateEngine, StatefulJob
from state_engine.core.errors import SessionError, SinkError
from state_engine.sinks.kafka.kafka_sink import KafkaSink
from state_engine.sources.file import FileSource
from state_engine.spark.kafka import RECORDS_JAR, clients
from tests.kafka.topics import Topics
from tests.sources.runs import write_ids


@pytest.mark.usefixtures("topics")
def test_the_jar_is_made_of_the_source(spark: SparkSession) -> None:
    made = RECORDS_JAR.compiled(spark._jvm)
    assert made == RECORDS_JAR.path().read_bytes()
    assert hashlib.sha256(made).hexdigest() == RECORDS_JAR.sha256


def test_a_session_without_the_jars_says_how_to_get_them(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(_: Any, name: str) -> Any:
        return JavaPackage(name, SimpleNamespace(), set())

    monkeypatch.setattr(clients, "java_class", without)
    write_ids(tmp_path / "feed" / "a.parquet", 0, 1)
    job = StatefulJob("copies")
    job.source("ids", FileSource(str(tmp_path / "feed"))).sink("out", KafkaSink("127.0.0.1:1", "out"))
    with (
        StateEngine(tmp_path / "root", spark) as engine,
        pytest.raises(SessionError, match="Run `statelake setup --kafka`, which fetches them"),
    ):
        engine.run(job)


def test_a_broker_that_is_not_there_is_named(spark: SparkSession, tmp_path: Path, topics: Topics) -> None:
    write_ids(tmp_path / "feed" / "a.parquet", 0, 1)
    patience = {"default.api.timeout.ms": "1000", "request.timeout.ms": "500"}
    job = StatefulJob("copies")
    sink = KafkaSink("127.0.0.1:1", "out", options=patience)
    job.source("ids", FileSource(str(tmp_path / "feed"))).sink("out", sink)
    with (
        StateEngine(tmp_path / "root", spark) as engine,
        pytest.raises(
            SinkError, match=r"topic out of Kafka at 127\.0\.0\.1:1 cannot be used \(TimeoutException"
        ),
    ):
        engine.run(job)
