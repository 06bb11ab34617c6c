"""The jar of our log store, ``PutIfAbsentLogStore.java``: ``python -m state_engine.spark.log_store`` makes it."""

from __future__ import annotations

from pathlib import Path

from state_engine.spark.compiled_jars import CompiledJar
from state_engine.storage.delta.log_stores import PUT_IF_ABSENT

LOG_STORE_JAR = CompiledJar(
    source=Path(__file__).with_name("PutIfAbsentLogStore.java"),
    jar=Path(__file__).with_name("statelake-log-store.jar"),
    sha256="88ffc6b041feefffebcf92bdc2a9e98ceb7d974ba9556d01ec7c33da1c999c3c",
    name=PUT_IF_ABSENT,
)
