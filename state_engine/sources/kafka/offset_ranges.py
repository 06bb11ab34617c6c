"""``OffsetRange``: offsets of one partition that a slice holds; how what is new becomes ranges, and ranges slices.

Positions are ranges of offsets, never numbers of records: markers of transactions leave gaps, and so does compaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from state_engine.core.counted_nouns import counted
from state_engine.core.errors import SourceError
from state_engine.core.json_text import has_form
from state_engine.sources.base import Element, summary
from state_engine.spark.kafka.clients import Partition, Topic

BEGUN = "#begun"
"""The split of an element that says that the source has begun, where there was no partition yet."""


_FORM = {"topic_id": str, "start": int, "end": int, "lost?": int}


@dataclass(frozen=True)
class OffsetRange:
    """Offsets ``start`` to ``end`` (exclusive) of one partition.

    Attributes:
        topic_id: of the very topic; one that is made again has another.
        lost: how many offsets before ``start`` are gone unread.
    """

    topic: str
    partition: int
    topic_id: str
    start: int
    end: int
    lost: int = 0

    @property
    def place(self) -> Partition:
        return self.topic, self.partition

    @property
    def size(self) -> int:
        """How many offsets it spans."""
        return self.end - self.start

    def element(self) -> Element:
        position: dict[str, Any] = {"topic_id": self.topic_id, "start": self.start, "end": self.end}
        if self.lost:
            position["lost"] = self.lost
        return {"split": f"{self.topic}/{self.partition}", "position": position}


def recorded_ranges(elements: Iterable[Element]) -> list[OffsetRange]:
    """The ranges that checkpoints consumed, in order.

    Example:
        >>> at = {"topic_id": "x", "start": 0, "end": 9}
        >>> recorded_ranges([{"split": "clicks/3", "position": at}])
        [OffsetRange(topic='clicks', partition=3, topic_id='x', start=0, end=9, lost=0)]
    """
    ranges = []
    for one in elements:
        if one["split"] != BEGUN:
            topic, _, partition = one["split"].rpartition("/")
            ranges.append(OffsetRange(topic, int(partition), **one["position"]))
    return ranges


def is_range(element: Element) -> bool:
    """Whether an element says what was read of a partition, or that the source has begun."""
    if element["split"] == BEGUN:
        return bool(element["position"] == {})
    number = element["split"].rpartition("/")[2]
    at = element["position"]
    is_number = number.isascii() and number.isdecimal() and len(number) < 10
    return is_number and has_form(at, _FORM) and bool(at["start"] <= at["end"])


def newest_by_partition(elements: Iterable[Element]) -> dict[Partition, OffsetRange]:
    return {one.place: one for one in recorded_ranges(elements)}


def partitions_of(topics: Iterable[Topic]) -> dict[Partition, Topic]:
    return {(topic.name, number): topic for topic in topics for number in topic.partitions}


@dataclass(frozen=True)
class Offsets:
    """What there is in partitions.

    Attributes:
        ends: the offset up to which each can be read.
    """

    topics: Mapping[Partition, Topic]
    begins: Mapping[Partition, int]
    ends: Mapping[Partition, int]

    def after(self, known: OffsetRange) -> tuple[OffsetRange, str]:
        """What comes after a range of a partition that is there, and what is lost between them; empty for nothing."""
        place, end = known.place, known.end
        begin, last, topic = self.begins[place], self.ends[place], self.topics[place]
        name = f"{known.topic}/{known.partition}"
        start, lost, why = end, 0, ""
        if topic.id != known.topic_id:
            start = begin
            why = f"{name} belongs to a topic that was recreated since offset {end} was reached"
        elif end < begin:
            start, lost = begin, begin - end
            why = (
                f"{name}: offsets {end} to {begin - 1} ({lost:,} of them) are gone unread: they expired, or "
                "were deleted"
            )
        elif last < end:
            start, lost = last, end - last
            why = f"{name} ends at offset {last}, and was read up to {end}: a broker lost {counted(lost, 'offset')}"
        return OffsetRange(*place, topic.id, start, max(start, last), lost), why

    def whole(self, place: Partition, start: int) -> OffsetRange:
        return OffsetRange(*place, self.topics[place].id, start, max(start, self.ends[place]))

    def check_there(self, ranges: Sequence[OffsetRange]) -> None:
        """Refuse ranges that cannot be read again as they were."""
        for one in ranges:
            name = f"{one.topic}/{one.partition}"
            topic = self.topics.get(one.place)
            if topic is None or topic.id != one.topic_id:
                raise SourceError(
                    f"{name}: the topic is gone, or was recreated, since offsets {one.start} to {one.end} were planned "
                    "or read, so these cannot be read. Replay from a checkpoint after them"
                )
            begin, end = self.begins[one.place], self.ends[one.place]
            if one.size and not begin <= one.start <= one.end <= end:
                raise SourceError(
                    f"{name} has offsets {begin} to {end}, and {one.start} to {one.end} are wanted: records expired, "
                    "were deleted, or a broker lost them. Replay from a checkpoint after them"
                )


def cut(ranges: Sequence[OffsetRange], limit: int | None) -> list[OffsetRange]:
    """Ranges of at most so many offsets together, to each partition its share; those of nothing stay.

    Example:
        >>> whole = [OffsetRange("t", 0, "x", 0, 90), OffsetRange("t", 1, "x", 0, 10)]
        >>> [one.end for one in cut(whole, 10)]
        [9, 1]
    """
    total = sum(one.size for one in ranges)
    if limit is None or total <= limit:
        return list(ranges)
    shares = [one.size * limit // total for one in ranges]
    for index, one in enumerate(ranges):
        if sum(shares) < limit and shares[index] < one.size:
            shares[index] += 1
    return [replace(one, end=one.start + share) for one, share in zip(ranges, shares, strict=True)]


def left_over(before: Sequence[Element], recorded: Sequence[Element]) -> list[OffsetRange]:
    """What was recorded and is not consumed yet, one range a partition."""
    known = newest_by_partition(before)
    wanted: dict[Partition, OffsetRange] = {}
    for one in recorded_ranges(recorded):
        first = wanted.get(one.place, one)
        if first.topic_id != one.topic_id or known.get(one.place, one).topic_id != one.topic_id:
            raise SourceError(
                f"{one.topic} was recreated, which has its place among the recorded cuts only: replay with these "
                "(rebatch=False)"
            )
        wanted[one.place] = replace(first, end=one.end)
    left = []
    for place, one in wanted.items():
        start = max(known[place].end, one.start) if place in known else one.start
        if start < one.end or place not in known:
            left.append(replace(one, start=start))
    return left


def position_summary(elements: Sequence[Element]) -> str:
    """A position as short JSON: up to where each partition was read, and how many offsets were lost."""
    ends: dict[str, dict[str, int]] = {}
    for topic, partition in sorted(newest := newest_by_partition(elements)):
        ends.setdefault(topic, {})[str(partition)] = newest[topic, partition].end
    lost = sum(one.lost for one in recorded_ranges(elements))
    return summary(elements, offsets=ends, **({"lost": lost} if lost else {}))
