"""The change data feed of a Delta table: what each commit changed, as files to scan.

A commit that recorded its changes has files of them (``cdc``), and these say all. Of any other, the rows of an added
file were inserted and those of a removed file deleted; where only the deletion vector of a file is another one, the
rows between the two were (``PROTOCOL.md`` of Delta, "Change Data Files"). Each of them is a file that ``SourceTable``
scans: a removed file as it was before; a file with two deletion vectors by a third one that hides all other rows. So
changes are read exactly by version and file, as a plain source reads what is added. Decision 0060.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.errors import SourceError
from state_engine.core.types.row import RowKind
from state_engine.sources.base import FILE_COLUMN, ROW_COLUMN
from state_engine.sources.delta_table import SourceTable, TableCommit, TableFile, kept_newest
from state_engine.sources.row_places import place_columns
from state_engine.sources.stream_columns import ROW_KIND
from state_engine.spark.spark_names import F
from state_engine.storage.delta.action_json import (
    Action,
    add_text,
    as_add,
    recorded_rows,
    with_text_column,
)
from state_engine.storage.delta.deletion_vectors import showing_only
from state_engine.storage.delta.log import LogCommit
from state_engine.storage.stores.files import open_location

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FEED = "delta.enableChangeDataFeed"
"""The property of a table that has a change data feed."""
MAPPING = "delta.columnMapping.mode"
CHANGE_TYPE, COMMIT_TIMESTAMP = "_change_type", "_commit_timestamp"
METADATA = (CHANGE_TYPE, "_commit_version", COMMIT_TIMESTAMP)
"""Columns that say of a row what its commit did; the names are Delta's."""
_KINDS = {
    "insert": RowKind.INSERT,
    "update_preimage": RowKind.UPDATE_BEFORE,
    "update_postimage": RowKind.UPDATE_AFTER,
    "delete": RowKind.DELETE,
}
_BEFORE = (RowKind.UPDATE_BEFORE, RowKind.DELETE)
_PLACE = "_statelake_scanned_file"
"""Place of a row's file among those of one scan."""
_SCANS = 16
"""So often a slice may hold the same file, with other rows of it each time: each takes a scan of its own."""
_KEPT_COMMITS = 8
_commits: OrderedDict[tuple[str, str, int], TableCommit] = OrderedDict()
"""Commits, which never change: one that takes many batches is looked through once a process."""

Part = Literal["insert", "delete", "before", "after"]


@dataclass(frozen=True)
class ChangeFile(TableFile):
    """Rows of one file that one commit changed.

    Attributes:
        part: ``insert`` or ``delete``: all of its rows were; ``before`` and ``after``: of a file of recorded changes
            those that the commit took away, or put in place.
    """

    part: Part
    version: int
    committed_ms: int | None
    masked: int = 0

    def row_count(self) -> int:
        if self.part in ("before", "after"):
            return _recorded_changes(self.uri, [k for k, v in _KINDS.items() if self.holds(v)])
        return self.rows if self.rows is not None else super().row_count() - self.masked

    def holds(self, kind: RowKind) -> bool:
        """Whether rows of a kind, of a file of recorded changes, belong to it."""
        return (kind in _BEFORE) == (self.part == "before")

    def is_beside(self, other: TableFile) -> bool:
        """Whether one scan of the file gives the rows of both: they are the two parts of a file of changes."""
        return self.action == other.action and isinstance(other, ChangeFile) and self.part != other.part

    def repeats(self, files: Sequence[TableFile]) -> bool:
        return sum(f.uri == self.uri and not self.is_beside(f) for f in files) >= _SCANS


class ChangeTable(SourceTable):
    """A table whose commits are what they changed."""

    def __init__(self, spark: SparkSession, uri: str, *, with_metadata: bool) -> None:
        super().__init__(spark, uri)
        self._with_metadata = with_metadata

    def check_begin(self, version: int) -> None:
        if self._property(self.version, MAPPING) == "id":
            raise SourceError(
                f"{self.uri}: its columns are mapped by id ('{MAPPING}'), and files of changes have a column without "
                "one: changes are read of tables whose columns are mapped by name, or not at all. Read what is added "
                "(changes=False), or copy the table"
            )
        if self._has_feed(version):
            return
        way_out = (
            f"ALTER TABLE delta.`{self.uri}` SET TBLPROPERTIES ('{FEED}' = 'true') turns it on, for versions from then "
            "on"
        )
        if not self._has_feed(self.version):
            raise SourceError(
                f"{self.uri} has no change data feed, so what changes in it is not recorded. {way_out}"
            )
        raise SourceError(
            f"{self.uri}: the change data feed was off at version {version}, so what that version changed is not "
            "recorded. Begin with starting_version='snapshot', or with a version at which it was on"
        )

    def commit(self, version: int) -> TableCommit:
        key = (self.uri, self.table_id, version)
        return kept_newest(
            _commits, key, lambda: self._changed(version, self.log_commit(version)), most=_KEPT_COMMITS
        )

    def snapshot_files(self, version: int) -> list[TableFile]:
        at_ms = _committed_ms(self.log_commit(version)) if self._with_metadata else None
        return [
            ChangeFile(f.uri, f.size, f.rows, f.action, "insert", version, at_ms)
            for f in super().snapshot_files(version)
        ]

    def plain_schema(self, files: Sequence[TableFile], version: int) -> None:
        """None: rows have kinds, which files do not hold."""

    def rows(self, files: Sequence[TableFile], version: int) -> DataFrame:
        changes = [f for f in files if isinstance(f, ChangeFile)]
        assert len(changes) == len(files)
        scans = _scans(changes) or [{}]
        frames = [self._scanned(changes, scan, version) for scan in scans]
        union = frames[0]
        for other in frames[1:]:
            union = union.union(other)
        return union

    # -- commits -------------------------------------------------------------------------------------------------------

    def _has_feed(self, version: int) -> bool:
        return self._property(version, FEED).lower() == "true"

    def _property(self, version: int, name: str) -> str:
        given = self._snapshot(version).metadata().configuration()
        value = self._java("scala.jdk.javaapi.CollectionConverters").asJava(given).get(name)
        return "" if value is None else str(value)

    def _changed(self, version: int, entry: LogCommit) -> TableCommit:
        properties = entry.properties
        if properties is not None and properties.get(FEED, "").lower() != "true":
            raise SourceError(
                f"{self.uri}: version {version} turned the change data feed off, so what later versions changed is not "
                f"recorded. ALTER TABLE delta.`{self.uri}` SET TBLPROPERTIES ('{FEED}' = 'true') turns it on again"
            )
        table_id, schema = entry.described or (None, None)
        files = [
            *self._recorded(version, entry),
            *(
                ()
                if any(entry.of("cdc")) or _changes_nothing(entry)
                else self._of_whole_files(version, entry)
            ),
        ]
        files.sort(key=lambda f: f.part in ("insert", "after"))  # is stable
        return TableCommit(files, False, entry.operation, schema, table_id)

    def _recorded(self, version: int, entry: LogCommit) -> Iterator[ChangeFile]:
        for cdc in entry.of("cdc"):
            yield self._file_of(as_add(cdc), "before", version, entry)
            yield self._file_of(as_add(cdc), "after", version, entry)

    def _of_whole_files(self, version: int, entry: LogCommit) -> Iterator[ChangeFile]:
        """Files that came and went, and those whose deletion vector is another one."""
        removed = {r["path"]: r for r in entry.of("remove") if r.get("dataChange", True)}
        added = {add["path"]: add for add in entry.data_added}
        for path, remove in removed.items():
            if remove.get("size") is None or remove.get("partitionValues") is None:
                raise SourceError(
                    f"{self.uri}: version {version} removed {path} without its size and partition values "
                    "(extendedFileMetadata), so its rows cannot be read. on_change='restart' reads the whole table"
                )
            if path in added:
                yield from self._between(remove, added[path], version, entry)
            else:
                yield self._file_of(as_add(remove) | _stats(remove), "delete", version, entry)
        for path, add in added.items():
            if path not in removed:
                yield self._file_of(add, "insert", version, entry)

    def _between(self, remove: Action, add: Action, version: int, entry: LogCommit) -> Iterator[ChangeFile]:
        """The rows that are in one state of a file and not in the other."""
        bare = {k: v for k, v in as_add(add).items() if k != "deletionVector"}
        old, new = remove.get("deletionVector"), add.get("deletionVector")
        physical = self._physical_rows(add)
        with self._explained(f"the deletion vectors of version {version} cannot be read"):
            deleted = showing_only(self.uri, new, but=old, of=physical)
            inserted = showing_only(self.uri, old, but=new, of=physical)
        parts: list[tuple[Part, Any]] = [("delete", deleted), ("insert", inserted)]
        for part, vector in parts:
            if vector is not None:
                action = bare | {"deletionVector": vector} | {"stats": json.dumps({"numRecords": physical})}
                yield self._file_of(action, part, version, entry)

    def _physical_rows(self, add: Action) -> int:
        known = recorded_rows({**add, "deletionVector": None})
        return known if known is not None else self._file(add, None).row_count()

    def _file_of(self, add: Action, part: Part, version: int, entry: LogCommit) -> ChangeFile:
        plain = self._file(add, recorded_rows(add))
        masked = int((add.get("deletionVector") or {}).get("cardinality", 0))
        return ChangeFile(
            plain.uri, plain.size, plain.rows, add_text(add), part, version, _committed_ms(entry), masked
        )

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _described(self, snapshot: Any) -> Any:
        """A description of the table that has the column of files of changes, too."""
        return self._described_anew(with_text_column(snapshot.metadata().json(), CHANGE_TYPE))

    def _scanned(self, files: Sequence[ChangeFile], scan: Mapping[str, list[int]], version: int) -> DataFrame:
        frame = self.scan([files[places[0]] for places in scan.values()], version)
        file, row = place_columns(list(scan), F.col("_metadata.row_index"))
        frame = frame.select("*", file.alias(_PLACE), row)
        columns = [F.col(f"`{n}`") for n in frame.columns if n not in (CHANGE_TYPE, _PLACE, ROW_COLUMN)]
        whole = _by_file(scan, lambda places: _whole_kind(files[places[0]]))
        kind = F.when(whole >= 0, whole).otherwise(_kind_of_type(F.col(CHANGE_TYPE))).cast("tinyint")
        before = _by_file(scan, lambda places: _place_of(places, files, "before"))
        after = _by_file(scan, lambda places: _place_of(places, files, "after"))
        is_before = F.col(ROW_KIND).isin([one.value for one in _BEFORE])
        frame = frame.withColumn(ROW_KIND, kind).withColumn(
            FILE_COLUMN, F.when(is_before, before).otherwise(after).cast("int")
        )
        if self._with_metadata:
            first = [files[places[0]] for places in scan.values()]
            columns += _metadata_columns(first)
        return frame.where(F.col(FILE_COLUMN) >= 0).select(*columns, FILE_COLUMN, ROW_COLUMN, ROW_KIND)


def _scans(files: Sequence[ChangeFile]) -> list[dict[str, list[int]]]:
    """Places of the files in the slice, by scan and file: no scan has a file twice, but for parts that belong together.

    Example:
        >>> def file(uri, part, version):
        ...     return ChangeFile(uri, 1, 1, f"{version}", part, version, 0)
        >>> _scans([file("a", "insert", 1), file("a", "delete", 2), file("c", "before", 3), file("c", "after", 3)])
        [{'a': [0], 'c': [2, 3]}, {'a': [1]}]
    """
    scans: list[dict[str, list[int]]] = []
    for place, file in enumerate(files):
        for scan in scans:
            others = scan.get(file.uri, [])
            if all(file.is_beside(files[other]) for other in others):
                scan[file.uri] = [*others, place]
                break
        else:
            scans.append({file.uri: [place]})
    return scans


def _place_of(places: Sequence[int], files: Sequence[ChangeFile], half: Part) -> int:
    """Where rows of one half stand in the slice; below 0 where they are in none of its files."""
    for place in places:
        if files[place].part not in ("before", "after") or files[place].part == half:
            return place
    return -1


def _whole_kind(file: ChangeFile) -> int:
    """The kind of all rows of a file; below 0 where each has its own."""
    return _KINDS[file.part].value if file.part in _KINDS else -1


def _by_file(scan: Mapping[str, list[int]], value: Callable[[list[int]], int]) -> Column:
    values = [value(places) for places in scan.values()]
    return F.element_at(F.lit(values), F.col(_PLACE) + 1) if values else F.lit(-1)


def _kind_of_type(column: Column) -> Column:
    unknown = F.raise_error(
        F.concat(F.lit("the change data feed holds an unknown change: "), F.coalesce(column, F.lit("null")))
    )
    kind = unknown.cast("int")
    for name, value in _KINDS.items():
        kind = F.when(column == name, value.value).otherwise(kind)
    return kind


def _metadata_columns(files: Sequence[ChangeFile]) -> list[Column]:
    names = F.lit([{v: k for k, v in _KINDS.items()}[RowKind(n)] for n in range(4)])
    place = F.col(_PLACE) + 1
    versions = F.array(*[F.lit(f.version) for f in files]).cast("array<bigint>")
    times = F.array(*[F.lit(f.committed_ms) for f in files]).cast("array<bigint>")
    return [
        F.element_at(names, F.col(ROW_KIND) + 1).alias(METADATA[0]),
        F.element_at(versions, place).alias(METADATA[1]),
        F.timestamp_millis(F.element_at(times, place)).alias(METADATA[2]),
    ]


def _recorded_changes(uri: str, types: Sequence[str]) -> int:
    with open_location(uri).parquet() as file:
        column = file.read(columns=[CHANGE_TYPE])[CHANGE_TYPE]
    return int(pc.sum(pc.is_in(column, value_set=pa.array(types, column.type))).as_py() or 0)


def _stats(remove: Action) -> Action:
    return {"stats": remove["stats"]} if remove.get("stats") else {}


def _committed_ms(entry: LogCommit) -> int | None:
    """When a commit was made, as it says itself; None where it does not."""
    for info in entry.of("commitInfo"):
        at = info.get("inCommitTimestamp") or info.get("timestamp")
        return None if at is None else int(at)
    return None


def _changes_nothing(entry: LogCommit) -> bool:
    """Whether it is a MERGE that found nothing to change, and wrote files again all the same: it has no changes."""
    counts = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")
    metrics = next((info.get("operationMetrics") or {} for info in entry.of("commitInfo")), {})
    return entry.operation == "MERGE" and all(metrics.get(name) == "0" for name in counts)
