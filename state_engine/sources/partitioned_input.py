"""``PartitionedSource``: any source that can be read again, cut by event time in place of cut by arrival.

Its position is what was seen of the source, and the partitions that were read. Whatever is new is looked through once
(one small Spark job over the new files): the smallest and largest event time of every file, and how many rows belong to
partitions that are closed. A partition then reads the files that may hold rows of it, out of all that was ever seen,
and keeps the rows of its interval. So late rows are found without reading anything old again. Bounds of a source on
the rows of a batch do not apply: a partition is one micro-batch. Flink has no counterpart. Decision 0016.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, cast

from state_engine.core.counted_nouns import counted
from state_engine.core.errors import ConfigurationError, SourceError
from state_engine.core.json_text import has_form, is_long
from state_engine.core.time.partitions import Partition, TimePartitions
from state_engine.sources.base import (
    FILE_COLUMN,
    Element,
    Slice,
    Source,
    SourceFrame,
    summary,
)
from state_engine.sources.delta import DeltaSlice
from state_engine.sources.file import FileSlice
from state_engine.sources.function import FunctionSource
from state_engine.sources.partition_rows import FileTimes, between, file_times, joined
from state_engine.sources.rows import either
from state_engine.spark.read_failures import reading
from state_engine.spark.spark_names import F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SEEN, MARK = "#seen", "#partition"
"""Splits of the elements that record what is new in the source, and which partition was read."""
_MARK_FORM = {
    "key": str, "start_ms": is_long, "end_ms": is_long, "new_from_ms": is_long, "late_rows": int,
}  # fmt: skip
_SEEN_FORM = {
    "elements": [{"split": str, "position": lambda _: True}],
    "files": [
        lambda times: (
            has_form(times, [(is_long, None)])
            and len(times) == 3
            and has_form(times[2], int)
            and (None in times[:2] or times[0] <= times[1])
        )
    ],
    "late_rows": int,
}


@dataclass(frozen=True)
class Piece:
    """Part of what was seen, as far as a partition reads it.

    Attributes:
        from_ms, to_ms: bounds of the event time of the rows that are taken; the end is exclusive.
        new: whether it was seen just now: then rows that could not be parsed are set aside.
    """

    part: Slice
    from_ms: int
    to_ms: int
    new: bool


@dataclass(frozen=True)
class PartitionSlice:
    """What a partition reads of one source; the ``detail`` of its slice.

    Attributes:
        late_rows: rows seen just now whose partition was run before.
        pieces: in the order in which they were seen; none where there can be no row.
    """

    partition: Partition
    late_rows: int
    pieces: list[Piece]


class PartitionedSource(Source):
    """A source that is cut into time partitions.

    Args:
        keep_refused: whether rows that cannot be parsed are set aside.
    """

    def __init__(
        self, name: str, source: Source, partitions: TimePartitions, *, keep_refused: bool, job: str
    ) -> None:
        _check_fits(name, source)
        self.name, self.source, self.partitions = name, unbounded(source), partitions
        self.column, self._keep_refused, self._job = partitions.column_of(name), keep_refused, job

    @property
    def inner(self) -> Source:
        return self.source.inner

    @property
    def changing(self) -> bool:
        return self.source.changing

    def for_run(self) -> PartitionedSource:
        source = copy(self)
        source.source = self.source.for_run()
        return source

    def plan(self, spark: SparkSession, elements: Sequence[Element]) -> Slice | None:
        """The next partition, whatever the clock says."""
        last = last_mark(elements)
        following = self.partitions.next_of(last["end_ms"] if last else None)
        return None if following is None else self.plan_partition(spark, elements, following)

    def plan_partition(self, spark: SparkSession, elements: Sequence[Element], partition: Partition) -> Slice:
        known = _inner(elements)
        appended: list[Element] = []
        while (part := self.source.plan(spark, known)) is not None:
            appended.append(self._seen(spark, part, partition))
            known += part.elements
        take_late = self.partitions.late == "next"
        mark = {
            "key": partition.key,
            "start_ms": partition.start_ms,
            "end_ms": partition.end_ms,
            "new_from_ms": self.partitions.first().start_ms if take_late else partition.start_ms,
            "late_rows": sum(e["position"]["late_rows"] for e in appended),
        }
        return self._slice(spark, elements, [*appended, {"split": MARK, "position": mark}])

    def replan(self, spark: SparkSession, before: Sequence[Element], appended: Sequence[Element]) -> Slice:
        return self._slice(spark, before, appended)

    def rebatch(
        self, spark: SparkSession, before: Sequence[Element], recorded: Sequence[Element]
    ) -> Slice | None:
        """The next recorded partition: there is no other way to cut."""
        last, group = last_mark(before), list[Element]()
        for element in recorded:
            group.append(element)
            if element["split"] == MARK:
                if last is None or element["position"]["end_ms"] > last["end_ms"]:
                    return self._slice(spark, before, group)
                group = []
        return None

    def read(self, spark: SparkSession, part: Slice, *, keep_refused: bool) -> SourceFrame:
        detail: PartitionSlice = part.detail
        rows, first = [], 0
        refused: list[DataFrame] = []
        for piece in detail.pieces:
            frame = self.source.read(spark, piece.part, keep_refused=keep_refused)
            rows.append((between(spark, frame.rows, self.column, piece.from_ms, piece.to_ms), first))
            if frame.refused is not None and piece.new:
                place = (F.col(FILE_COLUMN) + first).cast("int")
                bad_rows = either(spark, frame.refused, table=spark.createDataFrame, frame=lambda bad: bad)
                refused.append(bad_rows.withColumn(FILE_COLUMN, place))
            first += len(piece.part.labels)
        bad = reduce(lambda above, below: above.unionByName(below), refused) if refused else None
        return SourceFrame(joined(spark, rows), bad)

    def parse(self, spark: SparkSession, records: Sequence[bytes], *, keep_refused: bool) -> SourceFrame:
        return self.source.parse(spark, records, keep_refused=keep_refused)

    def confirm(self, part: Slice) -> None:
        for piece in part.detail.pieces:
            self.source.confirm(piece.part)

    def waiting(self, elements: Sequence[Element]) -> list[str]:
        return self.source.waiting(_inner(elements))

    def is_element(self, element: Element) -> bool:
        if element["split"] == MARK:
            mark = element["position"]
            return has_form(mark, _MARK_FORM) and bool(mark["start_ms"] < mark["end_ms"])
        return (
            element["split"] == SEEN
            and has_form(element["position"], _SEEN_FORM)
            and all(map(self.source.is_element, element["position"]["elements"]))
        )

    def position_text(self, elements: Sequence[Element]) -> str:
        last = last_mark(elements)
        return summary(elements, **({"partition": last["key"]} if last else {}))

    # -- pieces ----------------------------------------------------------------------------------------------------

    def _slice(self, spark: SparkSession, before: Sequence[Element], appended: Sequence[Element]) -> Slice:
        mark = appended[-1]["position"]
        partition = Partition(mark["key"], mark["start_ms"], mark["end_ms"])
        pieces, known = [], list[Element]()
        for place, element in enumerate([*before, *appended]):
            if element["split"] != SEEN:
                continue
            seen, new = element["position"], place >= len(before)
            from_ms = mark["new_from_ms"] if new else partition.start_ms
            times = [FileTimes(*t) for t in seen["files"]]
            wanted = {
                i for i, t in enumerate(times) if t.overlap(from_ms, partition.end_ms) or (new and t.refused)
            }
            if wanted:
                part = self.source.replan(spark, known, seen["elements"])
                pieces.append(Piece(narrowed(part, wanted), from_ms, partition.end_ms, new))
            known += seen["elements"]
        return Slice(
            elements=list(appended),
            position_from=self.position_text(before),
            position_to=self.position_text([*before, *appended]),
            labels=[label for piece in pieces for label in piece.part.labels],
            detail=PartitionSlice(partition, mark["late_rows"], pieces),
        )

    def _seen(self, spark: SparkSession, part: Slice, partition: Partition) -> Element:
        """What is new in the source, looked through once."""
        late_from_ms, late_to_ms = self.partitions.first().start_ms, partition.start_ms
        if part.labels:
            with reading(self.name, job=self._job, into="the driver"):
                read = self.source.read(spark, part, keep_refused=self._keep_refused)
            times, late, without = file_times(
                spark,
                read,
                self.column,
                job=self._job,
                source=self.name,
                files=len(part.labels),
                late=(late_from_ms, late_to_ms),
            )
        else:
            times, late, without = [], 0, 0
        if without and self.partitions.nulls == "fail":
            raise SourceError(
                f"source '{self.name}': {counted(without, 'row has', 'rows have')} no '{self.column}' in "
                f"{part.labels[0]}{_more(part.labels)}, and so no partition. Fill it in before the rows come "
                "here, or declare "
                "TimePartitions(nulls='ignore') to pass over them"
            )
        position = {"elements": part.elements, "files": [list(t.facts()) for t in times], "late_rows": late}
        return {"split": SEEN, "position": position}


def last_mark(elements: Sequence[Element]) -> dict[str, Any] | None:
    """The last partition that a position names; None where it names none."""
    return next((e["position"] for e in reversed(elements) if e["split"] == MARK), None)


def unbounded(source: Source) -> Source:
    """A source without a bound on the rows of a batch."""
    if is_dataclass(source) and any(f.name == "max_rows_per_batch" for f in fields(source)):
        return cast(Source, replace(cast(Any, source), max_rows_per_batch=None))
    return source


def narrowed(part: Slice, wanted: set[int]) -> Slice:
    """A slice of some of its files only, where that can be said."""
    if len(wanted) == len(part.labels):
        return part

    def take(all_: Sequence[Any]) -> list[Any]:
        return [one for i, one in enumerate(all_) if i in wanted]

    detail = part.detail
    if isinstance(detail, FileSlice):
        return replace(part, labels=take(part.labels), detail=replace(detail, ranges=take(detail.ranges)))
    if isinstance(detail, DeltaSlice):
        return replace(part, labels=take(part.labels), detail=replace(detail, files=take(detail.files)))
    return part


def _inner(elements: Sequence[Element]) -> list[Element]:
    return [inner for e in elements if e["split"] == SEEN for inner in e["position"]["elements"]]


def _check_fits(name: str, outer: Source) -> None:
    source = outer.inner
    if type(source).replan is Source.replan or isinstance(source, FunctionSource):
        raise ConfigurationError(
            f"source '{name}': a {type(source).__name__} cannot be read by time partitions, because its rows "
            "cannot be read again. Let a job of its own write its rows to a table, and read that with a DeltaSource"
        )
    if getattr(source, "on_bad_file", "fail") != "fail":
        raise ConfigurationError(
            f"source '{name}': on_bad_file='dead_letter' is not for jobs in time partitions: which partition the rows "
            "of a file that cannot be read belong to is not known. Leave it out"
        )
    if getattr(source, "on_change", "fail") == "restart":
        raise ConfigurationError(
            f"source '{name}': on_change='restart' delivers rows of closed partitions again; use 'fail' or 'skip' in a "
            "job with time partitions"
        )


def _more(labels: Sequence[str]) -> str:
    return f" and {len(labels) - 1} more" if len(labels) > 1 else ""
