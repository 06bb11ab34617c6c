"""Makes the jar again, and shows the hash that belongs to it."""

from __future__ import annotations

from state_engine.spark.kafka import RECORDS_JAR
from state_engine.spark.session import local_session
from state_engine.storage.java_gateway import jvm_of

print(RECORDS_JAR.make(jvm_of(local_session())))
