"""A Delta table that a source reads: versions, the files that they add, schemas; and scans of such files.

Scans go through Delta's own reader, so deletion vectors, column mapping, widened types and partition columns are
right; commits, and the files of a version whose log is short, are read without a Spark job (``DeltaLog``). Everything
that the log cannot give any more is a SourceError that says so.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs
from py4j.protocol import Py4JJavaError

from state_engine.core.errors import SourceError
from state_engine.sources.file_ranges import FileRange
from state_engine.sources.parquet.parquet_files import parquet_row_count
from state_engine.sources.parquet.parquet_rows import few_rows
from state_engine.sources.row_places import STRICT, place_columns, scanned
from state_engine.spark.placement import NO_LIMITS, limits_of
from state_engine.spark.spark_names import F, T
from state_engine.storage.delta.action_json import (
    SCANNED,
    Action,
    add_text,
    as_listed,
    reads_deletion_vectors,
    recorded_rows,
    rows_left,
    uri_of,
    with_properties,
)
from state_engine.storage.delta.log import DeltaLog, LogCommit
from state_engine.storage.java_gateway import java_class, java_session, jvm_of
from state_engine.storage.stores.files import join, open_location
from state_engine.storage.stores.in_threads import in_threads
from state_engine.storage.stores.parquet_reading import SPARK_VERIFIES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_READ_PROPERTIES = ("delta.columnMapping.", "delta.enableTypeWidening")
"""Table properties that decide how a scan reads a file."""
_COMMENT = "comment"
"""The one property of a column that says nothing about how it is read."""
K = TypeVar("K")
V = TypeVar("V")
_KEPT_LISTINGS = 4
_listings: OrderedDict[tuple[str, str, int], list[TableFile]] = OrderedDict()
"""Files of snapshots, which never change: a snapshot that takes many batches is listed once a process."""


@dataclass(frozen=True)
class TableFile:
    """A data file that a version of the table holds.

    Attributes:
        uri: absolute, not escaped.
        rows: that are left after its deletion vector; None where the log does not say.
    """

    uri: str
    size: int
    rows: int | None
    action: str

    def row_count(self) -> int:
        """Rows, from the file's footer where the log does not say."""
        if self.rows is not None:
            return self.rows
        return parquet_row_count(self.uri)

    def repeats(self, files: Sequence[TableFile]) -> bool:
        """Whether a slice of these files must not hold this one, too: one scan gives a file once."""
        return any(f.uri == self.uri for f in files)


@dataclass(frozen=True)
class TableCommit:
    """What one commit did to the data.

    Attributes:
        files: that it added, in the order of the log; those of a mere rearrangement are left out.
        schema: the new schema as JSON; None where it left the metadata alone.
    """

    files: list[TableFile]
    removes: bool
    operation: str
    schema: str | None
    table_id: str | None


class SourceTable:
    """The newest version of a table, and its history."""

    def __init__(self, spark: SparkSession, uri: str) -> None:
        self.uri, self._spark = uri, spark
        self._java = partial(java_class, jvm_of(spark))
        none = self._java("scala.Option").empty()
        with self._explained("its log cannot be read"):
            self._log = self._java("org.apache.spark.sql.delta.DeltaLog").forTable(java_session(spark), uri)
            self._newest = self._log.update(False, none, none)
            self.version = int(self._newest.version())
            if self.version < 0:
                raise SourceError(f"{uri} is not a Delta table: check the path, or create the table first")
            metadata = self._newest.metadata()
            self.table_id, self.schema = str(metadata.id()), str(metadata.schemaString())

    def check_begin(self, version: int) -> None:
        """Refuse to begin with a version. Raises SourceError where what it changed is not recorded."""

    def schema_at(self, version: int) -> str:
        return str(self._snapshot(version).metadata().schemaString())

    def snapshot_files(self, version: int) -> list[TableFile]:
        """All files of a version, oldest first; the same order every time."""
        key = (self.uri, self.table_id, version)
        return kept_newest(_listings, key, lambda: self._files_of(version), most=_KEPT_LISTINGS)

    def commit(self, version: int) -> TableCommit:
        """What a commit did."""
        entry = self.log_commit(version)
        table_id, schema = entry.described or (None, None)
        return TableCommit(
            files=[self._file(add, recorded_rows(add)) for add in entry.data_added],
            removes=entry.removes_data,
            operation=entry.operation,
            schema=schema,
            table_id=table_id,
        )

    def log_commit(self, version: int) -> LogCommit:
        """The entry of a commit. Raises SourceError where it is no longer in the log."""
        try:
            return DeltaLog(self.uri).commit(version)
        except FileNotFoundError:
            raise SourceError(
                f"{self.uri}: version {version} is no longer in the log (its retention is "
                "delta.logRetentionDuration), so what it changed is unknown"
            ) from None

    def plain_schema(self, files: Sequence[TableFile], version: int) -> T.StructType | None:
        """The columns of a version, where these files hold them and nothing but them; None where Delta has to read.

        That is where columns are mapped, or come from the paths of files, or have properties that may change what is
        read; and where a deletion vector hides rows.
        """
        metadata = self._snapshot(version).metadata()
        schema = T.StructType.fromJson(json.loads(metadata.schemaString()))
        plain = metadata.partitionColumns().isEmpty() and all(
            set(f.metadata) <= {_COMMENT} for f in schema.fields
        )
        hidden = any(json.loads(file.action)["add"].get("deletionVector") for file in files)
        return schema if plain and not hidden else None

    def rows(self, files: Sequence[TableFile], version: int) -> DataFrame:
        """The rows of a slice of files, with its hidden columns, and the columns that the table had in a version."""
        places = place_columns([f.uri for f in files], F.col("_metadata.row_index"))
        return self.scan(files, version).select("*", *places)

    def newest_rows(self) -> DataFrame:
        """All rows of the newest version, read as cheaply as it may be: Delta takes long to list and scan few files."""
        files = self.snapshot_files(self.version)
        schema = self.plain_schema(files, self.version)
        if schema is None:
            return self.scan(files, self.version)
        ranges = [FileRange(file.uri, file.size, 0, 0, None) for file in files]
        few = few_rows(ranges, schema, limits_of(self._spark))
        if few is not None:
            return self._spark.createDataFrame(few.select(schema.names), schema)
        if not files:
            return self.scan(files, self.version)
        reader = self._spark.read.options(**STRICT, **SPARK_VERIFIES).schema(schema)
        return scanned([file.uri for file in files], lambda some: reader.parquet(*some))

    def scan(self, files: Sequence[TableFile], version: int) -> DataFrame:
        """The rows of files, with the columns that the table had in a version."""
        from_json = self._java("org.apache.spark.sql.delta.actions.Action").fromJson
        adds = self._java("java.util.ArrayList")()
        for file in files:
            adds.add(from_json(file.action))
        with self._explained(f"version {version} cannot be read"):
            sequence = self._java("scala.jdk.javaapi.CollectionConverters").asScala(adds).toSeq()
            snapshot = self._described(self._snapshot(version))
            frame = self._log.createDataFrame(snapshot, sequence, False, self._java("scala.Option").empty())
            return self._frame(frame)

    def _described(self, snapshot: Any) -> Any:
        """A description of the table with which a scan has ``_metadata.row_index``.

        Delta's scans have it only where the protocol allows deletion vectors; other tables are described again.
        """
        if reads_deletion_vectors(snapshot.protocol().json()):
            return snapshot
        return self._described_anew(snapshot.metadata().json())

    def _described_anew(self, metadata_text: str) -> Any:
        """A table of this ``metaData``, whose protocol allows deletion vectors. Nothing of it is written anywhere."""
        text = with_properties(
            metadata_text, kept=_READ_PROPERTIES, added={"delta.enableDeletionVectors": "true"}
        )
        metadata = self._java("org.apache.spark.sql.delta.actions.Action").fromJson(text)
        path, none = self._log.logPath(), self._java("scala.Option").empty()
        return self._java("org.apache.spark.sql.delta.DummySnapshot")(path, self._log, metadata, none, none)

    def _snapshot(self, version: int) -> Any:
        if version == self.version:
            return self._newest
        none = self._java("scala.Option").empty()
        with self._explained(f"version {version} can no longer be rebuilt from the log"):
            return self._log.getSnapshotAt(version, none, none, False)

    def _files_of(self, version: int) -> list[TableFile]:
        """The files of a version: by its log, where that is short; else by Spark, which takes a job."""
        adds = DeltaLog(self.uri).files_at(version)
        if adds is not None:
            given = [(as_listed(add), recorded_rows(add)) for add in adds]
        else:
            with self._explained(f"the files of version {version} cannot be listed"):
                given = self._listed_by_spark(self._snapshot(version))
        given.sort(key=lambda one: (one[0]["modificationTime"], one[0]["path"]))
        return [self._file(add, rows) for add, rows in given]

    def _listed_by_spark(self, snapshot: Any) -> list[tuple[Action, int | None]]:
        rows = self._frame(snapshot.allFiles().toDF())
        known = [c for c in SCANNED if c in rows.columns]
        records = F.get_json_object("stats", "$.numRecords").cast("bigint").alias("records")
        listed = rows.select(F.to_json(F.struct(*known)).alias("add"), records).collect()
        adds = [(json.loads(row["add"]), row["records"]) for row in listed]
        return [(add, rows_left(add, records)) for add, records in adds]

    def _frame(self, java: Any) -> DataFrame:
        from pyspark.sql import DataFrame

        return DataFrame(java, self._spark)

    def _file(self, add: Action, rows: int | None) -> TableFile:
        return TableFile(uri_of(add, self.uri), int(add["size"]), rows, add_text(add))

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Turns what Java and Spark raise into a SourceError."""
        from pyspark.errors import PySparkException

        try:
            yield
        except Py4JJavaError as error:
            raise SourceError(f"{self.uri}: {what} ({error.java_exception.toString()})") from error
        except PySparkException as error:
            raise SourceError(f"{self.uri}: {what} ({error})") from error


def newest_table(uri: str) -> pa.Table | None:
    """All rows of the newest version, without Spark; None where only Spark can read them.

    That is a table with partitions, deletion vectors, columns that changed, or old dates.

    Raises:
        SourceError: there is no table.
    """
    newest = DeltaLog(uri).newest()
    if newest is None:
        raise SourceError(f"{uri} is not a Delta table: check the path, or create the table first")
    uris = [join(uri, path) for path in sorted(newest.files)]
    ranges = [FileRange(one, 0, 0, 0, None) for one in uris]
    schema = T.StructType.fromJson(json.loads(newest.schema))
    rows = few_rows(ranges, schema, NO_LIMITS) if newest.plain else None
    return None if rows is None else rows.select(schema.names)


def kept_newest(kept: OrderedDict[K, V], key: K, make: Callable[[], V], *, most: int) -> V:
    """A value by its key, made once; of others the newest are kept. Threads may ask at once."""
    value = kept.get(key)
    if value is None:
        value = kept[key] = make()  # not looked up again: another thread may have let go of it
        while len(kept) > most:
            kept.popitem(last=False)
    return value


def check_there(files: Sequence[TableFile]) -> None:
    """Raises SourceError where a file is gone."""
    problem = missing(files)
    if problem:
        raise SourceError(problem)


def missing(files: Sequence[TableFile]) -> str:
    """Says which file is gone; empty where all are there."""
    infos = in_threads(lambda f: open_location(f.uri).info(), files)
    for file, info in zip(files, infos, strict=True):
        if info.type != pafs.FileType.File or info.size != file.size:
            return (
                f"{file.uri} is in the table's log, but it is gone or has another size: VACUUM deletes files that "
                "the newest version does not hold. Restore the file, or set on_change='restart' to read the whole "
                "table again"
            )
    return ""


_INTEGERS = ("byte", "short", "integer", "long")
_WIDER = {
    ("float", "double"),
    ("byte", "double"),
    ("short", "double"),
    ("integer", "double"),
    ("date", "timestamp_ntz"),
}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def incompatible_change(old: dict[str, Any], new: dict[str, Any], inside: str = "") -> str:
    """What of ``old`` is not in ``new`` any more, as text; empty where nothing is missing.

    Args:
        inside: name of the column that holds them, with a dot.

    Example:
        >>> column = lambda kind: {"type": "struct", "fields": [{"name": "k", "type": kind}]}
        >>> incompatible_change(column("integer"), column("long"))
        ''
        >>> incompatible_change(column("long"), column("string"))
        "column 'k' changed from long to string"
    """
    after = {f["name"]: f["type"] for f in new["fields"]}
    for field in old["fields"]:
        name = inside + field["name"]
        if field["name"] not in after:
            return f"column '{name}' was dropped or renamed"
        problem = _type_change(name, field["type"], after[field["name"]])
        if problem:
            return problem
    return ""


def _type_change(name: str, old: Any, new: Any) -> str:
    if isinstance(old, dict) and isinstance(new, dict) and old["type"] == new["type"]:
        if old["type"] == "struct":
            return incompatible_change(old, new, f"{name}.")
        parts = [p for p in ("elementType", "keyType", "valueType") if p in old]
        return next((p for part in parts if (p := _type_change(f"{name}.{part}", old[part], new[part]))), "")
    if old == new or (isinstance(old, str) and isinstance(new, str) and _is_wider(old, new)):
        return ""
    return f"column '{name}' changed from {_shown(old)} to {_shown(new)}"


def _is_wider(old: str, new: str) -> bool:
    if old in _INTEGERS and new in _INTEGERS:
        return _INTEGERS.index(new) > _INTEGERS.index(old)
    before, after = _DECIMAL.fullmatch(old), _DECIMAL.fullmatch(new)
    if before and after:
        (p, s), (q, t) = map(int, before.groups()), map(int, after.groups())
        return t >= s and q - t >= p - s
    return (old, new) in _WIDER


def _shown(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind["type"])
