"""``FileSource``: new files of a directory, or ranges of their rows, in path order.

Remembers every consumed file by path, size and time of change; a consumed file that changed is an error by default.
Parquet files may be cut inside (``max_rows_per_batch``); CSV and JSON files, whose rows have no index, are consumed
whole; the number of such a row only orders the rows of its file. Plays the part of Flink's ``FileSource`` and of
Spark's file stream source.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, cast

import pyarrow.fs as pafs

from state_engine.backends.files import is_local, normal_uri, open_location
from state_engine.core.errors import ConfigurationError, SourceError
from state_engine.runtime.sources.base import (
    FILE_COLUMN,
    ROW_COLUMN,
    Element,
    Slice,
    Source,
    SourceFrame,
)
from state_engine.runtime.sources.few_rows import few_rows
from state_engine.runtime.sources.file_ranges import (
    SCHEMA,
    FileRange,
    check_unchanged,
    chosen,
    cut,
    left_over,
    mtime_ms,
    position_summary,
    recorded_ranges,
)
from state_engine.runtime.sources.parquet_files import parquet_schema
from state_engine.runtime.sources.places import place_columns
from state_engine.runtime.spark_names import F, T

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

REFUSED_TEXT = "_statelake_corrupt"
_STRICT = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
"""What a session may say otherwise: rows would be lost without a word."""
_GLOB = set("*?[]{}\\%#")


@dataclass(frozen=True)
class FileSlice:
    """What ``read`` needs: rows, and the schema where none is declared."""

    ranges: list[FileRange]
    schema: T.StructType | None


@dataclass(frozen=True)
class FileSource(Source):
    """Reads Parquet, CSV or JSON files as they arrive.

    Args:
        path: a directory (searched through) or one file; local path or URI.
        schema: DDL text or a Spark StructType. May be left out for Parquet: the schema of the first file that was
            ever read is taken. A column that a file does not have is null.
        format: ``parquet``, ``csv`` or ``json``.
        pattern: shell pattern that file names must match; names beginning with ``_`` or ``.`` are never read.
        max_rows_per_batch: bound of rows in a batch (Parquet only).
        max_files_per_batch: bound of files in a batch.
        options: Spark reader options, for example ``{"header": "true", "nullValue": "NA"}``.
        on_change: ``fail``, or ``ignore`` a consumed file that changed.

    Example:
        >>> FileSource("/data/events", schema="k bigint, v double", max_rows_per_batch=100_000).format
        'parquet'
    """

    path: str
    schema: str | T.StructType | None = None
    format: Literal["parquet", "csv", "json"] = "parquet"
    pattern: str = "*"
    max_rows_per_batch: int | None = None
    max_files_per_batch: int = 1000
    options: Mapping[str, str] = field(default_factory=dict)
    on_change: Literal["fail", "ignore"] = "fail"

    def __post_init__(self) -> None:
        if self.format not in ("parquet", "csv", "json"):
            raise ConfigurationError(
                f"FileSource cannot read format '{self.format}'; use parquet, csv or json"
            )
        if self.schema is None and self.format != "parquet":
            raise ConfigurationError(
                f"FileSource of format '{self.format}' needs a schema, for example 'k bigint'"
            )
        if self.max_rows_per_batch is not None and (self.format != "parquet" or self.max_rows_per_batch < 1):
            raise ConfigurationError(
                "max_rows_per_batch must be at least 1 and needs Parquet: rows of CSV and JSON have no index; "
                "use max_files_per_batch"
            )
        if self.max_files_per_batch < 1:
            raise ConfigurationError("max_files_per_batch must be at least 1")
        object.__setattr__(self, "path", normal_uri(self.path))

    def plan(self, spark: SparkSession, elements: Sequence[Element]) -> Slice | None:
        found = self._list()
        consumed = {e["split"]: e["position"] for e in elements if not e["split"].endswith(SCHEMA)}
        ranges = self._next_ranges(found, consumed)
        return self._slice(elements, ranges) if ranges else None

    def replan(self, spark: SparkSession, before: Sequence[Element], appended: Sequence[Element]) -> Slice:
        ranges = recorded_ranges(appended)
        check_unchanged(ranges)
        return self._slice(before, ranges, recorded=appended)

    def recut(
        self, spark: SparkSession, before: Sequence[Element], recorded: Sequence[Element]
    ) -> Slice | None:
        ranges = self._bounded(left_over(before, recorded))
        check_unchanged(ranges)
        return self._slice(before, ranges) if ranges else None

    def _slice(
        self, before: Sequence[Element], ranges: list[FileRange], *, recorded: Sequence[Element] = ()
    ) -> Slice:
        """A slice of these ranges, which appends what was recorded, or else the ranges and their schema."""
        known = [e["position"] for e in (*before, *recorded) if e["split"].endswith(SCHEMA)]
        schema = T.StructType.fromJson(known[-1]) if known else None
        appended = list(recorded) or [r.element() for r in ranges]
        if (
            self.schema is None and schema is None
        ):  # later files must not change it: results would depend on cuts
            schema = parquet_schema(ranges[0].uri)
            appended.append({"split": self.path + SCHEMA, "position": schema.jsonValue()})
        return Slice(
            elements=appended,
            position_from=position_summary(before),
            position_to=position_summary([*before, *appended]),
            labels=[r.uri for r in ranges],
            detail=FileSlice(ranges, schema),
            bytes=sum(r.size for r in ranges),
        )

    def read(self, spark: SparkSession, part: Slice, *, keep_refused: bool) -> SourceFrame:
        wanted: FileSlice = part.detail
        ranges, schema = wanted.ranges, self._declared() or wanted.schema
        assert schema is not None
        if self.format == "parquet":
            few = None if self.options else few_rows(ranges, schema)
            return SourceFrame(self._read_parquet(spark, ranges, schema) if few is None else few)
        kept = T.StructType(schema.fields).add(REFUSED_TEXT, "string") if keep_refused else schema
        mode = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": REFUSED_TEXT} if keep_refused else {
            "mode": "FAILFAST"}  # fmt: skip
        reader = spark.read.format(self.format).schema(kept).options(**self.options, **mode, **_STRICT)
        frame = reader.option("columnPruning", "false").load([r.uri for r in ranges]).where(_is_whole(schema))
        frame = frame.select("*", *place_columns([r.uri for r in ranges], F.monotonically_increasing_id()))
        if not keep_refused:
            return SourceFrame(frame)
        good = frame.where(F.col(REFUSED_TEXT).isNull()).drop(REFUSED_TEXT)
        bad = frame.where(F.col(REFUSED_TEXT).isNotNull())
        return SourceFrame(good, bad.select(REFUSED_TEXT, FILE_COLUMN, ROW_COLUMN))

    def confirm(self, part: Slice) -> None:
        for one in part.detail.ranges:
            if not one.unchanged():
                self._changed(one.uri, "while it was being read")

    def consumed(self, spark: SparkSession, given: Any) -> list[Element]:
        """``given``: ``"all"`` files that are there now; or paths and shell patterns, absolute or below ``path``."""
        found = [FileRange(uri, size, at, 0, None) for uri, size, at in self._list()]
        if given != "all":
            several = isinstance(given, list | tuple | set | frozenset)
            found = chosen(found, sorted(given, key=str) if several else [given], self.path)
        return [one.element() for one in found]

    def position_text(self, elements: Sequence[Element]) -> str:
        return position_summary(elements)

    def _read_parquet(self, spark: SparkSession, ranges: list[FileRange], schema: T.StructType) -> DataFrame:
        frame = spark.read.schema(schema).options(**self.options, **_STRICT).parquet(*[r.uri for r in ranges])
        frame = frame.select("*", *place_columns([r.uri for r in ranges], F.col("_metadata.row_index")))
        cuts = [(i, r) for i, r in enumerate(ranges) if r.start or r.end is not None]
        for place, one in cuts:
            inside = F.col(ROW_COLUMN) >= one.start
            if one.end is not None:
                inside &= F.col(ROW_COLUMN) < one.end
            frame = frame.where((F.col(FILE_COLUMN) != place) | inside)
        return frame

    def _list(self) -> list[tuple[str, int, int]]:
        """(uri, size, mtime in ms) of all files, in path order."""
        at = open_location(self.path)
        prefix = "file://" if is_local(self.path) else self.path.split("://")[0] + "://"
        info = at.info()
        if info.type == pafs.FileType.NotFound:
            if is_local(self.path):
                raise SourceError(f"{self.path} does not exist: check the path, or make the directory first")
            return []  # an object store has no empty directories
        if info.type == pafs.FileType.File:
            infos = [info]
        else:
            infos = at.fs.get_file_info(pafs.FileSelector(at.path, recursive=True))
        found = []
        for one in infos:
            inside = PurePosixPath(one.path[len(at.path) :])
            hidden = any(p.startswith(("_", ".")) for p in inside.parts)
            if (
                one.type != pafs.FileType.File
                or hidden
                or not fnmatch.fnmatchcase(one.base_name, self.pattern)
            ):
                continue
            if _GLOB & set(one.path):
                raise SourceError(
                    f"{one.path}: Spark reads {sorted(_GLOB)} in names as patterns; rename the file"
                )
            found.append((prefix + one.path, int(one.size), mtime_ms(one)))
        return sorted(found)

    def _next_ranges(self, found: list[tuple[str, int, int]], consumed: Mapping[str, Any]) -> list[FileRange]:
        there = {uri for uri, _, _ in found}
        for uri, known in consumed.items():
            if known["end"] is not None and uri not in there and self.on_change == "fail":
                self._changed(uri, "before it was read to its end")
        pending = []
        for uri, size, changed_ms in found:
            known = consumed.get(uri)
            if known is not None and (known["size"], known["mtime_ms"]) != (size, changed_ms):
                if self.on_change == "fail":
                    self._changed(uri, "after it was consumed")
                continue
            if known is None or known["end"] is not None:
                pending.append(FileRange(uri, size, changed_ms, known["end"] if known else 0, None))
            if self.max_rows_per_batch is None and len(pending) == self.max_files_per_batch:
                break
        return self._bounded(pending)

    def _bounded(self, pending: list[FileRange]) -> list[FileRange]:
        pending = pending[: self.max_files_per_batch]
        return pending if self.max_rows_per_batch is None else cut(pending, self.max_rows_per_batch)

    def _changed(self, uri: str, when: str) -> None:
        raise SourceError(
            f"{uri} changed or vanished {when}, so what was read from it cannot be told from what is new. Put the "
            "old file back and add changes as new files, or set on_change='ignore' to skip such files"
        )

    def _declared(self) -> T.StructType | None:
        if isinstance(self.schema, str):
            return cast(T.StructType, T.StructType.fromDDL(self.schema))
        return self.schema


def _is_whole(schema: T.StructType) -> Column:
    """True for every row, and needs all columns: one that is pruned away is not parsed, so its bad values go unseen."""
    columns = [
        F.to_json(F.struct(f"`{f.name}`")) if _has_map(f.dataType) else F.col(f"`{f.name}`") for f in schema
    ]
    return F.pmod(F.xxhash64(*columns), F.lit(1)) == 0


def _has_map(kind: T.DataType) -> bool:
    return '"map"' in kind.json()
