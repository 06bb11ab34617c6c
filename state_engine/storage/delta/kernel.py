"""Delta Kernel over py4j: create tables, commit lists of files, look commits up.

Kernel commits a list of files in tens of milliseconds, where a Spark append takes hundreds, and raises for a
transaction version that is already taken: that is the engine's fence. It checks nothing about the files themselves;
the callers do. Its jars come with delta-spark; it runs in the driver's JVM with Spark's own Hadoop configuration.

A commit goes beside those of other writers. Where one of them removed a file that this one removes, too, Kernel refuses
it, and it is made again from the newest snapshot. The ways in which a commit ends are in ``commit_ends``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError

from state_engine.core.checkpoints.checkpoint import DataFile
from state_engine.core.errors import (
    CommitError,
    CommitFailedError,
    CommitUnknownError,
    StatelakeError,
    StorageError,
)
from state_engine.core.types.spark_types import spark_schema
from state_engine.storage.delta.action_json import Action, txn_action
from state_engine.storage.delta.commit_actions import CommitActions, FileGroup
from state_engine.storage.delta.commit_ends import (
    InactiveFilesError,
    OvertakenError,
    TransactionTakenError,
    class_name,
    classified,
    reading_log,
)
from state_engine.storage.delta.kernel_classes import KernelClasses
from state_engine.storage.delta.kernel_engines import KernelEngines
from state_engine.storage.delta.log import DeltaLog
from state_engine.storage.delta.log_cleanup import clean_log, write_log_checkpoint
from state_engine.storage.delta.log_tail import LogDurability
from state_engine.storage.delta.snapshots import LogEntry, Snapshots
from state_engine.storage.delta.store_checks import LogStores, StoreChecks, Verdict
from state_engine.storage.delta.table_facts import FactsReader, TableFacts
from state_engine.storage.java_gateway import background_thread, java_class, java_session, jvm_of
from state_engine.storage.stores.durability import Durability
from state_engine.storage.stores.files import is_local, open_location
from state_engine.storage.stores.locks import table_lock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "DeltaKernel",
    "FileGroup",
    "InactiveFilesError",
    "TableFacts",
    "TableFiles",
    "Transaction",
    "TransactionTakenError",
]

ENGINE_INFO = "Statelake"
_SUM_OF_ALL = "CHECKSUM_FULL"
"""A hook of Kernel that reads the whole table for a checksum, as the snapshot before the commit had none."""
_ATTEMPTS = 10
"""How often a commit that removes files is made anew because another writer was faster."""


@dataclass(frozen=True)
class Transaction:
    """Application id and version that make a commit happen at most once."""

    app: str
    version: int


@dataclass(frozen=True)
class TableFiles:
    """A table at one version, for a commit that goes on exactly that one.

    Attributes:
        transactions: the highest version of each application that was asked for; 0 for none.
        adds: what the log says of each active file.
    """

    uri: str
    facts: TableFacts
    transactions: Mapping[str, int]
    adds: list[Action]
    snapshot: Any


class DeltaKernel:
    """Kernel's engine bound to one Spark session.

    Args:
        lock_timeout_s: how long a commit waits for a table's lock.
        durability: whether commits to local tables wait for the disk.
        checks: which stores may be committed to; None: all.
    """

    _checks: StoreChecks | None = None

    def __init__(
        self,
        spark: SparkSession,
        *,
        lock_timeout_s: float = 60.0,
        durability: Durability = "sync",
        checks: StoreChecks | None = None,
    ) -> None:
        self.spark, self.disk = spark, LogDurability(durability)
        jvm = jvm_of(spark)
        self._classes = KernelClasses.of(jvm)
        self._lock_timeout_s = lock_timeout_s
        self._facts = FactsReader(self._classes)
        self._engines = KernelEngines(spark, self._classes)
        self._checks, self._stores = checks, LogStores(jvm, self._engines)
        self._actions = CommitActions(self._classes, self._engines)
        self._snapshots = Snapshots(self._classes, self._engines, lock_timeout_s=lock_timeout_s)
        self._pending: list[Future[None]] = []
        self._pending_lock = Lock()

    # -- looking ---------------------------------------------------------------------------------------------------

    def exists(self, uri: str) -> bool:
        """Whether there is a Delta table."""
        return self._snapshots.newest(uri) is not None

    def version(self, uri: str) -> int | None:
        """The newest version of a table; None where there is none."""
        snapshot = self._snapshots.newest(uri)
        return None if snapshot is None else int(snapshot.getVersion())

    def newest_entry(self, uri: str, version: int) -> LogEntry | None:
        """The file that a version is in the log of a table; None where that is not known, or not the newest any more.

        A version alone does not identify it: a table that was put back from a backup gets its numbers again.
        """
        return self._snapshots.entry(uri, version)

    def facts(self, uri: str) -> TableFacts | None:
        """What the newest snapshot says; None where there is no table."""
        snapshot = self._snapshots.newest(uri)
        with reading_log(uri):
            return None if snapshot is None else self._facts.read(uri, snapshot)

    def properties(self, uri: str) -> dict[str, str] | None:
        """Properties of a table; None where there is none. Cheaper than ``facts`` where the schema is wide."""
        snapshot = self._snapshots.newest(uri)
        if snapshot is None:
            return None
        properties: dict[str, str] = self._classes.plain(snapshot.getMetadata().getConfiguration())[0]
        return properties

    def inspect(self, uri: str, app: str) -> tuple[TableFacts, int] | None:
        """Facts, and the highest version that an application committed (0: none), of one snapshot."""
        inspected = self.inspect_all(uri, app)
        return None if inspected is None else (inspected[0], inspected[1][app])

    def inspect_all(self, uri: str, *apps: str) -> tuple[TableFacts, Mapping[str, int]] | None:
        """As ``inspect``, for several applications."""
        snapshot = self._snapshots.newest(uri)
        if snapshot is None:
            return None
        with reading_log(uri):
            return self._facts.read(uri, snapshot), self._taken(uri, snapshot, apps)

    def latest_transaction(self, uri: str, app: str) -> int | None:
        """The highest version that an application committed to a table; None where it never did."""
        snapshot = self._snapshots.newest(uri)
        if snapshot is None:
            return None
        with reading_log(uri):
            return self._taken(uri, snapshot, [app])[app] or None

    def active_files(self, uri: str) -> list[str]:
        """Paths, relative to the table, of the files in the newest snapshot, and of those only."""
        snapshot = self._snapshots.newest(uri)
        with reading_log(uri):
            return [] if snapshot is None else [path for path, _ in self._actions.scan(uri, snapshot)]

    def files_of(self, uri: str, *apps: str) -> TableFiles | None:
        """The newest version of a table with all that the log says of its files; None where there is no table."""
        snapshot = self._snapshots.newest(uri)
        if snapshot is None:
            return None
        with reading_log(uri):
            facts, taken = self._facts.read(uri, snapshot), self._taken(uri, snapshot, apps)
            return TableFiles(uri, facts, taken, self._actions.adds(uri, snapshot), snapshot)

    def _taken(self, uri: str, snapshot: Any, apps: Sequence[str]) -> dict[str, int]:
        engine = self._engines.of(uri)
        known = ((app, snapshot.getLatestTransactionVersion(engine, app)) for app in apps)
        return {app: int(version.get()) if version.isPresent() else 0 for app, version in known}

    def file_retention_ms(self, files: TableFiles) -> int:
        """How long ``VACUUM`` keeps files that left a table, for readers of older versions."""
        return int(self._classes.file_retention.fromMetadata(files.snapshot.getMetadata()))

    # -- committing ------------------------------------------------------------------------------------------------

    def check_store(self, uri: str) -> None:
        """Refuse a table on a store that loses commits; whoever has others commit to it asks before that.

        Raises:
            UnsafeStoreError: it does.
        """
        if self._checks is not None:
            self._checks.check(uri, self._stores)

    def look_at_store(self, uri: str) -> Verdict:
        """Have writers race on the store of a table again, and write the verdict down.

        Raises:
            UnsafeStoreError: it loses commits.
        """
        if self._checks is None:
            raise ValueError("this Kernel does not check stores")
        return self._checks.look_again(uri, self._stores)

    def write_new(self, uri: str, text: str) -> bool:
        """Write a small file of some lines, unless there is one; whether it was written.

        Of many writers exactly one did, on every store that may be committed to.
        """
        if not is_local(uri):
            self.check_store(uri.rsplit("/", 1)[0])
            return self._stores.write_new(uri, text.splitlines())
        try:
            open_location(uri).write_new(text.encode())
        except FileExistsError:
            return False
        return True

    def create_table(
        self,
        uri: str,
        schema: pa.Schema,
        *,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> bool:
        """Create a table with exactly this schema and these properties; False where one exists already."""
        if self.exists(uri):  # cheaper than a Java exception
            return False
        self.check_store(uri)
        classes, engine = self._classes, self._engines.of(uri)
        kernel_schema = classes.type_json.deserializeStructType(json.dumps(spark_schema(schema)))
        with table_lock(uri, timeout_s=self._lock_timeout_s):
            builder = classes.table.forPath(engine, uri).createTransactionBuilder(
                engine, ENGINE_INFO, classes.create_table
            )
            builder = builder.withSchema(engine, kernel_schema)
            if partition_by:
                builder = builder.withPartitionColumns(engine, classes.list(partition_by))
            if properties:
                builder = builder.withTableProperties(engine, classes.map(dict(properties)))
            try:
                transaction = builder.build(engine)
            except Py4JJavaError as error:
                if class_name(error) == "TableAlreadyExistsException":
                    return False
                raise classified(error, uri, committing=False) from error
            empty = classes.iterable.emptyIterable()
            try:
                self._commit(uri, lambda: transaction, lambda _: empty)
            except CommitError:
                if not self.exists(uri):
                    raise
                return False  # another runner was faster; Kernel says that its protocol changed
        return True

    def append(
        self,
        uri: str,
        files: Sequence[DataFile],
        *,
        transaction: Transaction | None = None,
        partition: Mapping[str, str] | None = None,
    ) -> int:
        """Add files that are already in place to a table, in one commit; returns its version; see ``change``."""
        return self.change(uri, add=[FileGroup(files, partition or {})], transaction=transaction)

    def change(
        self,
        uri: str,
        *,
        add: Sequence[FileGroup],
        remove: Sequence[str] = (),
        transaction: Transaction | None = None,
    ) -> int:
        """Add files that are in place, and remove others, in one commit; returns its version.

        Args:
            add: with paths relative to the table.
            remove: paths relative to the table; the files stay where they are, until VACUUM collects them.
            transaction: refuses the commit where this version is taken.

        Raises:
            InactiveFilesError: not all files to remove are in the table.
            TransactionTakenError, CommitFailedError, CommitUnknownError: see ``commit_ends``.
        """
        self.check_store(uri)
        self.disk.files(uri, [file.path for group in add for file in group.files])
        with table_lock(uri, timeout_s=self._lock_timeout_s):
            for left in reversed(range(_ATTEMPTS)):
                try:
                    return self._change(uri, add, remove, transaction)
                except OvertakenError:
                    if not (remove and left):
                        raise
        raise AssertionError("the last attempt returns or raises")

    def commit_upon(
        self,
        files: TableFiles,
        actions: Sequence[Action],
        *,
        transactions: Sequence[Transaction] = (),
        properties: Mapping[str, str] | None = None,
        schema: pa.Schema | None = None,
        written: Sequence[str] = (),
    ) -> int:
        """Commit actions as the version after the one that was looked at, or not at all; returns the version.

        Args:
            transactions: by application, the version committed with this; may go down, because the caller compared it
                with the version that it looked at.
            schema: makes the table again with these columns: all of its files go, without actions for that.
            written: new files that the actions name, relative to the table.

        Raises:
            OvertakenError: another writer was faster.
        """
        uri = files.uri
        self.check_store(uri)
        self.disk.files(uri, list(written))
        classes, engine = self._classes, self._engines.of(uri)

        actions = [*actions, *(txn_action(one.app, one.version) for one in transactions)]

        def begin() -> Any:
            if schema is not None:
                columns = classes.type_json.deserializeStructType(json.dumps(spark_schema(schema)))
                builder = files.snapshot.buildReplaceTableTransaction(columns, ENGINE_INFO).withMaxRetries(0)
                kept = {**files.facts.properties, **(properties or {})}
                return builder.withTableProperties(classes.map(kept)).build(engine)
            builder = files.snapshot.buildUpdateTableTransaction(ENGINE_INFO, classes.write)
            builder = builder.withMaxRetries(0)
            if properties:
                builder = builder.withTablePropertiesAdded(classes.map(dict(properties)))
            return builder.build(engine)

        def prepared(_: Any) -> Any:
            return classes.iterable.inMemoryIterable(self._actions.rows(actions))

        with table_lock(uri, timeout_s=self._lock_timeout_s):
            return self._commit(uri, begin, prepared, upon=files.snapshot)

    def close(self) -> None:
        """Wait for the log checkpoints that commits asked for; they would never be written otherwise."""
        self.join_hooks()

    def join_hooks(self) -> None:
        """Wait for pending post-commit hooks; their failure is not the commit's."""
        with self._pending_lock:
            pending, self._pending = self._pending, []
        for future in pending:
            future.exception()

    def forget(self, uri: str) -> None:
        """Have this session's Spark look at a table again that another one took the place of."""
        jvm = jvm_of(self.spark)
        path = java_class(jvm, "org.apache.hadoop.fs.Path")(uri)
        log = java_class(jvm, "org.apache.spark.sql.delta.DeltaLog")
        log.invalidateCache(java_session(self.spark), path)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _change(
        self, uri: str, add: Sequence[FileGroup], remove: Sequence[str], transaction: Transaction | None
    ) -> int:
        classes, engine = self._classes, self._engines.of(uri)
        before = self._begin_from(uri)

        def begin() -> Any:
            builder = before.buildUpdateTableTransaction(ENGINE_INFO, classes.write)
            if transaction is not None:
                builder = builder.withTransactionId(transaction.app, transaction.version)
            return builder.build(engine)

        def actions(_: Any) -> Any:
            _check_partitions(uri, before, add)
            added = self._actions.append(add)
            changes = self._actions.remove(uri, before, remove).combine(added) if remove else added
            return classes.iterable.inMemoryIterable(changes)

        return self._commit(uri, begin, actions, upon=before)

    def _begin_from(self, uri: str) -> Any:
        try:
            snapshot = self._snapshots.newest(uri)
        except StatelakeError as error:
            raise CommitFailedError(
                f"the commit to table {uri} failed: {error}. Nothing was written"
            ) from error
        if snapshot is None:
            raise CommitFailedError(
                f"the commit to table {uri} failed: there is no table. Nothing was written"
            )
        return snapshot

    def _commit(self, uri: str, begin: Any, actions: Any, *, upon: Any = None) -> int:
        try:
            txn = begin()
            prepared = actions(txn)
        except Py4JJavaError as error:
            raise classified(error, uri, committing=False) from error
        before = int(txn.getReadTableVersion())
        self.disk.entry(uri, before)  # whoever wrote it
        try:
            result = txn.commit(self._engines.of(uri), prepared)
        except Py4JJavaError as error:
            raise classified(error, uri, committing=True) from error
        version = int(result.getVersion())
        try:
            self.disk.entry(uri, version, since=before)
        except StorageError as error:
            raise CommitUnknownError(
                f"the commit to table {uri} was written, but the disk did not confirm it: {error}"
            ) from error
        self._snapshots.committed(uri, upon, result)
        hooks = result.getPostCommitHooks()
        with self._pending_lock:
            # From the last: Kernel names the log checkpoint before the checksum. That has the table read anew, which
            # the checksum makes cheap. Iterating would end with a Java exception.
            for i in reversed(range(hooks.size())):
                self._pending.append(
                    background_thread().submit(self._after_commit, uri, version, hooks.get(i))
                )
            self._pending = [f for f in self._pending if not f.done()]
        return version

    def outlasting(self, uri: str, *, files: bool = False) -> None:
        """Sync the newest entry of a table's log, whoever wrote it, before anything is done that follows from it.

        Args:
            files: whether the data files that it adds are synced, too: Spark wrote them.
        """
        version = self.version(uri) if self.disk.durability == "sync" else None
        if version is None:
            return
        if files:
            added = DeltaLog(uri).commit(version).added
            self.disk.files(uri, [path for path in added if "://" not in path], by_hadoop=True)
        self.disk.entry(uri, version)

    def _after_commit(self, uri: str, version: int, hook: Any) -> None:
        engine, kind = self._engines.of(uri), hook.getType().toString()
        if kind == "CHECKPOINT":
            write_log_checkpoint(self._classes, engine, uri, version)
            self.disk.shortcuts(uri)
            self._clean(uri)
            return
        hook.threadSafeInvoke(engine)
        if kind == _SUM_OF_ALL:
            self._snapshots.forget(uri)

    def _clean(self, uri: str) -> None:
        if (snapshot := self._snapshots.newest(uri)) is None:
            return
        facts = self._facts.read(uri, snapshot)
        kept = facts.properties.get("delta.enableExpiredLogCleanup", "true").lower() == "false"
        if not kept and "checkpointProtection" not in facts.features:
            retention_ms = int(self._classes.log_retention.fromMetadata(snapshot.getMetadata()))
            clean_log(uri, keep_ms=retention_ms, delete=None if is_local(uri) else self._stores.delete)


def _check_partitions(uri: str, snapshot: Any, add: Sequence[FileGroup]) -> None:
    """Refuse files without a value for each partition column of their table, or with others: readers would fail.

    Raises:
        CommitFailedError: the table has other partition columns.
    """
    columns = snapshot.getPartitionColumnNames().toString()  # a round trip for all of them
    wrong = next((g for g in add if f"[{', '.join(g.partition)}]" != columns), None)
    if wrong is not None:
        raise CommitFailedError(
            f"the commit to table {uri} failed: it is partitioned by {columns}, and the files have values of "
            f"[{', '.join(wrong.partition)}]: somebody made another table of it. Nothing was written"
        )
