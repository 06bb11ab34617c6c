"""``FileSource``: new files of a directory, or ranges of their rows, in path order.

Remembers every consumed file by path, size, and a digest of its ends; a consumed file that changed is an error by
default, one that was put back as it was is not. A new file that is empty waits for a later batch, and so does a Parquet
file without a footer, and one whose name says that it is being copied: see ``waiting``.
Parquet files may be cut inside (``max_rows_per_batch``); CSV and JSON files, whose rows have no index, are consumed
whole; the number of such a row only orders the rows of its file. Plays the part of Flink's ``FileSource`` and of
Spark's file stream source.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import accumulate
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import pyarrow as pa

from state_engine.core.choices import check_bound, check_choice, check_mapping
from state_engine.core.errors import BadFileError, ConfigurationError, SourceError
from state_engine.core.types.every_type import StructType
from state_engine.core.types.spark_types import spark_schema
from state_engine.core.types.type_information import TypeLike
from state_engine.core.types.type_parsing import to_type
from state_engine.sources.base import (
    FILE_COLUMN,
    ROW_COLUMN,
    BadFile,
    Element,
    Slice,
    Source,
    SourceFrame,
)
from state_engine.sources.file_ends import digest_of, file_ends
from state_engine.sources.file_ranges import (
    SCHEMA,
    FileRange,
    check_rows,
    check_unchanged,
    chosen,
    cut,
    is_range,
    is_schema,
    last_ranges,
    left_over,
    position_summary,
    recorded_ranges,
)
from state_engine.sources.listing import Looks
from state_engine.sources.local_listing import InputFile
from state_engine.sources.parquet.file_types import check_columns, inferred
from state_engine.sources.parquet.parquet_files import check_parquet_options, footer
from state_engine.sources.parquet.parquet_rows import parquet_rows
from state_engine.sources.path_values import PathValues, inferred_columns, values_in_path
from state_engine.sources.row_places import STRICT, place_columns, scan_uris, scanned
from state_engine.sources.rows import Given, batched
from state_engine.sources.text.options import text_options
from state_engine.sources.text.text_rows import TextRows, directory_of
from state_engine.sources.text.text_values import Further, Missing, NameRules
from state_engine.spark.placement import USUAL, Limits, limits_of
from state_engine.spark.read_failures import finding_files
from state_engine.spark.spark_names import F, T
from state_engine.storage.stores.files import normal_uri
from state_engine.storage.stores.in_threads import in_threads

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NAMELESS = "bytes that are no UTF-8, or a character that an object store's URIs cannot have (%, ?, #)"
Schema: TypeAlias = "str | T.StructType"
"""As it is declared."""


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
            ever read is taken.
        format: ``parquet``, ``csv`` or ``json``.
        pattern: shell pattern that file names must match; names beginning with ``_`` or ``.`` are never read, and those
            that end as the name of a file that is being copied (``.tmp``, ``.part``, ``._COPYING_``, …) only where the
            pattern ends so too.
        max_rows_per_batch: bound of rows in a batch (Parquet only).
        max_files_per_batch: bound of files in a batch; by default 10,000 (with ``max_rows_per_batch`` 1,000), or as
            many as have 4 GiB together.
        options: of the reader, by Spark's names, for example ``{"header": "true", "nullValue": "NA"}``. They are
            checked here; of CSV and JSON our defaults are not all Spark's.
        on_change: ``fail``, or ``ignore`` a consumed file that changed.
        on_bad_file: ``fail``, or ``dead_letter``: a file that cannot be read becomes a dead letter that holds its path,
            and the others are read.
        missing: what a declared column is that a file does not have: ``null``, or ``refuse`` for a file that cannot be
            read (see ``on_bad_file``); of JSON, each object is asked, and a row is refused (see ``on_error``).
        further: ``ignore`` columns that are not declared, or ``refuse`` them as ``missing`` does.

    Example:
        >>> FileSource("/data/events", schema="k bigint, v double", max_rows_per_batch=100_000).format
        'parquet'
    """

    path: str
    schema: str | T.StructType | None = None
    format: Literal["parquet", "csv", "json"] = "parquet"
    pattern: str = "*"
    max_rows_per_batch: int | None = None
    max_files_per_batch: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    on_change: Literal["fail", "ignore"] = "fail"
    on_bad_file: Literal["fail", "dead_letter"] = "fail"
    missing: Missing = "null"
    further: Further = "ignore"
    _looks: ClassVar[Looks | None] = None

    def __post_init__(self) -> None:
        if self.format not in ("parquet", "csv", "json"):
            raise ConfigurationError(
                f"FileSource cannot read format '{self.format}'; use parquet, csv or json"
            )
        if self.schema is None and self.format != "parquet":
            raise ConfigurationError(
                f"FileSource of format '{self.format}' needs a schema, for example 'k bigint'"
            )
        check_bound(self.max_rows_per_batch, what="max_rows_per_batch")
        check_bound(self.max_files_per_batch, what="max_files_per_batch")
        if self.max_rows_per_batch is not None and self.format != "parquet":
            raise ConfigurationError(
                "max_rows_per_batch needs Parquet: rows of CSV and JSON have no index; use max_files_per_batch"
            )
        check_choice(self.on_change, ("fail", "ignore"), what="on_change")
        check_choice(self.on_bad_file, ("fail", "dead_letter"), what="on_bad_file")
        check_choice(self.missing, ("null", "refuse"), what="missing")
        check_choice(self.further, ("ignore", "refuse"), what="further")
        object.__setattr__(self, "path", normal_uri(self.path))
        check_mapping(self.options, what="FileSource")
        if self.format == "parquet":
            check_parquet_options(self.options)
        if self.schema is not None and self.format == "parquet":
            _fields(self.schema)
        elif self.schema is not None:
            self._text(self.schema)

    @property
    def _names(self) -> NameRules:
        return NameRules(self.missing, self.further)

    @property
    def schema_in_code(self) -> TypeLike | None:
        return self.schema

    def for_run(self) -> FileSource:
        source = copy(self)
        object.__setattr__(source, "_looks", Looks())
        return source

    def plan(self, spark: SparkSession, elements: Sequence[Element]) -> Slice | None:
        consumed = last_ranges(elements)
        listed = self._listed(consumed)
        limits = limits_of(spark)
        pending = self._pending(listed, consumed, limits)
        schema = self._schema(elements, pending, [one.uri for one in listed])
        ranges, bad = self._bounded(pending, schema, limits)
        if not (ranges or bad):
            return None
        # one listing looks at no more files than a batch may hold, where that is the only bound
        full = self.max_rows_per_batch is None and len(pending) >= self._most_files(limits)
        more = full or ranges != [r for r in pending if r not in bad]
        return replace(self._slice(elements, ranges, schema, bad=bad), more=more)

    def replan(self, spark: SparkSession, before: Sequence[Element], appended: Sequence[Element]) -> Slice:
        ranges = recorded_ranges(appended)
        check_unchanged(ranges)
        check_rows(ranges, self.format)
        schema = self._schema([*before, *appended], ranges, [r.uri for r in ranges])
        bad = self._unreadable(ranges, schema)
        return self._slice(before, [r for r in ranges if r not in bad], schema, recorded=appended, bad=bad)

    def rebatch(
        self, spark: SparkSession, before: Sequence[Element], recorded: Sequence[Element]
    ) -> Slice | None:
        left = left_over(before, recorded)
        check_rows(left, self.format)
        schema = self._schema([*before, *recorded], left, [r.uri for r in left])
        ranges, bad = self._bounded(left, schema, limits_of(spark))
        check_unchanged(ranges)
        more = ranges != [r for r in left if r not in bad]
        return replace(self._slice(before, ranges, schema, bad=bad), more=more) if ranges or bad else None

    def _slice(
        self,
        before: Sequence[Element],
        ranges: list[FileRange],
        schema: Schema | None,
        *,
        recorded: Sequence[Element] = (),
        bad: Mapping[FileRange, BadFile] = MappingProxyType({}),
    ) -> Slice:
        appended = list(recorded) or [r.element() for r in sorted([*ranges, *bad], key=lambda r: r.uri)]
        if self.schema is None and ranges and not any(map(is_schema, (*before, *appended))):
            assert isinstance(
                schema, T.StructType
            )  # later files must not change it: results would depend on cuts
            appended.append({"split": self.path + SCHEMA, "position": schema.jsonValue()})
        return Slice(
            elements=appended,
            position_from=position_summary(before),
            position_to=position_summary([*before, *appended]),
            labels=[r.uri for r in ranges],
            detail=FileSlice(ranges, None if isinstance(schema, str) else schema),
            bad_files=tuple(bad.values()),
        )

    def read(self, spark: SparkSession, part: Slice, *, keep_refused: bool) -> SourceFrame:
        wanted: FileSlice = part.detail
        schema = self._declared() or wanted.schema
        assert schema is not None
        values = PathValues.of([r.uri for r in wanted.ranges], self.path, _fields(schema))
        left = values.left_to_files(schema)
        if self.format == "parquet":
            files = SourceFrame(self._parquet_rows(spark, wanted.ranges, left))
        else:
            files = self._text(left, limits_of(spark)).of_files(
                spark, wanted.ranges, keep_refused=keep_refused
            )
        return replace(files, rows=values.added_to(files.rows, schema)) if values.values else files

    def set_aside(self, part: Slice, bad: BadFile) -> Slice | None:
        ranges: list[FileRange] = part.detail.ranges
        unreadable = [r for r in ranges if bad.uri in (r.uri, *scan_uris(r.uri))]
        if self.on_bad_file != "dead_letter" or not unreadable or not unreadable[0].unchanged():
            return None
        left = [r for r in ranges if r.uri != unreadable[0].uri]
        return replace(
            part,
            labels=[r.uri for r in left],
            detail=replace(part.detail, ranges=left),
            bad_files=(*part.bad_files, BadFile(unreadable[0].uri, bad.error)),
        )

    def parse(self, spark: SparkSession, records: Sequence[bytes], *, keep_refused: bool) -> SourceFrame:
        schema = self._declared()
        if self.format == "parquet" or schema is None:
            raise SourceError(
                f"{self.path}: rows of Parquet files are not parsed, so none can be parsed again"
            )
        places: dict[str, list[int]] = {}  # letters of one directory have the same values of its path
        for place, record in enumerate(records):
            places.setdefault(directory_of(record), []).append(place)
        parts = []
        for directory, some in places.items():
            values = PathValues.of([f"{directory}/"] * len(records), self.path, _fields(schema))
            text = self._text(values.left_to_files(schema))
            part = text.of_letters({place: records[place] for place in some}, keep_refused=keep_refused)
            parts.append(replace(part, rows=values.added_to(part.rows, schema)) if values.values else part)
        refused = [part.refused for part in parts if part.refused is not None]
        return SourceFrame(
            pa.concat_tables([part.rows for part in parts]).combine_chunks(),
            pa.concat_tables(refused).combine_chunks() if refused else None,
        )

    def confirm(self, part: Slice) -> None:
        for one in part.detail.ranges:
            if not one.unchanged():
                raise SourceError(
                    f"{one.uri} changed or vanished while it was being read. Nothing was committed: run again, which "
                    "reads what is there then"
                )

    def consumed(self, spark: SparkSession, given: Any) -> list[Element]:
        """``given``: ``"all"`` files that are there now; or paths and shell patterns, absolute or below ``path``."""
        there = [one for one in self._listed() if not one.copied]
        ranges = [one for one in self._ranges_of(there, {}) if one is not None]
        if given != "all":
            several = isinstance(given, list | tuple | set | frozenset)
            ranges = chosen(ranges, sorted(given, key=str) if several else [given], self.path)
        return [one.element() for one in ranges]

    def position_text(self, elements: Sequence[Element]) -> str:
        return position_summary(elements)

    def _parquet_rows(self, spark: SparkSession, ranges: list[FileRange], schema: T.StructType) -> Given:
        if self.options:
            return self._read_parquet(spark, ranges, schema)
        return parquet_rows(spark, ranges, schema, partial(self._read_parquet, spark, ranges, schema))

    def _read_parquet(self, spark: SparkSession, ranges: list[FileRange], schema: T.StructType) -> DataFrame:
        uris = [r.uri for r in ranges]
        places = place_columns(uris, F.col("_metadata.row_index"))
        reader = spark.read.schema(schema).options(**self.options, **STRICT)
        with finding_files():
            frame = scanned(uris, lambda some: reader.parquet(*some).select("*", *places))
        cuts = [(i, r) for i, r in enumerate(ranges) if r.start or r.end is not None]
        for place, one in cuts:
            inside = F.col(ROW_COLUMN) >= one.start
            if one.end is not None:
                inside &= F.col(ROW_COLUMN) < one.end
            frame = frame.where((F.col(FILE_COLUMN) != place) | inside)
        return frame

    def _listed(self, consumed: Collection[str] = ()) -> list[InputFile]:
        return (self._looks or Looks()).files(self.path, self.pattern, consumed)

    def _pending(
        self, listed: list[InputFile], consumed: Mapping[str, FileRange], limits: Limits
    ) -> list[FileRange]:
        there = {one.uri for one in listed}
        for uri, known in consumed.items():
            if known.end is not None and uri not in there and self.on_change == "fail":
                self._changed(uri, "before it was read to its end")
        pending: list[FileRange] = []
        most = self._most_files(limits)
        for some in batched(self._wanted(listed, consumed), most):
            pending += [part for part in self._ranges_of(some, consumed) if part is not None]
            if self.max_rows_per_batch is None and len(pending) >= most:
                break
        return pending

    def _wanted(self, listed: Iterable[InputFile], consumed: Mapping[str, FileRange]) -> Iterator[InputFile]:
        return (one for one in listed if not one.copied and self._is_pending(one, consumed.get(one.uri)))

    def _is_pending(self, one: InputFile, known: FileRange | None) -> bool:
        if known is None:
            return True
        if known.nameless:
            return False
        # a run may remember an older size than another runner consumed: the file itself decides
        if known.is_same(one.size, one.mtime_ms) or known.unchanged():
            return known.end is not None
        if self.on_change == "fail":
            self._changed(one.uri, "after it was consumed")
        return False

    def _ranges_of(
        self, files: Sequence[InputFile], consumed: Mapping[str, FileRange]
    ) -> list[FileRange | None]:
        """What is left of files; None for those that wait."""
        new = [one for one in files if one.uri not in consumed and not one.nameless]
        why = dict(zip([one.uri for one in new], in_threads(self._waits, new), strict=True))
        ranges: list[FileRange | None] = []
        for one in files:
            known = consumed.get(one.uri)
            if known is not None:
                rest = replace(known, start=known.end or 0, end=None)
                check_rows([rest], self.format)
                ranges.append(rest)
            elif one.nameless:
                ranges.append(FileRange(one.uri, one.size, one.mtime_ms, 0, None, nameless=True))
            elif why[one.uri]:
                ranges.append(None)
            else:
                digest = digest_of(one.uri, one.size, one.mtime_ms)
                ranges.append(FileRange(one.uri, one.size, one.mtime_ms, 0, None, digest))
        return ranges

    def _waits(self, one: InputFile) -> str:
        """Why a new file is not read yet; empty where it is."""
        if one.copied:
            return "is being copied, as its name says"
        if not one.size:  # whoever makes it will fill it, or has nothing to say
            return "is empty"
        try:
            ends = file_ends(one.uri, one.size, one.mtime_ms)
        except FileNotFoundError:
            return "is gone again"
        if ends.parquet_footer or self.format != "parquet":
            return ""
        if ends.foreign:  # where its name says what it should be, that is an error, and otherwise not ours
            return "" if one.uri.endswith(".parquet") else "is not a Parquet file: leave it out with pattern="
        return "has no Parquet footer yet"

    def is_element(self, element: Element) -> bool:
        return is_range(element) or (element["split"].endswith(SCHEMA) and _is_schema(element["position"]))

    def waiting(self, elements: Sequence[Element]) -> list[str]:
        """The new files that wait for a later batch, each with the reason; in path order."""
        consumed = last_ranges(elements)
        listed = (self._looks or Looks()).again(self.path, self.pattern, consumed)
        fresh = [one for one in listed if one.uri not in consumed and not one.nameless]
        reasons = in_threads(self._waits, fresh)
        return [f"{one.uri} {why}" for one, why in zip(fresh, reasons, strict=True) if why]

    def unread(self, elements: Sequence[Element]) -> list[FileRange]:
        """All that is there after a position, however many batches it takes; without the files that wait."""
        consumed = last_ranges(elements)
        wanted = list(self._wanted(self._listed(consumed), consumed))
        return [part for part in self._ranges_of(wanted, consumed) if part is not None]

    def _bounded(
        self, pending: list[FileRange], schema: Schema | None, limits: Limits
    ) -> tuple[list[FileRange], dict[FileRange, BadFile]]:
        """What a batch takes of pending files, and those that cannot be read, where they are set aside."""
        bad: dict[FileRange, BadFile] = {}
        while True:
            some = self._first_files([r for r in pending if r not in bad], limits)
            more = self._unreadable(some, schema)
            if not more:
                return some if self.max_rows_per_batch is None else cut(some, self.max_rows_per_batch), bad
            bad |= more

    def _most_files(self, limits: Limits) -> int:
        usual = limits.batch_files if self.max_rows_per_batch is None else limits.cut_files
        return self.max_files_per_batch or usual

    def _first_files(self, pending: list[FileRange], limits: Limits) -> list[FileRange]:
        """As many as a batch may hold; one at least."""
        some = pending[: self._most_files(limits)]
        if self.max_files_per_batch is None:
            sums = accumulate(r.size for r in some)
            some = some[: max(sum(bytes_ <= limits.batch_bytes for bytes_ in sums), 1)]
        return some

    def _unreadable(self, ranges: Sequence[FileRange], schema: Schema | None) -> dict[FileRange, BadFile]:
        """The files that cannot be read, as their paths and footers show, where such files are set aside.

        Raises:
            BadFileError: there is one, and it is not.
        """
        fault = partial(self._fault, None if schema is None else _fields(schema))
        bad: dict[FileRange, BadFile] = {}
        for one, error in zip(ranges, in_threads(fault, ranges), strict=True):
            if error is None:
                continue
            if self.on_bad_file != "dead_letter" or not one.unchanged():
                raise error
            bad[one] = BadFile(one.uri, str(error))
        return bad

    def _fault(self, declared: list[pa.Field] | None, one: FileRange) -> BadFileError | None:
        if one.nameless:
            return BadFileError(
                f"{one.uri}: the path holds {_NAMELESS}: rename the file or its directory", one.uri
            )
        try:
            given = values_in_path(one.uri, self.path, declared or [])
            if self.format == "parquet":
                columns = footer(one).columns
                own = [column for column in columns if column.name not in given]
                left = [field for field in declared or [] if field.name not in given]
                check_columns(one.uri, own, left, NameRules() if declared is None else self._names)
                if declared is None:
                    inferred(one.uri, columns)
        except BadFileError as error:
            return error
        return None

    def _changed(self, uri: str, when: str) -> None:
        raise SourceError(
            f"{uri} changed or vanished {when}, so what was read from it cannot be separated from what is new. Put the "
            "old file back and add changes as new files, or set on_change='ignore' to skip such files"
        )

    def _schema(
        self, elements: Sequence[Element], pending: Sequence[FileRange], uris: Sequence[str]
    ) -> Schema | None:
        """The declared schema, else that which is recorded, else that of the first file that can be read.

        Args:
            uris: of all files: what their paths give is added to the schema of a file.
        """
        if self.schema is not None:
            return self.schema
        known = [e["position"] for e in elements if is_schema(e)]
        if known:
            return T.StructType.fromJson(known[-1])
        for one in pending:
            if one.nameless:
                continue
            try:
                columns = {field.name: field for field in inferred(one.uri, footer(one).columns)}
            except BadFileError:
                if self.on_bad_file != "dead_letter" or not one.unchanged():
                    raise
            else:
                columns |= {field.name: field for field in inferred_columns(uris, self.path)}
                return T.StructType.fromJson(spark_schema(pa.schema(list(columns.values()))))
        return None

    def _text(self, schema: Schema, limits: Limits = USUAL) -> TextRows:
        assert self.format != "parquet"
        columns = to_type(schema, parameter=f"schema of {self.path}")
        if not isinstance(columns, StructType):
            raise ConfigurationError(f"schema of {self.path} must name columns, for example 'k bigint'")
        if not columns.names:
            raise SourceError(
                f"{self.path}: the directories give all declared columns: declare one of the files, too"
            )
        return TextRows(self.format, columns, text_options(self.format, self.options, self._names), limits)

    def _declared(self) -> T.StructType | None:
        if isinstance(self.schema, str):
            return _parsed(self.schema)
        return self.schema


def _is_schema(value: Any) -> bool:
    """Whether a value of JSON is a schema, as Spark writes it."""
    try:
        return bool(value == T.StructType.fromJson(value).jsonValue())
    except Exception:  # PySpark takes it on trust, so it may raise anything
        return False


@lru_cache
def _parsed(ddl: str) -> T.StructType:
    """A schema, read without Java."""
    return T.StructType.fromJson(spark_schema(pa.schema(_fields(ddl))))


def _fields(schema: Schema) -> list[pa.Field]:
    columns = to_type(schema, parameter="schema of a FileSource").arrow
    if not isinstance(columns, pa.StructType):
        raise ConfigurationError(
            f"the schema of a FileSource names columns, such as 'k bigint', not {schema!r}"
        )
    return list(columns)
