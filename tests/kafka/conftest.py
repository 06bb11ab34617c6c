"""One broker for all tests with Kafka; a test that kills it starts it again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.kafka.topics import Topics
from tests.support.kafka import Broker, kafka_broker


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
