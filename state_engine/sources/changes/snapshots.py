"""``SnapshotFormat``: what changed from one full copy of a table to the next, as inserts, updates and deletes.

Each copy is a micro-batch of its own. Its rows are compared with those of the copy before it, which are read from their
files again: the position of the source says which files these are, with a digest of each. So a replay, a restore and a
backfill give the same changes, and no state holds the table a second time. Decision 0119.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.fs as pafs

from state_engine.core.argument_checks import checked_class
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import ConfigurationError, SourceError
from state_engine.core.types.ddl import quoted
from state_engine.core.types.row import RowKind
from state_engine.core.types.type_information import TypeLike
from state_engine.core.types.type_parsing import to_type
from state_engine.sources.base import FILE_COLUMN, ROW_COLUMN, BadFile, Element, Slice, Source, SourceFrame
from state_engine.sources.file import FileSource
from state_engine.sources.file_ranges import FileRange, check_unchanged, last_ranges, left_over
from state_engine.sources.local_listing import InputFile
from state_engine.sources.partition_rows import as_frame
from state_engine.sources.stream_columns import ROW_KIND
from state_engine.spark.spark_names import F
from state_engine.storage.stores.files import join, open_location

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_DATE = re.compile(
    r"(?<!\d)(\d{4})-?(\d{2})-?(\d{2})(?:[T_ ](\d{2}):?(\d{2})(?::?(\d{2}))?Z?(?![\d-]))?(?!\d)"
)
"""A date in a name, and behind it a time of day, unless that begins another date."""
_AT = pa.timestamp("us", "UTC")


@checked_class
@dataclass(frozen=True, kw_only=True)
class SnapshotFormat:
    """Turns full copies of a table, such as a dump each day, into changes: the argument ``format`` of ``job.source``.

    A snapshot is a file, or a directory with all its files, right below the path of a ``FileSource``. The date in its
    name, with a time of day or without, says when it was made: ``customers-2026-01-03.csv``, ``day=2026-01-03/``,
    ``20260103T0600.parquet``. They are read by this time, each in a micro-batch of its own. Nothing else orders them:
    the time of a file changes when it is copied, and an empty snapshot has no rows with a time. A key that is new is an
    insert, one that is gone a delete; a row with another value is two changes, the row as it was and as it is. All that
    goes comes before all that comes.

    The files of a snapshot must stay until the next one was read, and for replays. One that waits for a file holds
    later ones back.

    Args:
        key: the columns that name a row of the table.
        at: the column that changes get with the time of the snapshot that showed them, in UTC, also deletes. A
            column of this name in the files, such as that of a partition, gives way to it and is not compared.
        max_deleted: the share of the rows before that a snapshot may lack. One that lacks more, as an empty or
            half-written one does, is refused. 1.0 takes every one.
        complete: name of the file that says that a directory is whole, such as ``_SUCCESS``; without it a directory
            waits. By default a directory is taken as it is.

    Raises:
        ConfigurationError: there is no key, the time is part of it, or the share is not between 0 and 1.

    Example:
        >>> from state_engine import FileSource, StatefulJob
        >>> job = StatefulJob("customers")
        >>> dumps = FileSource("dumps", schema="id bigint, city string")
        >>> changes = job.source("customers", dumps, format=SnapshotFormat(key=["id"], at="day"), event_time="day")
        >>> history = changes.key_by("id").scd2(valid_from="day")
    """

    key: Sequence[str]
    at: str = "snapshot_at"
    max_deleted: float = 0.5
    complete: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", tuple([self.key] if isinstance(self.key, str) else self.key))
        if not self.key:
            raise ConfigurationError(
                "SnapshotFormat: key is empty: name the columns that name a row of the table"
            )
        if self.at in self.key:
            raise ConfigurationError(
                f"SnapshotFormat: '{self.at}' is part of the key, and each snapshot has another one: give at another "
                "name, or leave the column out of key"
            )
        if not 0 <= self.max_deleted <= 1:
            raise ConfigurationError(
                f"SnapshotFormat: max_deleted is a share between 0 and 1, not {self.max_deleted}"
            )

    def columns(self, rows: pa.Schema) -> pa.Schema:
        """The columns of changes. Raises ConfigurationError where the rows lack the key, or cannot be compared."""
        missing = [name for name in self.key if name not in rows.names]
        if missing:
            raise ConfigurationError(
                f"SnapshotFormat: there is no key column '{missing[0]}'; a snapshot has {rows.names}"
            )
        kept = [field for field in rows if field.name != self.at]
        maps = [field.name for field in kept if _has_map(field.type)]
        if maps:
            raise ConfigurationError(
                f"SnapshotFormat: the column '{maps[0]}' has a map, and maps cannot be compared: leave it out of the "
                "schema, or write it as a list of pairs"
            )
        return pa.schema([*kept, pa.field(self.at, _AT)])


def _has_map(kind: pa.DataType) -> bool:
    inner = [kind.field(at).type for at in range(kind.num_fields)] if pa.types.is_nested(kind) else []
    return pa.types.is_map(kind) or any(map(_has_map, inner))


class Snapshot(NamedTuple):
    """The files of one copy."""

    name: str
    at: datetime
    files: list[Any]


@dataclass(frozen=True)
class SnapshotSlice:
    """What ``read`` needs.

    Attributes:
        before: the snapshot that the rows are compared with; None of the first one.
        judged: True where its rows were judged when it was read first.
    """

    name: str
    at: datetime
    new: Slice
    before: Slice | None
    judged: bool


@dataclass(frozen=True, kw_only=True)
class SnapshotSource(FileSource):
    """Files that are full copies of a table. Made by ``snapshots_of``."""

    name: str
    snapshots: SnapshotFormat

    @property
    def changing(self) -> bool:
        return True

    @property
    def schema_in_code(self) -> TypeLike | None:
        if self.schema is None:
            return None
        given = to_type(self.schema, parameter=f"schema of source '{self.name}'")
        return self.snapshots.columns(pa.schema(list(given.arrow)))

    def plan(self, spark: SparkSession, elements: Sequence[Element]) -> Slice | None:
        consumed = last_ranges(elements)
        listed = self._listed(consumed)
        for one in listed:
            if one.uri in consumed:
                self._is_pending(one, consumed[one.uri])
        fresh = self._fresh([one for one in listed if one.uri not in consumed], self._newest(elements))
        if not fresh or (self._incomplete(fresh[0]) and self.snapshots.complete):
            return None
        ranges = [one for one in self._ranges_of(fresh[0].files, {}) if one is not None]
        if len(ranges) < len(fresh[0].files):
            return None  # one of them is not whole yet
        schema = self._schema(elements, ranges, [one.uri for one in listed])
        self._unreadable(ranges, schema)
        made = self._slice(elements, ranges, schema)
        return replace(self._compared(spark, fresh[0], made, elements), more=len(fresh) > 1)

    def replan(self, spark: SparkSession, before: Sequence[Element], appended: Sequence[Element]) -> Slice:
        made = super().replan(spark, before, appended)
        newest = self._newest(appended)
        assert newest is not None
        return self._compared(spark, newest, made, before, judged=True)

    def rebatch(
        self, spark: SparkSession, before: Sequence[Element], recorded: Sequence[Element]
    ) -> Slice | None:
        left = self._grouped(left_over(before, recorded))
        if not left:
            return None
        ranges = left[0].files
        check_unchanged(ranges)
        made = self._slice(
            before, ranges, self._schema([*before, *recorded], ranges, [r.uri for r in ranges])
        )
        return replace(self._compared(spark, left[0], made, before, judged=True), more=len(left) > 1)

    def read(self, spark: SparkSession, part: Slice, *, keep_refused: bool) -> SourceFrame:
        """The changes. A row that cannot be read ends the batch: without it, its key would be deleted."""
        wanted: SnapshotSlice = part.detail
        shift = len(wanted.before.labels) if wanted.before else 0
        if not wanted.judged:
            self._check_readable(spark, wanted.new, wanted.name)
        new = self._rows(spark, wanted.new, shift)
        if not wanted.judged:
            self._check_keys(new, part.labels, wanted.name)
        at = F.timestamp_micros(F.lit(_micros(wanted.at)))
        if wanted.before is None:
            changes = new.withColumn(ROW_KIND, _kind(RowKind.INSERT))
        else:
            both = self._both(self._rows(spark, wanted.before, 0), new)
            if not wanted.judged:
                self._check_deleted(both, wanted.name)
            changes = self._changes(both)
        columns = [quoted(name) for name in new.columns if name not in (FILE_COLUMN, ROW_COLUMN)]
        shown = changes.select(*columns, at.alias(self.snapshots.at), FILE_COLUMN, ROW_COLUMN, ROW_KIND)
        return SourceFrame(shown)

    def set_aside(self, part: Slice, bad: BadFile) -> Slice | None:
        return None

    def parse(self, spark: SparkSession, records: Sequence[bytes], *, keep_refused: bool) -> SourceFrame:
        raise SourceError(
            f"source '{self.name}': rows of snapshots are never set aside, so none can be sent again"
        )

    def confirm(self, part: Slice) -> None:
        wanted: SnapshotSlice = part.detail
        for one in (wanted.before, wanted.new):
            if one is not None:
                super().confirm(one)

    def waiting(self, elements: Sequence[Element]) -> list[str]:
        consumed = last_ranges(elements)
        reasons = super().waiting(elements)
        files = [one for one in self._listed(consumed) if one.uri not in consumed]
        whole = [self._incomplete(one) for one in self._fresh(files, self._newest(elements))]
        return reasons + [f"{one} has no {self.snapshots.complete} yet" for one in whole if one]

    # -- which snapshot ------------------------------------------------------------------------------------------------

    def _place(self, uri: str) -> tuple[str, datetime]:
        below = uri.removeprefix(self.path).strip("/")
        name = (below or uri.rsplit("/", 1)[-1]).split("/")[0]
        dates = [_as_time(match) for match in _DATE.finditer(name)]
        if len(dates) != 1 or dates[0] is None:
            has = "several dates" if len(dates) > 1 else "no date"
            raise SourceError(
                f"source '{self.name}': the name of the snapshot '{name}' has {has} ({uri}): name each file or "
                f"directory right below {self.path} by its date, such as 2026-01-03 or 20260103T0600, or leave others "
                "out with pattern="
            )
        return name, dates[0]

    def _grouped(self, files: Iterable[Any]) -> list[Snapshot]:
        snapshots: dict[datetime, Snapshot] = {}
        for one in files:
            name, at = self._place(one.uri)
            known = snapshots.setdefault(at, Snapshot(name, at, []))
            if known.name != name:
                raise SourceError(
                    f"source '{self.name}': the snapshots '{known.name}' and '{name}' have one time, {at}: remove one, "
                    "or give it a time of day"
                )
            known.files.append(one)
        return [snapshots[at] for at in sorted(snapshots)]

    def _newest(self, elements: Sequence[Element]) -> Snapshot | None:
        read = self._grouped(last_ranges(elements).values())
        return read[-1] if read else None

    def _fresh(self, files: Iterable[InputFile], newest: Snapshot | None) -> list[Snapshot]:
        """The snapshots that were not read. Raises SourceError where a file belongs to one that was, or before it."""
        fresh = self._grouped(files)
        if newest is None:
            return fresh
        late = [one for one in fresh if one.at <= newest.at and any(not f.copied for f in one.files)]
        if late and self.on_change == "fail":
            uri = next(one.uri for one in late[0].files if not one.copied)
            raise SourceError(
                f"source '{self.name}': {uri} came after the snapshot '{newest.name}' was read, and belongs to "
                f"'{late[0].name}', which is not after it, so its place among the changes is gone. Give a "
                "correction a later time; or restore the checkpoint before it, and run again; or set "
                "on_change='ignore' on the FileSource to pass over such files"
            )
        return [one for one in fresh if one.at > newest.at]

    def _incomplete(self, snapshot: Snapshot) -> str:
        """The directory of a snapshot that is not said to be whole; empty where it is."""
        directory = join(self.path, snapshot.name)
        if self.snapshots.complete is None or any(one.uri == directory for one in snapshot.files):
            return ""
        mark = open_location(join(directory, self.snapshots.complete))
        return directory if mark.info().type == pafs.FileType.NotFound else ""

    def _compared(
        self,
        spark: SparkSession,
        snapshot: Snapshot,
        made: Slice,
        elements: Sequence[Element],
        *,
        judged: bool = False,
    ) -> Slice:
        newest, before = self._newest(elements), None
        if newest is not None:
            files: list[FileRange] = newest.files
            gone = [one.uri for one in files if not one.unchanged()]
            if gone:
                raise SourceError(
                    f"source '{self.name}': {gone[0]} changed or vanished, and the snapshot '{snapshot.name}' is "
                    f"compared with '{newest.name}', which it is part of: put the old file back, and keep each "
                    "snapshot until the next one was read; to begin with a full table again, use a job of another name"
                )
            before = super().replan(spark, elements, [one.element() for one in files])
        return replace(
            made,
            labels=[*(before.labels if before else ()), *made.labels],
            detail=SnapshotSlice(snapshot.name, snapshot.at, made, before, judged),
        )

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _rows(self, spark: SparkSession, part: Slice, shift: int) -> DataFrame:
        """The rows of a snapshot, without the column that changes get; places of files begin behind others."""
        rows = as_frame(spark, super().read(spark, part, keep_refused=False).rows)
        own = [field.name for field in rows.schema.fields if field.name not in (FILE_COLUMN, ROW_COLUMN)]
        kinds = [to_type(rows.schema[name].dataType, parameter=f"column '{name}'").arrow for name in own]
        kept = self.snapshots.columns(pa.schema(list(zip(own, kinds, strict=True)))).names[:-1]
        file = (F.col(FILE_COLUMN) + shift).cast("int").alias(FILE_COLUMN)
        return rows.select(*map(quoted, kept), file, ROW_COLUMN)

    def _both(self, old: DataFrame, new: DataFrame) -> DataFrame:
        """The rows of both by key, as structs: one of them null where only the other has the key."""
        sides = []
        for side, rows in (("old", old), ("new", new)):
            names = [F.col(quoted(name)) for name in rows.columns]
            key = [F.col(quoted(name)).alias(_key(at)) for at, name in enumerate(self.snapshots.key)]
            sides.append(rows.select(F.struct(*names).alias(side), *key))
        return sides[0].join(sides[1], [_key(at) for at in range(len(self.snapshots.key))], "full_outer")

    def _changes(self, both: DataFrame) -> DataFrame:
        values = [
            name
            for name in both.schema["new"].dataType.names  # type: ignore[attr-defined]
            if name not in (*self.snapshots.key, FILE_COLUMN, ROW_COLUMN)
        ]

        def part(side: str) -> Column:
            return F.struct(F.lit(0), *[F.col(side)[name] for name in values])

        def change(kind: RowKind, side: str) -> Column:
            return F.struct(_kind(kind).alias("kind"), F.col(side).alias("row"))

        old, new = F.col("old"), F.col("new")
        changes = (
            F.when(new.isNull(), F.array(change(RowKind.DELETE, "old")))
            .when(old.isNull(), F.array(change(RowKind.INSERT, "new")))
            .when(
                ~part("old").eqNullSafe(part("new")),
                F.array(change(RowKind.UPDATE_BEFORE, "old"), change(RowKind.UPDATE_AFTER, "new")),
            )
        )
        exploded = both.select(F.explode(changes).alias("change"))
        return exploded.select("change.row.*", F.col("change.kind").alias(ROW_KIND))

    # -- what is refused -----------------------------------------------------------------------------------------------

    def _check_readable(self, spark: SparkSession, part: Slice, name: str) -> None:
        """Refuse a snapshot with a row that cannot be read."""
        refused = super().read(spark, part, keep_refused=True).refused
        for row in [] if refused is None else as_frame(spark, refused).limit(1).collect():
            place = f"{part.labels[row[FILE_COLUMN]]}, row {row[ROW_COLUMN]}"
            way_out = (
                "repair the file or the schema; the row is not kept aside, because its key would be deleted"
            )
            raise self._refused(name, f"{place}: {row['reason']}", way_out)

    def _check_keys(self, rows: DataFrame, labels: Sequence[str], name: str) -> None:
        columns = [F.col(quoted(one)) for one in self.snapshots.key]
        nulls = rows.where(reduce(lambda a, b: a | b, [one.isNull() for one in columns])).limit(1).collect()
        if nulls:
            column = next(one for one in self.snapshots.key if nulls[0][one] is None)
            raise self._refused(
                name,
                f"{labels[nulls[0][FILE_COLUMN]]}, row {nulls[0][ROW_COLUMN]}: the key column '{column}' is null",
            )
        files = (F.min(FILE_COLUMN).alias("first"), F.max(FILE_COLUMN).alias("last"))
        often = rows.groupBy(*columns).agg(F.count(F.lit(1)).alias("rows"), *files).where("rows > 1").limit(1)
        for row in often.collect():
            key = {one: row[one] for one in self.snapshots.key}
            where = dict.fromkeys([labels[row["first"]], labels[row["last"]]])
            raise self._refused(name, f"{' and '.join(where)}: {row['rows']} rows have the key {key}")

    def _check_deleted(self, both: DataFrame, name: str) -> None:
        """Refuse a snapshot that lacks too many rows of the one before it."""
        gone = F.count(F.when(F.col("new").isNull(), 1))
        [counts] = both.agg(F.count("old").alias("before"), gone.alias("gone")).collect()
        if counts["gone"] > self.snapshots.max_deleted * counts["before"]:
            raise self._refused(
                name,
                f"it lacks {counts['gone']} of the {counted(counts['before'], 'row')} of the one before it, more than "
                f"the share max_deleted={self.snapshots.max_deleted}, and they would be deleted: it may not be whole",
                "put the whole snapshot in its place, or, where the rows are gone, give SnapshotFormat a larger "
                "max_deleted for this run",
            )

    def _refused(
        self,
        name: str,
        why: str,
        way_out: str = "repair the snapshot, or name the columns that name a row in key",
    ) -> SourceError:
        return SourceError(
            f"source '{self.name}', snapshot '{name}': {why}. Nothing of this micro-batch was committed: {way_out}"
        )


def snapshots_of(name: str, source: Source, format_: SnapshotFormat) -> SnapshotSource:
    """A source whose files are full copies of a table. Raises ConfigurationError where it cannot be."""
    if not isinstance(source, FileSource):
        raise ConfigurationError(
            f"source '{name}': SnapshotFormat compares files, and this is a {type(source).__name__}: use a FileSource; "
            "a Delta table says itself what changed, DeltaSource(path, changes=True)"
        )
    if source.max_rows_per_batch is not None or source.max_files_per_batch is not None:
        raise ConfigurationError(
            f"source '{name}': a snapshot is a micro-batch: leave max_rows_per_batch and max_files_per_batch out"
        )
    if source.on_bad_file != "fail":
        raise ConfigurationError(
            f"source '{name}': a file of a snapshot that is set aside would delete its rows: leave on_bad_file out"
        )
    given: Mapping[str, Any] = {one.name: getattr(source, one.name) for one in fields(FileSource)}
    made = SnapshotSource(**given, name=name, snapshots=format_)
    if made.schema is not None:
        made.schema_in_code  # noqa: B018 - refuses here what does not fit
    return made


def _key(at: int) -> str:
    return f"_statelake_key_{at}"


def _kind(kind: RowKind) -> Column:
    return F.lit(kind.value).cast("tinyint")


def _micros(at: datetime) -> int:
    return int(at.timestamp()) * 1_000_000


def _as_time(match: re.Match[str]) -> datetime | None:
    """The time that a name says; None where there is no such date.

    Example:
        >>> _as_time(_DATE.search("day=2026-01-03")), _as_time(_DATE.search("a-20260103T0615.csv")).minute
        (datetime.datetime(2026, 1, 3, 0, 0, tzinfo=datetime.timezone.utc), 15)
    """
    try:
        return datetime(*[int(part or 0) for part in match.groups()], tzinfo=UTC)  # type: ignore[misc, arg-type]
    except ValueError:
        return None
