"""Makes the jar anew, and shows the hash that belongs to it."""

from __future__ import annotations

import hashlib

from state_engine.spark.log_store import JAR, compiled
from state_engine.spark.session import local_session

content = compiled(local_session()._jvm)
JAR.write_bytes(content)
print(hashlib.sha256(content).hexdigest())
