"""``WatermarkStrategy``: event times from functions and from columns of numbers, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pytest

from state_engine import (
    DataStream,
    Duration,
    MapFunction,
    OutputTag,
    Row,
    RuntimeContext,
    StatefulJob,
    TimestampAssigner,
    WatermarkStrategy,
)
from state_engine.core.errors import ConfigurationError
from state_engine.core.time.watermark_strategy import TimestampColumn, checked_timestamp, epoch_milliseconds
from state_engine.job.code_version import code_of

bounded = WatermarkStrategy.for_bounded_out_of_orderness


@dataclass(frozen=True)
class Place:
    k: str
    at: int

    def at_ms(self) -> int:
        return self.at * 1_000


class Second(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value[1]) + record_timestamp


def test_a_strategy_is_as_late_as_declared() -> None:
    assert WatermarkStrategy.for_monotonous_timestamps().out_of_orderness_ms == 0
    for span in (Duration.of_seconds(3), timedelta(seconds=3), 3_000):
        assert bounded(span).out_of_orderness_ms == 3_000
    with pytest.raises(ConfigurationError, match="must not be negative"):
        bounded(-1)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (Second(), 10),
        (itemgetter(1), 7),
        (lambda v: v[1], 7),
        (lambda v, own: v[1] + own, 10),
        (lambda v, unit=2: v[1] * unit, 14),
    ],
)
def test_an_assigner_is_a_class_or_a_callable_of_one_or_two(given: Any, expected: int) -> None:
    assigner = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(given).timestamps
    assert isinstance(assigner, TimestampAssigner)
    assert assigner.extract_timestamp(("a", 7), 3) == expected


@pytest.mark.parametrize("given", ["at", 5, Second])
def test_what_is_no_assigner_is_refused(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="takes a TimestampAssigner or a callable"):
        bounded(0).with_timestamp_assigner(given)


@pytest.mark.parametrize("given", [None, 1.5, True, "7", 2**63, -(2**63)])
def test_what_is_no_time_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="it gave"):
        checked_timestamp(given)


@pytest.mark.parametrize(
    ("unit", "numbers", "kind", "expected"),
    [
        ("s", [1, -1, None], pa.int32(), [1_000, -1_000, None]),
        ("ms", [1, -1, None], pa.int64(), [1, -1, None]),
        ("us", [1_999, -1], pa.int64(), [1, -1]),  # rounded down, before 1970 too
        ("ns", [1_999_999, -1], pa.int64(), [1, -1]),
        ("s", [1.001, 1_700_000_000.123, -0.0005, None], pa.float64(), [1_001, 1_700_000_000_123, -1, None]),
        ("ms", [1.9], pa.float32(), [1]),
        ("ns", [1_500_000.0], pa.float64(), [1]),
        ("s", [Decimal("1.0019"), None], pa.decimal128(12, 4), [1_001, None]),
        ("us", [Decimal("-1.0")], pa.decimal128(12, 1), [-1]),
        ("us", [1_500.0, -1.0], pa.float64(), [1, -1]),
        ("ns", [Decimal("1500000.0"), Decimal("-1")], pa.decimal128(12, 1), [1, -1]),
        ("ms", [Decimal("1.9")], pa.decimal128(12, 1), [1]),
    ],
)
def test_numbers_are_read_in_their_unit(
    unit: str, numbers: list[Any], kind: pa.DataType, expected: list[Any]
) -> None:
    times, wrong = epoch_milliseconds(pa.array(numbers, kind), unit)
    assert times.to_pylist() == expected
    assert not any(wrong.to_pylist())


def test_numbers_that_are_no_time_are_named() -> None:
    times, wrong = epoch_milliseconds(pa.array([2**62, None, 5]), "s")
    assert (times.to_pylist(), wrong.to_pylist()) == ([None, None, 5_000], [True, False, False])
    times, wrong = epoch_milliseconds(pa.array([float("nan"), float("inf"), 1e300, 1.0]), "s")
    assert (times.to_pylist(), wrong.to_pylist()) == ([None, None, None, 1_000], [True, True, True, False])
    times, wrong = epoch_milliseconds(pa.array([Decimal(10) ** 30], pa.decimal128(38, 0)), "s")
    assert (times.to_pylist(), wrong.to_pylist()) == ([None], [True])
    with pytest.raises(ConfigurationError, match="must hold numbers, and holds string"):
        epoch_milliseconds(pa.array(["1"]), "s")


def test_a_unit_and_a_name_are_checked() -> None:
    with pytest.raises(ConfigurationError, match="unit must be one of"):
        bounded(0).with_timestamp_column("at", "seconds")
    with pytest.raises(ConfigurationError, match="takes the name of a column"):
        bounded(0).with_timestamp_column("", "s")


def test_idleness() -> None:
    strategy = bounded(5).with_idleness(Duration.of_minutes(1))
    assert (strategy.idleness_ms, strategy.out_of_orderness_ms) == (60_000, 5)
    with pytest.raises(ConfigurationError, match="a time above zero"):
        bounded(5).with_idleness(0)


# -- in a job ----------------------------------------------------------------------------------------------------------


def events(job: StatefulJob, **options: Any) -> DataStream:
    return job.from_collection([("a", 1)], "k string, at bigint", name="events", **options)


def test_a_source_takes_its_strategy_and_its_columns_are_the_same() -> None:
    job, assigner = StatefulJob("timed"), Second()
    events(job).assign_timestamps_and_watermarks(bounded(7).with_timestamp_assigner(assigner))
    node = job.sources["events"]
    assert (node.timed, node.event_time, node.timestamps, node.max_out_of_orderness_ms) == (
        True, None, assigner, 7,
    )  # fmt: skip
    assert assigner in list(code_of(job))


def test_the_last_declaration_counts() -> None:
    job = StatefulJob("timed")
    stream = events(job).assign_timestamps_and_watermarks(bounded(7).with_timestamp_column("at", "s"))
    assert job.sources["events"].timestamps == TimestampColumn("at", "s")
    stream.assign_timestamps_and_watermarks("at", 5)
    node = job.sources["events"]
    assert (node.event_time, node.timestamps, node.max_out_of_orderness_ms) == ("at", None, 5)
    stream.assign_timestamps_and_watermarks(bounded(3))  # of the column that the source names
    assert (node.event_time, node.timestamps, node.max_out_of_orderness_ms) == ("at", None, 3)


class Opened(MapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.there = True

    def map(self, value: Any) -> Any:
        return value


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda s: s.key_by("k"), "comes before key_by and broadcast"),
        (lambda s: s.broadcast(), "comes before key_by and broadcast"),
        (lambda s: s.transform(lambda f: f), r"behind a transform\. Name the column .*'column'"),
        (lambda s: s.union(s), "behind a union. Give each of its sources"),
        (lambda s: s.map(Opened(), "k string"), r"need no open\(\); .* the operator 'map_\w+'"),
        (lambda s: s.flat_map(lambda v: [v], "k string", uid="many"), "operator 'many', which may .* multiply"),
        (lambda s: s.key_by("k").map(lambda v: v, "k string", uid="keyed"), "operator 'keyed'"),
        (lambda s: s.broadcast().map(lambda v: v, "k string", uid="all"), "operator 'all'"),
        (lambda s: s.map(lambda v: v, "k string", uid="m").get_side_output(OutputTag("t", str)), "a side output"),
    ],
)  # fmt: skip
def test_a_strategy_behind_other_steps_is_refused_with_what_to_do(step: Any, message: str) -> None:
    stream = step(events(StatefulJob("timed")))
    with pytest.raises(ConfigurationError, match=message):
        stream.assign_timestamps_and_watermarks(bounded(0).with_timestamp_assigner(lambda v: 1))


def test_a_strategy_behind_maps_and_filters_is_the_sources() -> None:
    """Each element has the time of what becomes of it; one that is filtered out has none, and is no error."""
    job = StatefulJob("timed")
    stream = (
        job.from_collection([], "text string", name="events")
        .map(lambda row: (row.text[0], int(row.text[2:])), "k string, at float")
        .filter(lambda row: row.k != "x")
        .map(lambda row: Place(row.k, int(row.at)), Place)
        .assign_timestamps_and_watermarks(bounded(7).with_timestamp_assigner(Place.at_ms))
    )
    node = job.sources["events"]
    assert (node.timed, node.max_out_of_orderness_ms) == (True, 7)
    assert isinstance(node.timestamps, TimestampAssigner)
    give = node.timestamps.extract_timestamp
    assert checked_timestamp(give(Row(text="a,12"), 5)) == 12_000
    assert checked_timestamp(give(Row(text="x,12"), 5)) is None
    with pytest.raises(ValueError, match="invalid literal"):
        give(Row(text="a,"), 5)
    assert node.timestamps in list(code_of(job))
    stream.assign_timestamps_and_watermarks(bounded(9).with_timestamp_assigner(lambda place: 1))
    assert node.max_out_of_orderness_ms == 9  # the last declaration counts, on the same way


def test_a_source_has_one_event_time() -> None:
    job = StatefulJob("timed")
    stream, strategy = events(job), bounded(0).with_timestamp_assigner(lambda row: row.at)
    stream.filter(lambda row: row.at > 0).assign_timestamps_and_watermarks(strategy)
    with pytest.raises(ConfigurationError, match="source 'events': another stream of it has a"):
        stream.filter(lambda row: row.at < 0).assign_timestamps_and_watermarks(strategy)
    with pytest.raises(ConfigurationError, match=r"behind a map or filter .* needs with_timestamp_assigner"):
        stream.filter(lambda row: row.at > 0).assign_timestamps_and_watermarks(
            bounded(0).with_timestamp_column("at", "s")
        )


def test_what_gives_no_times_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="source 'events': nothing gives its elements event times"):
        events(StatefulJob("timed")).assign_timestamps_and_watermarks(bounded(0))
    with pytest.raises(ConfigurationError, match="takes a WatermarkStrategy or the name of a column"):
        events(StatefulJob("timed")).assign_timestamps_and_watermarks(5)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="a WatermarkStrategy has its own"):
        events(StatefulJob("timed")).assign_timestamps_and_watermarks(bounded(0), 5)
