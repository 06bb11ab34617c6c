"""Commits to Delta tables in this process, in place of Delta Kernel: so that every file access can be made to fail.

Real Delta tables, that delta-rs reads: entries of JSON, written aside and renamed as the log store of the JVM does it,
with the same fence of transaction versions. There are no log checkpoints and no hooks. The order of syncs is the
engine's own ``LogDurability``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa

from state_engine.core.errors import CommitUnknownError, StorageError
from state_engine.core.types.spark_types import spark_schema
from state_engine.storage.delta.action_json import add_action
from state_engine.storage.delta.commit_actions import FileGroup
from state_engine.storage.delta.kernel import (
    DeltaKernel,
    Transaction,
)
from state_engine.storage.delta.log import DeltaLog
from state_engine.storage.delta.log_names import COMMIT
from state_engine.storage.delta.log_tail import LogDurability, mend_log
from state_engine.storage.delta.table_facts import TableFacts
from state_engine.storage.stores.durability import Durability
from state_engine.storage.stores.files import join, open_location
from state_engine.storage.stores.locks import table_lock
from state_engine.testing.memory_kernel import check_commit

_NO_SESSION = SimpleNamespace(conf=SimpleNamespace(set=lambda *_: None))
NO_SPARK: Any = SimpleNamespace(
    sparkContext=SimpleNamespace(defaultParallelism=2),
    newSession=lambda: _NO_SESSION,
    renew=lambda: None,
    _jsparkSession=None,
)


@dataclass
class Log:
    """A table, folded from its log."""

    version: int = -1
    adds: dict[str, dict[str, Any]] = field(default_factory=dict)
    transactions: dict[str, int] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)


class LogKernel(DeltaKernel):
    """See the module docstring."""

    def __init__(self, *, lock_timeout_s: float = 5.0, durability: Durability = "sync") -> None:
        self.spark, self.disk = NO_SPARK, LogDurability(durability)
        self._timeout_s = lock_timeout_s
        self._mended: set[str] = set()

    def _log(self, uri: str) -> Log | None:
        at = open_location(join(uri, "_delta_log"))
        if uri not in self._mended:
            if not at.is_directory():
                return None
            mend_log(uri, lock_timeout_s=self._timeout_s)
            self._mended.add(uri)
        log = Log()
        for name in sorted(n for n in at.names(missing_ok=True) if COMMIT.fullmatch(n)):
            log.version += 1
            assert int(name[:20]) == log.version, f"{uri} has no version {log.version}"
            for action in DeltaLog(uri).commit(log.version).actions:
                match action:
                    case {"add": add}:
                        log.adds[unquote(add["path"])] = add
                    case {"remove": remove}:
                        log.adds.pop(unquote(remove["path"]), None)
                    case {"txn": txn}:
                        log.transactions[txn["appId"]] = txn["version"]
                    case {"metaData": metadata}:
                        log.metadata = metadata
        return log if log.version >= 0 else None

    # -- looking ---------------------------------------------------------------------------------------------------

    def exists(self, uri: str) -> bool:
        return self._log(uri) is not None

    def version(self, uri: str) -> int | None:
        log = self._log(uri)
        return log.version if log else None

    def facts(self, uri: str) -> TableFacts | None:
        log = self._log(uri)
        return _facts(log) if log else None

    def properties(self, uri: str) -> dict[str, str] | None:
        log = self._log(uri)
        return dict(log.metadata["configuration"]) if log else None

    def inspect(self, uri: str, app: str) -> tuple[TableFacts, int] | None:
        log = self._log(uri)
        return (_facts(log), log.transactions.get(app, 0)) if log else None

    def latest_transaction(self, uri: str, app: str) -> int | None:
        log = self._log(uri)
        return log.transactions.get(app) if log else None

    def active_files(self, uri: str) -> list[str]:
        log = self._log(uri)
        return sorted(log.adds) if log else []

    # -- committing ------------------------------------------------------------------------------------------------

    def create_table(
        self,
        uri: str,
        schema: pa.Schema,
        *,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> bool:
        if self.exists(uri):
            return False
        metadata = {
            "id": str(uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(spark_schema(schema)),
            "partitionColumns": list(partition_by),
            "configuration": dict(properties or {}),
            "createdTime": 0,
        }
        with table_lock(uri, timeout_s=self._timeout_s):
            if self._log(uri) is not None:
                return False
            protocol = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
            self._write(uri, -1, [protocol, {"metaData": metadata}])
        return True

    def change(
        self,
        uri: str,
        *,
        add: Sequence[FileGroup],
        remove: Sequence[str] = (),
        transaction: Transaction | None = None,
    ) -> int:
        self.disk.files(uri, [file.path for group in add for file in group.files])
        with table_lock(uri, timeout_s=self._timeout_s):
            log = self._log(uri)
            assert log is not None, f"there is no table {uri}"
            check_commit(uri, transaction, log.transactions, remove=remove, active=log.adds)
            actions: list[dict[str, Any]] = []
            if transaction:
                actions.append({"txn": {"appId": transaction.app, "version": transaction.version}})
            removed = {"deletionTimestamp": 0, "dataChange": True}
            actions += [{"remove": {"path": path, **removed}} for path in remove]
            actions += [add_action(file, group.partition) for group in add for file in group.files]
            return self._write(uri, log.version, actions)

    def _write(self, uri: str, before: int, actions: Sequence[dict[str, Any]]) -> int:
        self.disk.entry(uri, before)
        version, log = before + 1, open_location(join(uri, "_delta_log"))
        content = "".join(json.dumps(a) + "\n" for a in [{"commitInfo": {"engineInfo": "test"}}, *actions])
        try:  # one seam for what the JVM writes: nobody knows what became of it
            log.make_directory()
            aside = log.inside(f".{version:020d}.json.{uuid4().hex}.tmp")
            aside.write(content.encode())
            aside.move(join(log.path, f"{version:020d}.json"))
        except StorageError as error:
            raise CommitUnknownError(
                f"it is not known whether the commit to {uri} succeeded: {error}"
            ) from error
        try:
            self.disk.entry(uri, version, since=before)
        except StorageError as error:
            raise CommitUnknownError(f"the disk did not confirm the commit to {uri}: {error}") from error
        self._mended.add(uri)
        return version

    def outlasting(self, uri: str, *, files: bool = False) -> None:
        version = self.version(uri)
        if version is not None:
            self.disk.entry(uri, version)

    def close(self) -> None:
        """There is no background work."""

    def join_hooks(self) -> None:
        """There are no hooks."""


def _facts(log: Log) -> TableFacts:
    data = log.metadata
    return TableFacts(
        version=log.version,
        identity=data["id"],
        schema=json.loads(data["schemaString"]),
        properties=dict(data["configuration"]),
        partition_columns=list(data["partitionColumns"]),
        features=frozenset(),
    )
