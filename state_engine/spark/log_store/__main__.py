"""Makes the jar again, and shows the hash that belongs to it."""

from __future__ import annotations

from state_engine.spark.log_store import LOG_STORE_JAR
from state_engine.spark.session import local_session

print(LOG_STORE_JAR.make(local_session()._jvm))
