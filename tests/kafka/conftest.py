"""One broker for all tests with Kafka; a test that kills it starts it again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.kafka.kafka_sites import Site
from tests.kafka.topics import Topics
from tests.support.kafka import Broker, kafka_broker
from tests.support.postgres import PASSWORD_ENV, Server


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test here needs Kafka, but for those that only say how a source or sink is declared."""
    for item in items:
        if "/kafka/" in str(item.path) and {"topics", "broker"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.kafka)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A running broker."""
    with kafka_broker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture
def topics(spark: SparkSession, broker: Broker) -> Topics:
    """Its topics."""
    if broker.process is None:
        broker.start()
    return Topics(spark, broker)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A running server of PostgreSQL."""
    with Server.started() as server:
        yield server


@pytest.fixture
def site(topics: Topics, tmp_path: Path, postgres: Server, monkeypatch: pytest.MonkeyPatch) -> Site:
    """New topics, a new directory and a new database."""
    monkeypatch.setenv(PASSWORD_ENV, postgres.password)
    return Site(topics, tmp_path, postgres.new_database())
