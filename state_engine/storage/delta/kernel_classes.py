"""Kernel's Java classes over py4j, and how Python values get there and back.

Decision 0051.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from state_engine.storage.java_gateway import java_class


class KernelClasses:
    """Java classes by name, looked up once a JVM."""

    @staticmethod
    @lru_cache(maxsize=1)
    def of(jvm: Any) -> KernelClasses:
        return KernelClasses(jvm)

    def __init__(self, jvm: Any) -> None:
        def known(name: str) -> Any:
            return java_class(jvm, name)

        def kernel(name: str) -> Any:
            return known(f"io.delta.kernel.{name}")

        self.table = kernel("Table")
        self.create_table, self.write = kernel("Operation").CREATE_TABLE, kernel("Operation").WRITE
        self.default_engine = kernel("defaults.engine.DefaultEngine")
        self.iterable = kernel("utils.CloseableIterable")
        self.type_json = kernel("internal.types.DataTypeJsonSerDe")
        self.utils, self.scan_files = kernel("internal.util.Utils"), kernel("internal.InternalScanFileUtils")
        self.add_file = kernel("internal.actions.AddFile")
        self.single_action = kernel("internal.actions.SingleAction")
        self.all_actions = self.single_action.FULL_SCHEMA
        self.scan_rows = kernel("defaults.internal.json.JsonUtils")
        self.file_names = kernel("internal.util.FileNames")
        self.checkpointer = kernel("internal.checkpoints.Checkpointer")
        self.log_checkpoint = kernel("internal.checkpoints.CheckpointMetaData")
        config = kernel("internal.TableConfig")
        self.log_retention, self.file_retention = config.LOG_RETENTION, config.TOMBSTONE_RETENTION
        self.optional, self.long = known("java.util.Optional"), known("java.lang.Long")
        self.json = known("com.fasterxml.jackson.databind.ObjectMapper")()
        self.array_list, self.hash_map = known("java.util.ArrayList"), known("java.util.HashMap")

    def list(self, values: Iterable[Any]) -> Any:
        made = self.array_list()
        for value in values:
            made.add(value)
        return made

    def map(self, values: Mapping[str, Any]) -> Any:
        made = self.hash_map()
        for key, value in values.items():
            made.put(key, value)
        return made

    def plain(self, *values: Any) -> Any:
        """A list of Java collections and maps as Python's, in one round trip."""
        return json.loads(self.json.writeValueAsString(self.list(values)))

    def iterator(self, values: Any) -> Any:
        """Kernel's iterator over a Java list: inside the JVM, as py4j loses the errors of Python's own."""
        return self.utils.toCloseableIterator(values.iterator())
