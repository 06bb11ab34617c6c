"""The list of properties is that of the installed clients."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from py4j.java_gateway import get_field
from pyspark.sql import SparkSession

from state_engine.spark.kafka.clients import KafkaJava
from state_engine.spark.kafka.properties import LIST

CLIENTS = {"A": "admin.AdminClientConfig", "C": "consumer.ConsumerConfig", "P": "producer.ProducerConfig"}
NUMBERS = {"INT": "whole", "LONG": "whole", "SHORT": "whole", "DOUBLE": "real"}


@pytest.mark.usefixtures("topics")
def test_the_list_is_what_the_clients_declare(spark: SparkSession) -> None:
    java = KafkaJava(spark)
    clients: dict[tuple[str, str], str] = {}
    for letter, client in CLIENTS.items():
        for one in properties(java.kafka(f"clients.{client}").configDef().configKeys()):
            clients[one] = clients.get(one, "") + letter
    declared = sorted(f"{name} {letters} {taken}" for (name, taken), letters in clients.items())
    assert LIST.read_text().splitlines() == declared


def properties(keys: Any) -> Iterator[tuple[str, str]]:
    """Name of each property of a client and what it takes, but for those that it keeps to itself."""
    for name in keys:
        if not name.startswith("internal."):
            kind, check = get_field(keys[name], "type"), get_field(keys[name], "validator")
            yield name, takes(kind.toString(), "" if check is None else check.toString())


def takes(kind: str, check: str) -> str:
    """What a property takes, from the text of Kafka's own check of it."""
    inside = re.search(r"\[(.*)\]", check)
    if kind == "STRING" and inside:
        words = " ".join(inside[1].split(", "))
        return f"{'WORDS' if 'case insensitive' in check else 'words'} {words}"
    if kind in NUMBERS:
        least, _, most = inside[1].partition("...") if inside else ("", "", "")
        other = check.partition(" or ")[2]  # beside a range: that of gzip's level is 1 to 9, or -1
        return f"{NUMBERS[kind]} {other or least.strip(',')}..{most.strip(',')}"
    return "flag" if kind == "BOOLEAN" else "text"
