"""Event times that a strategy gives the rows of a source, where the driver has them, and where tasks read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from state_engine import StatefulJob, TimestampAssigner, Types, WatermarkStrategy
from state_engine.core.errors import ConfigurationError
from state_engine.core.types.timestamps import MIN_TIMESTAMP
from state_engine.job.graph import SourceNode
from state_engine.microbatch.routing.assigned_time import with_assigned_time, with_missing_times
from state_engine.sources.base import FILE_COLUMN, ROW_COLUMN, SourceFrame
from state_engine.sources.frames import EVENT_TIME, TIME_REFUSAL, StreamFrame, from_source
from state_engine.sources.rows import TaskRows

PLACES = {FILE_COLUMN: pa.array([0, 0, 0], pa.int32()), ROW_COLUMN: pa.array([0, 1, 2], pa.int64())}
Assigns = Callable[..., Any]


class Ride(NamedTuple):
    """A class of the user's, with a method."""

    taxi: str
    at: int

    def at_ms(self) -> int:
        return self.at * 1_000


@dataclass(frozen=True)
class Fare:
    """A dataclass with a method."""

    taxi: str
    at: int

    def at_ms(self) -> int:
        return self.at * 1_000


def read(node: SourceNode, columns: dict[str, pa.Array], *, remembers: bool = False) -> StreamFrame:
    """Three rows of a source with their event times, which are the same whoever reads the rows."""
    table = pa.table({**columns, **PLACES})
    frame = _timed(node, table)
    by_tasks = _timed(node, TaskRows(table.schema, 3, partial(_row, table)))
    given = by_tasks.given
    assert isinstance(given, TaskRows)
    read_there = cloudpickle.loads(cloudpickle.dumps(given.read))
    batches = [batch for task in range(3) for batch in read_there(task, given.schema.names)]
    together = pa.Table.from_batches(batches, given.schema).combine_chunks()
    assert by_tasks.with_rows(together) == frame.with_rows(together)
    if not remembers:
        assert together.equals(frame.table)
    (only,) = read_there(1, given.schema.names[-1:])
    assert only.schema.names == given.schema.names[-1:]
    return frame


def _timed(node: SourceNode, rows: pa.Table | TaskRows) -> StreamFrame:
    no_session: Any = None
    frame = from_source(
        no_session,
        SourceFrame(rows),
        order_by=node.order_by,
        event_time=node.event_time,
        source=node.name,
        labels=(),
    )
    return frame if node.timestamps is None else with_assigned_time(frame, node)


def _row(table: pa.Table, task: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    yield from table.slice(task, 1).select(list(columns)).to_batches()


def times(frame: StreamFrame) -> list[int | None]:
    assert frame.table is not None
    times_ms: list[int | None] = frame.table[EVENT_TIME].to_pylist()
    return times_ms


def reasons(frame: StreamFrame) -> list[str | None]:
    assert frame.table is not None
    refusals: list[str | None] = frame.table[TIME_REFUSAL].to_pylist()
    return refusals


def source(kind: Any, assign: TimestampAssigner | Assigns, **options: Any) -> SourceNode:
    job = StatefulJob("timed")
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(assign)
    job.from_collection([], kind, name="rides", **options).assign_timestamps_and_watermarks(strategy)
    return job.sources["rides"]


TWO = {"taxi": pa.array(["a", "b", "c"]), "at": pa.array([7, 3, 5], pa.int64())}


@pytest.mark.parametrize("kind", [Ride, Fare])
def test_an_assigner_gets_what_its_stream_declares(kind: Any) -> None:
    assert times(read(source(kind, lambda value: value.at_ms()), TWO)) == [7_000, 3_000, 5_000]


def test_records_scalars_and_pickles() -> None:
    tuples = {"f0": TWO["taxi"], "f1": TWO["at"]}
    pairs = Types.TUPLE([Types.STRING(), Types.LONG()])
    assert times(read(source(pairs, lambda v: v[1] if type(v) is tuple else -1), tuples)) == [7, 3, 5]
    assert times(read(source("taxi string, at bigint", lambda v: v.at), TWO)) == [7, 3, 5]
    assert times(read(source(int, lambda v: v + 1), {"value": TWO["at"]})) == [8, 4, 6]
    pickled = Types.PICKLED_BYTE_ARRAY(allow_pickle=True)
    packed = pickled.to_arrow([frozenset({7}), frozenset({3}), frozenset({5})], storage=False)
    assert times(read(source(pickled, max), {"value": packed})) == [7, 3, 5]


def test_each_element_has_its_own_time_and_elements_stay_as_they_are() -> None:
    """The times are not those of the newest row, and no state is left for the next batch."""
    calls: list[Any] = []

    def assign(value: Any) -> int:
        calls.append(value)
        return int(value.at) + len(calls)

    node = source(Ride, assign)
    for _ in range(2):
        frame = read(node, TWO, remembers=True)
        assert times(frame) == [8, 5, 8]
        assert frame.user_columns == ["taxi", "at"]
        assert frame.table is not None
        assert frame.table.select(["taxi", "at"]).to_pydict() == {"taxi": ["a", "b", "c"], "at": [7, 3, 5]}
    assert calls == []


def test_the_sources_own_time_is_handed_on() -> None:
    own = pa.array([1_000, None, 3_000], pa.timestamp("ms")).cast(pa.timestamp("us"))
    columns = {**TWO, "seen": own}
    seen = source(
        "taxi string, at bigint, seen timestamp_ntz",
        lambda value, own_ms: 0 if own_ms == MIN_TIMESTAMP else own_ms + value.at,
        event_time="seen",
        order_by=["seen"],
    )
    frame = read(seen, columns)
    assert times(frame) == [1_007, 0, 3_005]
    # the order begins with a column that is not the event time any more
    assert (frame.event_time, frame.timed_order, frame.origin) == (EVENT_TIME, False, "rides")
    without = source(Ride, lambda value, own_ms: value.at if own_ms == MIN_TIMESTAMP else -1)
    assert times(read(without, TWO)) == [7, 3, 5]


def test_a_row_that_the_assigner_fails_on_is_named_and_the_others_keep_their_times() -> None:
    def assign(value: Ride) -> Any:
        return {7: None, 3: 3, 5: 1 / (value.at - 5) if value.at == 5 else 0}[value.at]

    frame = read(source(Ride, assign), TWO)
    assert times(frame) == [None, 3, None]
    first, none, last = reasons(frame)
    assert "the timestamp assigner: ValueError: it gave None, of type NoneType" in str(first)
    assert none is None
    assert "ZeroDivisionError" in str(last)


def test_text_that_is_not_utf8_is_left_to_the_subtask() -> None:
    """Python cannot decode the row; the rows around it have their own times."""
    text = pa.Array.from_buffers(
        pa.string(), 3, [None, pa.array([0, 1, 2, 3], pa.int32()).buffers()[1], pa.py_buffer(b"a\xffc")]
    )
    frame = read(source(Ride, lambda value: value.at), {**TWO, "taxi": text})
    assert times(frame) == [7, None, 5]
    assert reasons(frame) == [None, None, None]


@pytest.mark.parametrize(
    ("unit", "numbers", "expected", "wrong"),
    [
        ("s", pa.array([7, None, 2**62]), [7_000, None, None], [False, False, True]),
        ("us", pa.array([1.5e3, None, float("inf")]), [1, None, None], [False, False, True]),
        ("ms", pa.array([7, 3, 5], pa.int32()), [7, 3, 5], [False] * 3),
    ],
)
def test_a_column_of_numbers(unit: str, numbers: pa.Array, expected: list[Any], wrong: list[bool]) -> None:
    """A null is no time, and no error; a number that cannot be one is."""
    job = StatefulJob("timed")
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("at", unit)
    job.from_collection([], "taxi string, at double", name="rides").assign_timestamps_and_watermarks(strategy)
    frame = read(job.sources["rides"], {**TWO, "at": numbers})
    assert times(frame) == expected
    assert [why is not None for why in reasons(frame)] == wrong
    assert all(f"the column 'at' is not a time in {unit}" in why for why in reasons(frame) if why is not None)


def test_a_column_that_holds_no_numbers_is_refused() -> None:
    job = StatefulJob("timed")
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("taxi", "s")
    job.from_collection([], Ride, name="rides").assign_timestamps_and_watermarks(strategy)
    with pytest.raises(ConfigurationError, match=r"source 'rides': with_timestamp_column\('taxi'.*holds"):
        read(job.sources["rides"], TWO)


def test_without_a_strategy_the_frame_is_the_same() -> None:
    job = StatefulJob("timed")
    job.from_collection([], Ride, name="rides")
    frame = read(job.sources["rides"], TWO)
    assert frame.event_time is None
    assert EVENT_TIME not in frame.schema.names


def test_only_times_that_are_missing_are_asked_for_again() -> None:
    """Dead letters that are sent again: other rows keep their times, and rows with a time have no reason left."""
    node = source(Ride, lambda value: 1 // (value.at - 5) + value.at_ms())
    frame = read(node, TWO)
    assert times(frame) == [7_000, 2_999, None]
    assert frame.table is not None
    known = pa.array([1, None, None], pa.int64())
    table = frame.table.drop_columns([EVENT_TIME, TIME_REFUSAL]).append_column(EVENT_TIME, known)
    completed = with_missing_times(frame.with_rows(table), node)
    assert times(completed) == [1, 2_999, None]
    assert [why is None for why in reasons(completed)] == [True, True, False]
    without = replace(node, timestamps=None)
    assert with_missing_times(frame, without) is frame
