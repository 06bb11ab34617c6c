"""Kafka's clients in the driver's Java, for sources and sinks: which cluster, what is in it, and many records at once.

``python -m state_engine.spark.kafka`` makes the jar of ``KafkaRecords.java``.
"""

from __future__ import annotations

from pathlib import Path

from state_engine.spark.compiled_jars import CompiledJar

RECORDS = "statelake.kafka.KafkaRecords"
"""Our class, beside Kafka's own."""
RECORDS_JAR = CompiledJar(
    source=Path(__file__).with_name("KafkaRecords.java"),
    jar=Path(__file__).with_name("statelake-kafka.jar"),
    sha256="ab9f3396d4b8f11493b51282c69e4bd99ad5c47e2a925ac4ba46e1f173020e34",
    name=RECORDS,
)
