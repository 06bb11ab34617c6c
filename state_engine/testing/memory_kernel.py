"""``MemoryKernel``: the logs of tables in memory, in the place of Delta Kernel.

Files of tables are written as ever; what a table lists, its properties and the transactions that it has seen are kept
here. Commits are fenced by transaction versions, as Kernel fences them. No other process sees these tables, and no
reader of Delta knows them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock

import pyarrow as pa

from state_engine.spark.no_spark import NO_SPARK
from state_engine.storage.delta.kernel import (
    DeltaKernel,
    FileGroup,
    InactiveFilesError,
    Transaction,
    TransactionTakenError,
)
from state_engine.storage.delta.log_tail import LogDurability


@dataclass
class _Table:
    properties: dict[str, str]
    version: int = 0
    files: dict[str, None] = field(default_factory=dict)
    transactions: dict[str, int] = field(default_factory=dict)


def check_commit(
    uri: str,
    transaction: Transaction | None,
    taken: Mapping[str, int],
    *,
    remove: Iterable[str],
    active: Iterable[str],
) -> None:
    """Refuse a commit that Kernel refuses.

    Args:
        taken: the highest version that each application committed.
    """
    if transaction is not None and taken.get(transaction.app, -1) >= transaction.version:
        raise TransactionTakenError(f"{uri}: {transaction} is taken")
    if gone := sorted(set(remove) - set(active)):
        raise InactiveFilesError(uri, gone)


class MemoryKernel(DeltaKernel):
    """See the module docstring."""

    def __init__(self) -> None:
        self.spark, self.disk = NO_SPARK, LogDurability("os")
        self._tables: dict[str, _Table] = {}
        self._lock = Lock()

    def exists(self, uri: str) -> bool:
        return uri in self._tables

    def version(self, uri: str) -> int | None:
        return self._tables[uri].version if uri in self._tables else None

    def properties(self, uri: str) -> dict[str, str] | None:
        return self._tables[uri].properties if uri in self._tables else None

    def latest_transaction(self, uri: str, app: str) -> int | None:
        return self._tables[uri].transactions.get(app) if uri in self._tables else None

    def active_files(self, uri: str) -> list[str]:
        return list(self._tables[uri].files) if uri in self._tables else []

    def create_table(
        self,
        uri: str,
        schema: pa.Schema,
        *,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> bool:
        with self._lock:
            if uri in self._tables:
                return False
            self._tables[uri] = _Table(dict(properties or {}))
            return True

    def change(
        self,
        uri: str,
        *,
        add: Sequence[FileGroup],
        remove: Sequence[str] = (),
        transaction: Transaction | None = None,
    ) -> int:
        with self._lock:
            table = self._tables[uri]
            check_commit(uri, transaction, table.transactions, remove=remove, active=table.files)
            if transaction is not None:
                table.transactions[transaction.app] = transaction.version
            for path in remove:
                del table.files[path]
            table.files |= dict.fromkeys(file.path for group in add for file in group.files)
            table.version += 1
            return table.version

    def outlasting(self, uri: str, *, files: bool = False) -> None:
        """Nothing outlasts the run."""

    def join_hooks(self) -> None:
        """There are no hooks."""

    def close(self) -> None:
        """There is no background work."""
