"""``DeltaSource``: what is added to a Delta table, by version and file.

Begins with a snapshot, then follows the log commit by commit. A commit that only rearranges rows (``OPTIMIZE``) is
passed over; one that takes rows away is an error by default, because state that was built from those rows cannot be
unbuilt. Files are never cut: a batch holds whole files, at least one.

The columns are those of the table at the version being read. A batch never reaches over a change of the schema, so
what a function sees of a row does not depend on where batches are cut. Added columns and widened types are picked up;
dropped, renamed and otherwise changed columns are an error. Plays the part of Delta's streaming source.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from state_engine.core.choices import check_bound, check_choice, check_count
from state_engine.core.errors import ConfigurationError, SourceError
from state_engine.sources.base import Element, Slice, Source, SourceFrame, summary
from state_engine.sources.changes.delta_changes import ChangeTable
from state_engine.sources.delta_position import (
    CHANGES,
    SCHEMA,
    Position,
    begin_of,
    bounded,
    check_number,
    check_read_once,
    check_recorded_alike,
    goes_on,
    is_position,
    positions_in,
    schemas_up_to,
    stops,
)
from state_engine.sources.delta_table import (
    SourceTable,
    TableCommit,
    TableFile,
    check_there,
    incompatible_change,
    missing,
)
from state_engine.sources.file_ranges import FileRange
from state_engine.sources.parquet.parquet_rows import parquet_rows
from state_engine.spark.catalog import checked_place, table_location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUIET_VERSIONS = 100
"""So many versions without rows are recorded as a batch of none, lest the log forgets them first."""


@dataclass(frozen=True)
class DeltaSource(Source):
    """Reads what is added to a Delta table.

    Args:
        path: local path or URI of the table.
        table: instead of a path, its name in Spark's catalog, ``schema.table`` or ``catalog.schema.table``. It is
            looked up for every batch. A table of that name with another id is another table, as it is at a path.
        max_rows_per_batch: bound of rows in a batch; a single larger file is still read whole.
        max_files_per_batch: bound of files in a batch.
        starting_version: ``snapshot``: first all rows of the version that is current when the first batch is
            planned; ``latest``: only what is added after that version (the first run commits an empty batch that pins
            the place); a number: what was added by that version and later ones.
        on_change: what to do about a commit that takes rows away (delete, update, merge, overwrite), and about
            history that is gone: ``fail``; ``skip`` the whole commit, with the rows that it rewrote; ``restart``
            with a snapshot: all rows are delivered again, to functions that keep their state.
        changes: read the change data feed of the table: rows are inserts, updates and deletes (``RowKind``), and so is
            the stream. A snapshot is inserts. Within a commit, what was taken away comes before what was put in place.
            The table needs ``delta.enableChangeDataFeed``; ``on_change`` is then about lost history only.
        with_metadata: whether rows that are changes have Delta's columns ``_change_type``, ``_commit_version`` and
            ``_commit_timestamp`` (the time that the commit recorded), too.

    Example:
        >>> DeltaSource("/data/events", max_rows_per_batch=100_000).starting_version
        'snapshot'
    """

    path: str = ""
    max_rows_per_batch: int | None = None
    max_files_per_batch: int = 1000
    starting_version: Literal["snapshot", "latest"] | int = "snapshot"
    on_change: Literal["fail", "skip", "restart"] = "fail"
    changes: bool = False
    with_metadata: bool = False
    table: str = ""

    def __post_init__(self) -> None:
        start = self.starting_version
        if start not in ("snapshot", "latest") and (type(start) is not int or start < 0):
            raise ConfigurationError(
                f"starting_version must be 'snapshot', 'latest' or a version, not {start!r}"
            )
        check_choice(self.on_change, ("fail", "skip", "restart"), what="on_change")
        check_bound(self.max_rows_per_batch, what="max_rows_per_batch")
        check_count(self.max_files_per_batch, what="max_files_per_batch")
        if self.changes and self.on_change == "skip":
            raise ConfigurationError(
                "on_change='skip' passes over commits that take rows away, and changes=True reads these: use 'fail' or "
                "'restart'"
            )
        if self.with_metadata and not self.changes:
            raise ConfigurationError(
                "with_metadata is about what a commit did to a row: it needs changes=True"
            )
        object.__setattr__(self, "path", checked_place("DeltaSource", self.path, self.table))

    @property
    def shown(self) -> str:
        """The table as the job names it, for messages."""
        return self.table or self.path

    def location(self, spark: SparkSession) -> str:
        """Where the table is now.

        Raises:
            ConfigurationError: there is no Delta table of that name.
        """
        return table_location(spark, self.table) if self.table else self.path

    @property
    def changing(self) -> bool:
        return self.changes

    def plan(self, spark: SparkSession, elements: Sequence[Element]) -> Slice | None:
        log = self._table(spark)
        # the table's id shows whether it is the same one, so it may be moved
        before = [e for e in elements if not e["split"].endswith(SCHEMA)]
        schemas = [e for e in elements if e["split"].endswith(SCHEMA)]
        recorded = schemas[-1]["position"]["schema"] if schemas else None
        draft = _Draft(self, log, recorded)
        position = Position(**before[-1]["position"]) if before else self._first(log, draft)
        if not goes_on(before, changes=self.changes, path=self.shown):
            check_begin(log, position)
        draft.follow(position)
        if not draft.worth_a_batch():
            return None
        draft.check_files()
        appended: list[Element] = [self._element(log, draft.position)]
        if draft.schema != recorded:
            at = {"version": draft.position.version, "schema": draft.schema}
            appended.append({"split": log.uri + SCHEMA, "position": at})
        slice_ = _slice(elements, appended, DeltaSlice(draft.files, draft.position.version, log))
        return replace(slice_, more=draft.ends_early)

    def replan(self, spark: SparkSession, before: Sequence[Element], appended: Sequence[Element]) -> Slice:
        check_recorded_alike(appended, changes=self.changes, path=self.shown)
        log, end = self._table(spark), positions_in(appended)[-1]
        start = begin_of(before, end, self._declared_start(end))
        files = [stop.file for stop in stops(log, start, end) if stop.file is not None]
        check_there(files)
        return _slice(before, list(appended), DeltaSlice(files, end.version, log))

    def rebatch(
        self, spark: SparkSession, before: Sequence[Element], recorded: Sequence[Element]
    ) -> Slice | None:
        known, ends = positions_in(before), positions_in(recorded)
        if known and known[-1] == ends[-1]:
            return None
        check_recorded_alike(recorded, changes=self.changes, path=self.shown)
        check_read_once([*known, *ends], path=self.shown)
        log = self._table(spark)
        start = known[-1] if known else begin_of([], ends[0], self._declared_start(ends[0]))
        files, at = bounded(
            stops(log, start, ends[-1]),
            ends[-1],
            max_files=self.max_files_per_batch,
            max_rows=self.max_rows_per_batch,
        )
        check_there(files)
        appended: list[Element] = [self._element(log, at)]
        appended += [e for e in schemas_up_to(recorded, at.version) if e not in before]
        return replace(_slice(before, appended, DeltaSlice(files, at.version, log)), more=at != ends[-1])

    def read(self, spark: SparkSession, part: Slice, *, keep_refused: bool) -> SourceFrame:
        wanted: DeltaSlice = part.detail
        scan = partial(wanted.log.rows, wanted.files, wanted.version)
        schema = wanted.log.plain_schema(wanted.files, wanted.version)
        if schema is None:
            return SourceFrame(scan())
        ranges = [FileRange(file.uri, file.size, 0, 0, None) for file in wanted.files]
        return SourceFrame(parquet_rows(spark, ranges, schema, scan))

    def confirm(self, part: Slice) -> None:
        check_there(part.detail.files)

    def consumed(self, spark: SparkSession, given: Any) -> list[Element]:
        """``given``: the last version whose rows the state holds; or ``"all"`` for the newest."""
        log = self._table(spark)
        version = log.version if given == "all" else given
        if type(version) is not int or not 0 <= version <= log.version:
            raise ConfigurationError(
                f"say up to which version the state holds {self.shown}, 0 to {log.version}, or 'all'; not {given!r}"
            )
        at = {"version": version, "schema": log.schema_at(version)}
        begin = Position(log.table_id, version, None)
        check_begin(log, begin)
        return [self._element(log, begin), {"split": log.uri + SCHEMA, "position": at}]

    def is_element(self, element: Element) -> bool:
        return is_position(element)

    def position_text(self, elements: Sequence[Element]) -> str:
        return _summary(elements)

    def _table(self, spark: SparkSession) -> SourceTable:
        if self.changes:
            return ChangeTable(spark, self.location(spark), with_metadata=self.with_metadata)
        return SourceTable(spark, self.location(spark))

    def _element(self, log: SourceTable, position: Position) -> Element:
        return {"split": log.uri + CHANGES if self.changes else log.uri, "position": asdict(position)}

    def _declared_start(self, end: Position) -> Position | None:
        """Where a run of this source begins, the first slice of which ends at ``end``; None for a snapshot."""
        start = self.starting_version
        if start == "latest":
            return end
        return Position(end.table, start - 1, None) if isinstance(start, int) else None

    def _first(self, log: SourceTable, draft: _Draft) -> Position:
        start = self.starting_version
        if start == "snapshot":
            return Position(log.table_id, log.version, 0, snapshot=True)
        if start == "latest":
            draft.pin = True
            return Position(log.table_id, log.version, None)
        assert isinstance(start, int)
        if start > log.version + 1:
            raise SourceError(
                f"{self.shown}: starting_version is {start}, the newest version is {log.version}"
            )
        return Position(log.table_id, start - 1, None)


@dataclass(frozen=True)
class DeltaSlice:
    """What ``read`` needs: files, the version whose columns they are read with, and the log."""

    files: list[TableFile]
    version: int
    log: SourceTable


@dataclass
class _Draft:
    source: DeltaSource
    log: SourceTable
    schema: str | None
    position: Position = field(default_factory=lambda: Position("", -1, None))
    files: list[TableFile] = field(default_factory=list)
    rows: int = 0
    pin: bool = False
    quiet: int = 0

    def worth_a_batch(self) -> bool:
        return bool(self.files) or self.pin or self.quiet >= _QUIET_VERSIONS

    def follow(self, position: Position) -> None:
        """Take files after a position until the batch is full or the log ends."""
        self.position = position
        read, shown = f"version {position.version} was read", self.source.shown
        if position.table != self.log.table_id:
            self._restart(f"{shown} was dropped and created again since {read}")
            return
        if position.version > self.log.version:
            self._restart(
                f"{shown} ends with version {self.log.version}, and {read}: an older table was put back"
            )
            return
        try:
            more = self._begin()
        except SourceError as gone_error:
            more = self._restart(str(gone_error))
        while more and self.ends_early:
            more = self._next_commit()

    @property
    def ends_early(self) -> bool:
        """Whether the log has more than the slice."""
        return self.position.version < self.log.version or self.position.files is not None

    def check_files(self) -> None:
        """Raises SourceError where files are gone, as after a VACUUM; begins again where that is wanted."""
        problem = missing(self.files)
        if problem and self.source.on_change == "restart":
            self._restart(problem)
            check_there(self.files)
        elif problem:
            raise SourceError(problem)

    def _begin(self) -> bool:
        """Find the schema, and take what is left of a snapshot; False where that fills the slice."""
        at = self.position
        if self.schema is None:
            self.schema = self.log.schema_at(first_read(at, self.log))
        if not at.snapshot or at.files is None:
            return True
        return self._take(self.log.snapshot_files(at.version))

    def _next_commit(self) -> bool:
        inside = not self.position.snapshot and self.position.files is not None
        version = self.position.version + (0 if inside else 1)
        try:
            commit = self.log.commit(version)
        except SourceError as gone:
            return self._stop(str(gone))
        if commit.removes and self.source.on_change != "skip":
            return self._stop(_removal(self.source.shown, version, commit), removes=True)
        if commit.schema is not None and commit.schema != self.schema:
            assert self.schema is not None
            problem = incompatible_change(json.loads(self.schema), json.loads(commit.schema))
            if self.files or problem:
                return self._stop(
                    f"{self.source.shown}: version {version} changed the schema: {problem}. Change the code to the "
                    "columns of today first"
                )
            self.schema = commit.schema
        if not inside:
            self.position = replace(self.position, version=version, files=0, snapshot=False)
        self.quiet += 1
        return self._take([] if commit.removes else commit.files)

    def _take(self, files: Sequence[TableFile]) -> bool:
        """Take files of the current version, from where it was left; False where they do not all fit."""
        limit = self.source.max_rows_per_batch
        start = self.position.files or 0
        check_number(self.position, files, self.source.shown)
        for index, file in enumerate(files[start:], start):
            rows = file.row_count() if limit is not None else 0
            full = len(self.files) >= self.source.max_files_per_batch
            full |= limit is not None and self.rows + rows > limit
            if self.files and (full or file.repeats(self.files)):
                self.position = replace(self.position, files=index)
                return False
            self.files.append(file)
            self.rows += rows
        self.position = replace(self.position, files=None)
        return True

    def _stop(self, why: str, *, removes: bool = False) -> bool:
        """End the slice in front of a commit that cannot be taken; where that is all there is, begin again or fail."""
        return False if self.files else self._restart(why, removes=removes)

    def _restart(self, why: str, *, removes: bool = False) -> bool:
        """Begin again with a snapshot, or say why that is needed; always False: the slice ends with it."""
        on_change = self.source.on_change
        if on_change != "restart":
            may_skip = removes and on_change == "fail" and not self.source.changes
            skip = "; on_change='skip' passes over commits that take rows away" if may_skip else ""
            raise SourceError(
                f"{why}. Ways out: on_change='restart' delivers the whole table again, to functions that keep their "
                f"state; a job with a new name begins with empty state{skip}"
            )
        self.files, self.rows, self.schema = [], 0, self.log.schema
        self.position = Position(self.log.table_id, self.log.version, 0, snapshot=True)
        check_begin(self.log, self.position)
        self._take(self.log.snapshot_files(self.log.version))
        return False


def first_read(at: Position, log: SourceTable) -> int:
    """The first version that is read from a position on; the newest one where that is still to come."""
    return at.version if at.snapshot else min(at.version + 1, log.version)


def check_begin(log: SourceTable, at: Position) -> None:
    """Raises SourceError where a source cannot begin at a position."""
    log.check_begin(first_read(at, log))


def _slice(before: Sequence[Element], appended: list[Element], detail: DeltaSlice) -> Slice:
    return Slice(
        elements=appended,
        position_from=_summary(before),
        position_to=_summary([*before, *appended]),
        labels=[f.uri for f in detail.files],
        detail=detail,
    )


def _removal(path: str, version: int, commit: TableCommit) -> str:
    what = commit.operation or "unknown operation"
    return f"{path}: version {version} ({what}) takes rows away that may have been read already"


def _summary(elements: Sequence[Element]) -> str:
    position: dict[str, Any] = next(
        (e["position"] for e in reversed(elements) if "files" in e["position"]), {}
    )
    return summary(elements, **{k: v for k, v in position.items() if k in ("version", "files", "snapshot")})
