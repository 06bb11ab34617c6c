"""Makes the jar again, and shows the hash that belongs to it."""

from __future__ import annotations

from state_engine.spark.kafka import RECORDS_JAR
from state_engine.spark.session import local_session

print(RECORDS_JAR.make(local_session()._jvm))
