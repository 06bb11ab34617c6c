"""Delta Kernel over py4j: create tables, commit lists of files, look commits up.

Kernel commits a list of files in tens of milliseconds, where a Spark append takes hundreds, and raises for a
transaction version that is already taken: that is the engine's fence. It checks nothing about the files themselves;
the callers do. Its jars come with delta-spark; it runs in the driver's JVM with Spark's own Hadoop configuration.

Every commit has one of four ends, which are different errors: committed; ``TransactionTakenError`` (this application
already committed that version or a later one, nothing was written); ``CommitFailedError`` (nothing was written);
``CommitUnknownError`` (look it up before going on).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from state_engine.backends.delta.locks import table_lock
from state_engine.backends.files import join, open_location
from state_engine.core.checkpoint import DataFile
from state_engine.core.errors import CommitFailedError, CommitUnknownError
from state_engine.core.spark_types import spark_schema

ENGINE_INFO = "Statelake"


class TransactionTakenError(CommitFailedError):
    """The transaction version, or a later one, is in the log already; nothing was written now."""


@dataclass(frozen=True)
class TableFacts:
    """What a snapshot says of a table, for identity and allow-list checks.

    Attributes:
        version: of the snapshot.
        identity: the table id in Delta's metadata; a re-created table has another one.
        schema: Delta's schema as parsed JSON.
        properties: table properties.
        partition_columns: names.
        reader_version, writer_version: of the protocol.
        features: reader and writer features of the protocol.
    """

    version: int
    identity: str
    schema: dict[str, Any]
    properties: dict[str, str]
    partition_columns: list[str]
    reader_version: int
    writer_version: int
    features: frozenset[str]


@dataclass(frozen=True)
class Transaction:
    """Application id and version that make a commit happen at most once."""

    app: str
    version: int


class DeltaKernel:
    """Kernel's engine bound to one Spark session.

    Args:
        spark: a Spark Classic session with Delta's jars.
        lock_timeout_s: how long a commit waits for a table's lock.
    """

    def __init__(self, spark: SparkSession, *, lock_timeout_s: float = 60.0) -> None:
        jvm: Any = spark._jvm
        self._classes = _Classes(jvm)
        self._lock_timeout_s = lock_timeout_s
        self._facts: dict[str, tuple[str, TableFacts]] = {}
        self._seen: set[str] = set()
        java_context: Any = spark._jsc
        configuration = jvm.org.apache.hadoop.conf.Configuration(java_context.hadoopConfiguration())
        for key, value in _log_stores(java_context):
            configuration.set(key, value)
        self._engine = self._classes.default_engine.create(configuration)
        self._hooks = ThreadPoolExecutor(1, thread_name_prefix="statelake-delta-hooks")
        self._pending: list[Future[None]] = []
        self._pending_lock = Lock()

    # -- looking ---------------------------------------------------------------------------------------------------

    def exists(self, uri: str) -> bool:
        """Whether there is a Delta table."""
        return self._snapshot(uri) is not None

    def version(self, uri: str) -> int | None:
        """The newest version of a table; None where there is none."""
        snapshot = self._snapshot(uri)
        return None if snapshot is None else int(snapshot.getVersion())

    def facts(self, uri: str) -> TableFacts | None:
        """What the newest snapshot says; None where there is no table."""
        snapshot = self._snapshot(uri)
        return None if snapshot is None else self._facts_of(uri, snapshot)

    def inspect(self, uri: str, app: str) -> tuple[TableFacts, int] | None:
        """Facts, and the highest version that an application committed (0: none), of one snapshot."""
        snapshot = self._snapshot(uri)
        if snapshot is None:
            return None
        found = snapshot.getLatestTransactionVersion(self._engine, app)
        return self._facts_of(uri, snapshot), int(found.get()) if found.isPresent() else 0

    def _facts_of(self, uri: str, snapshot: Any) -> TableFacts:
        metadata, protocol = snapshot.getMetadata(), snapshot.getProtocol()
        # reading a Java collection takes a round trip an element; most snapshots differ in nothing but the version
        fingerprint = f"{metadata.toString()} {metadata.getSchemaString()} {protocol.toString()}"
        version = int(snapshot.getVersion())
        known = self._facts.get(uri)
        if known is None or known[0] != fingerprint:
            features = [*_elements(protocol.getReaderFeatures()), *_elements(protocol.getWriterFeatures())]
            properties = _elements(metadata.getConfiguration().entrySet())
            facts = TableFacts(
                version=version,
                identity=str(metadata.getId()),
                schema=json.loads(metadata.getSchemaString()),
                properties={str(e.getKey()): str(e.getValue()) for e in properties},
                partition_columns=[str(c) for c in _elements(snapshot.getPartitionColumnNames())],
                reader_version=int(protocol.getMinReaderVersion()),
                writer_version=int(protocol.getMinWriterVersion()),
                features=frozenset(str(f) for f in features),
            )
            known = self._facts[uri] = (fingerprint, facts)
        return replace(known[1], version=version)

    def latest_transaction(self, uri: str, app: str) -> int | None:
        """The highest version that an application committed to a table; None where it never did."""
        snapshot = self._snapshot(uri)
        found = snapshot.getLatestTransactionVersion(self._engine, app) if snapshot is not None else None
        return int(found.get()) if found is not None and found.isPresent() else None

    def active_files(self, uri: str) -> list[str]:
        """Paths, relative to the table, of the files in the newest snapshot, and of those only."""
        snapshot = self._snapshot(uri)
        if snapshot is None:
            return []
        utils = self._classes.scan_files
        found, batches = [], snapshot.getScanBuilder().build().getScanFiles(self._engine)
        prefix = uri if "://" in uri else f"file://{uri}"
        while batches.hasNext():
            rows = batches.next().getRows()
            while rows.hasNext():
                absolute = str(utils.getAddFileStatus(rows.next()).getPath())
                found.append(_relative(absolute, prefix))
        return found

    # -- committing ------------------------------------------------------------------------------------------------

    def create_table(
        self,
        uri: str,
        schema: pa.Schema,
        *,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> bool:
        """Create a table with exactly this schema and these properties; False where one exists already."""
        classes, engine = self._classes, self._engine
        kernel_schema = classes.type_json.deserializeStructType(json.dumps(spark_schema(schema)))
        with table_lock(uri, timeout_s=self._lock_timeout_s):
            builder = classes.table.forPath(engine, uri).createTransactionBuilder(
                engine, ENGINE_INFO, classes.create_table
            )
            builder = builder.withSchema(engine, kernel_schema)
            if partition_by:
                builder = builder.withPartitionColumns(engine, self._list(partition_by))
            if properties:
                builder = builder.withTableProperties(engine, self._map(dict(properties)))
            try:
                transaction = builder.build(engine)
            except Py4JJavaError as error:
                if _java_class(error) == "TableAlreadyExistsException":
                    return False
                raise _classified(error, uri, committing=False) from error
            empty = classes.iterable.emptyIterable()
            self._commit(uri, lambda: transaction, lambda _: empty)
        return True

    def append(
        self,
        uri: str,
        files: Sequence[DataFile],
        *,
        transaction: Transaction | None = None,
        partition: Mapping[str, str] | None = None,
    ) -> int:
        """Add files that are already in place to a table, in one commit; returns its version.

        Args:
            files: paths relative to the table.
            transaction: refuses the commit where this version is taken.
            partition: value of each partition column, one partition for all files.

        Raises:
            TransactionTakenError, CommitFailedError, CommitUnknownError: see the module docstring.
        """
        classes, engine = self._classes, self._engine
        with table_lock(uri, timeout_s=self._lock_timeout_s):

            def begin() -> Any:
                table = classes.table.forPath(engine, uri)
                builder = table.createTransactionBuilder(engine, ENGINE_INFO, classes.write)
                if transaction is not None:
                    builder = builder.withTransactionId(engine, transaction.app, transaction.version)
                return builder.build(engine)

            return self._commit(
                uri, begin, lambda txn: self._append_actions(uri, txn, files, partition or {})
            )

    def close(self) -> None:
        """Wait for the log checkpoints that commits asked for; they would never be written otherwise."""
        self.join_hooks()
        self._hooks.shutdown(wait=True)

    def join_hooks(self) -> None:
        """Wait for pending post-commit hooks; their failure is not the commit's."""
        with self._pending_lock:
            pending, self._pending = self._pending, []
        for future in pending:
            future.exception()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _append_actions(
        self, uri: str, txn: Any, files: Sequence[DataFile], partition: Mapping[str, str]
    ) -> Any:
        classes, engine = self._classes, self._engine
        state = txn.getTransactionState(engine)
        literals = {k: classes.literal.ofString(v) for k, v in partition.items()}
        context = classes.transaction.getWriteContext(engine, state, self._map(literals))
        schema, now_ms = txn.getSchema(engine), int(time.time() * 1000)
        statuses = classes.array_list()
        for file in files:
            stats = classes.statistics.deserializeFromJson(_statistics(file), schema)
            statuses.add(classes.file_status(join(uri, file.path), file.bytes, now_ms, stats))
        iterator = classes.utils.toCloseableIterator(statuses.iterator())
        actions = classes.transaction.generateAppendActions(engine, state, iterator, context)
        return classes.iterable.inMemoryIterable(actions)

    def _commit(self, uri: str, begin: Any, actions: Any) -> int:
        try:
            txn = begin()
            prepared = actions(txn)
        except Py4JJavaError as error:
            raise _classified(error, uri, committing=False) from error
        try:
            result = txn.commit(self._engine, prepared)
        except Py4JJavaError as error:
            raise _classified(error, uri, committing=True) from error
        hooks = result.getPostCommitHooks()
        with self._pending_lock:
            for i in range(hooks.size()):  # iterating would end with a Java exception
                self._pending.append(self._hooks.submit(hooks.get(i).threadSafeInvoke, self._engine))
            self._pending = [f for f in self._pending if not f.done()]
        return int(result.getVersion())

    def _snapshot(self, uri: str) -> Any:
        if uri not in self._seen:  # a Java exception is a dear way to learn that there is nothing
            if open_location(join(uri, "_delta_log")).info().type != pafs.FileType.Directory:
                return None
            self._seen.add(uri)
        try:
            return self._classes.table.forPath(self._engine, uri).getLatestSnapshot(self._engine)
        except Py4JJavaError as error:
            if _java_class(error) == "TableNotFoundException":
                return None
            raise

    def _list(self, values: Sequence[str]) -> Any:
        made = self._classes.array_list()
        for value in values:
            made.add(value)
        return made

    def _map(self, values: Mapping[str, Any]) -> Any:
        made = self._classes.hash_map()
        for key, value in values.items():
            made.put(key, value)
        return made


class _Classes:
    """Java classes by name, looked up once: py4j asks the JVM for every component of a package name."""

    def __init__(self, jvm: Any) -> None:
        kernel = jvm.io.delta.kernel
        self.table, self.transaction = kernel.Table, kernel.Transaction
        self.create_table, self.write = kernel.Operation.CREATE_TABLE, kernel.Operation.WRITE
        self.default_engine = kernel.defaults.engine.DefaultEngine
        self.iterable, self.file_status = kernel.utils.CloseableIterable, kernel.utils.DataFileStatus
        self.literal, self.statistics = kernel.expressions.Literal, kernel.statistics.DataFileStatistics
        self.type_json, self.utils = kernel.internal.types.DataTypeJsonSerDe, kernel.internal.util.Utils
        self.scan_files = kernel.internal.InternalScanFileUtils
        self.array_list, self.hash_map = jvm.java.util.ArrayList, jvm.java.util.HashMap


def _elements(collection: Any) -> list[Any]:
    """Elements of a Java collection; iterating over it would end with a Java exception, which is dear."""
    array = collection.toArray()
    return [array[i] for i in range(len(array))]


def _statistics(file: DataFile) -> str:
    found: dict[str, Any] = {"numRecords": file.rows}
    if file.key_group_min is not None:
        found["minValues"] = {"key_group": file.key_group_min, "key_hash": file.key_hash_min}
        found["maxValues"] = {"key_group": file.key_group_max, "key_hash": file.key_hash_max}
    return json.dumps(found)


def _relative(absolute: str, prefix: str) -> str:
    path = unquote(absolute)
    for start in (prefix, prefix.replace("file://", "file:"), prefix.removeprefix("file://")):
        if path.startswith(start + "/"):
            return path[len(start) + 1 :]
    return path


def _java_class(error: Py4JJavaError) -> str:
    return str(error.java_exception.getClass().getSimpleName())


def _classified(
    error: Py4JJavaError, uri: str, *, committing: bool
) -> CommitFailedError | CommitUnknownError:
    """Which of the four ends of a commit a Java exception means."""
    kind, message = _java_class(error), str(error.java_exception.getMessage())
    if kind == "ConcurrentTransactionException":
        return TransactionTakenError(f"table {uri}: {message}")
    certain = kind in (
        "ConcurrentWriteException",
        "MaxCommitRetryLimitReachedException",
        "MetadataChangedException",
        "ProtocolChangedException",
        "TableAlreadyExistsException",
    )
    if certain or not committing:
        return CommitFailedError(f"the commit to table {uri} failed ({kind}: {message}); nothing was written")
    return CommitUnknownError(
        f"it is not known whether the commit to table {uri} succeeded ({kind}: {message})"
    )


def _log_stores(java_context: Any) -> list[tuple[str, str]]:
    """Spark's log store settings under the keys that Kernel reads."""
    prefix = "spark.delta.logStore."
    pairs = [(str(p._1()), str(p._2())) for p in java_context.getConf().getAll()]
    found = {k.removeprefix(prefix): v for k, v in pairs if k.startswith(prefix)}
    # Kernel's default for local files starts a process for every look at a file; we hold a lock, so this is as safe
    found.setdefault("file.impl", "io.delta.storage.LocalLogStore")
    return [(f"io.delta.kernel.logStore.{key}", value) for key, value in found.items()]
