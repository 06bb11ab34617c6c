"""Ranges of offsets: what is new behind a position, what is lost, and how ranges are cut; without a broker."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_engine.core.errors import SourceError
from state_engine.sources.kafka.offset_ranges import (
    BEGUN,
    OffsetRange,
    Offsets,
    cut,
    left_over,
    position_summary,
    recorded_ranges,
)
from state_engine.spark.kafka.clients import Topic

TOPIC = Topic("t", "id", (0,))
PLACE = ("t", 0)


def there(begin: int, end: int, topic: Topic = TOPIC) -> Offsets:
    return Offsets({PLACE: topic}, {PLACE: begin}, {PLACE: end})


def one(start: int, end: int, *, partition: int = 0, topic_id: str = "id") -> OffsetRange:
    return OffsetRange("t", partition, topic_id, start, end)


@pytest.mark.parametrize(
    ("offsets", "start", "end", "lost"),
    [
        (there(0, 9), 5, 9, 0),
        (there(5, 5), 5, 5, 0),
        (there(7, 9), 7, 9, 2),
        (there(0, 3), 3, 3, 2),
        (there(2, 4, Topic("t", "another", (0,))), 2, 4, 0),
    ],
)
def test_what_comes_after_a_position(offsets: Offsets, start: int, end: int, lost: int) -> None:
    after, why = offsets.after(one(0, 5))
    assert (after.start, after.end, after.lost) == (start, end, lost)
    assert bool(why) == (lost > 0 or after.topic_id == "another")


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=6), st.integers(1, 60))
def test_cuts_are_full_and_come_to_the_end(sizes: list[tuple[int, int]], limit: int) -> None:
    wanted = [one(start, start + size, partition=p) for p, (start, size) in enumerate(sizes)]
    total, position = sum(r.size for r in wanted), wanted
    for _ in range(total + 1):
        part = cut(position, limit)
        assert sum(r.size for r in part) == min(limit, sum(r.size for r in position))
        assert [r.start for r in part] == [r.start for r in position]
        position = [
            one(done.end, whole.end, partition=whole.partition)
            for done, whole in zip(part, position, strict=True)
        ]
        if not any(r.size for r in position):
            break
    assert not any(r.size for r in position)


def test_what_is_left_of_what_was_recorded() -> None:
    recorded = [one(0, 3).element(), one(0, 2, partition=1).element(), one(3, 9).element()]
    assert left_over([], recorded) == [one(0, 9), one(0, 2, partition=1)]
    assert left_over(recorded[:2], recorded) == [one(3, 9)]
    assert left_over(recorded, recorded) == []
    with pytest.raises(SourceError, match=r"recreated.*rebatch=False"):
        left_over([], [*recorded, one(0, 1, topic_id="another").element()])


def test_ranges_are_read_again_as_they_were_only() -> None:
    there(0, 9).check_there([one(0, 9), one(4, 4)])
    with pytest.raises(SourceError, match="has offsets 1 to 9, and 0 to 9 are wanted"):
        there(1, 9).check_there([one(0, 9)])
    with pytest.raises(SourceError, match="is gone, or was recreated"):
        there(0, 9).check_there([one(0, 9, topic_id="another")])


def test_a_position_is_shown_by_topic_and_partition() -> None:
    elements = [{"split": BEGUN, "position": {}}, one(0, 3).element(), one(5, 9).element()]
    assert json.loads(position_summary(elements))["offsets"] == {"t": {"0": 9}}
    assert recorded_ranges(elements) == [one(0, 3), one(5, 9)]
