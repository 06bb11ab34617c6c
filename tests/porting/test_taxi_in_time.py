"""The taxi exercises that need event time give Flink's results: an alert only after two hours, every hour once.

In memory at one row, at three rows, and with all rows in a micro-batch; `tests/testing` compares with Spark. The
watermark follows every element, as it does in Flink where an element is followed by its watermark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from state_engine import DataStream, StatefulJob, Time, Types
from state_engine.testing import KeyedHarness
from tests.porting.taxi import (
    BEGINNING,
    LATE_FARES,
    AlertFunction,
    HourlyMax,
    PseudoWindow,
    TaxiFare,
    TaxiRide,
    millis,
)
from tests.support.pipelines import MemoryPipeline

CUTS = [1, 3, None]


def at(minutes: int) -> datetime:
    return BEGINNING + timedelta(minutes=minutes)


def end_of(minutes: int) -> int:
    """The last millisecond of the hour that ends then."""
    return millis(at(minutes)) - 1


def rides(*events: tuple[int, bool, int]) -> list[TaxiRide]:
    return [TaxiRide(ride, start, at(minutes)) for ride, start, minutes in events]


def fares(*events: tuple[int, int, float]) -> list[TaxiFare]:
    return [TaxiFare(0, driver, at(minutes), tip) for driver, minutes, tip in events]


START, END = True, False
LONG_RIDES: dict[str, tuple[list[TaxiRide], list[int]]] = {
    "short": (rides((1, START, 0), (1, END, 1)), []),
    "end_first": (rides((1, END, 1), (1, START, 0)), []),
    "several": (
        rides(
            (1, START, 0), (2, START, 0), (3, START, 1), (4, START, 60), (4, END, 120), (2, END, 0), (3, END, 180)
        ),
        [1, 3],
    ),
    # another ride brings the watermark to the last millisecond of the two hours, and not beyond
    "exactly": (rides((1, START, 0), (2, START, 120), (1, END, 120), (2, END, 180)), []),
    "a_minute_more": (rides((1, START, 0), (2, START, 121), (1, END, 121), (2, END, 180)), [1]),
}  # fmt: skip
DELAY = timedelta(seconds=60)
DELAYS = {"exactly": timedelta(0)}

HOURS: dict[str, tuple[list[TaxiFare], list[tuple[int, int, float]], list[int]]] = {
    "one_tip": (fares((1, 0, 1.0)), [(end_of(60), 1, 1.0)], []),
    "sums": (fares((1, 0, 1.0), (1, 15, 5.0), (1, 90, 10.0)), [(end_of(60), 1, 6.0), (end_of(120), 1, 10.0)], []),
    "drivers": (
        fares((1, 0, 1.0), (1, 15, 5.0), (3, 70, 0.0), (4, 70, 0.0), (4, 80, 1.0), (1, 90, 10.0), (2, 90, 20.0),
              (5, 100, 10.0)),
        [(end_of(60), 1, 6.0), (end_of(120), 1, 10.0), (end_of(120), 2, 20.0), (end_of(120), 3, 0.0),
         (end_of(120), 4, 1.0), (end_of(120), 5, 10.0)],
        [],
    ),
    # the fare of minute 30 is late, behind the one of minute 61: its hour is out
    "late": (
        fares((1, 0, 1.0), (1, 61, 2.0), (1, 30, 4.0), (1, 125, 8.0)),
        [(end_of(60), 1, 1.0), (end_of(120), 1, 2.0), (end_of(180), 1, 8.0)],
        [millis(at(30))],
    ),
}  # fmt: skip
MAXIMA = {
    "one_tip": [(end_of(60), 1, 1.0)],
    "sums": [(end_of(60), 1, 6.0), (end_of(120), 1, 10.0)],
    "drivers": [(end_of(60), 1, 6.0), (end_of(120), 2, 20.0)],
    "late": HOURS["late"][1],
}
SUM = Types.TUPLE([Types.LONG(), Types.LONG(), Types.DOUBLE()])


def build(cut: int | None) -> Callable[[StatefulJob], dict[str, DataStream]]:
    def programs(job: StatefulJob) -> dict[str, DataStream]:
        streams: dict[str, DataStream] = {}
        for name, (given, _) in LONG_RIDES.items():
            streams[f"long_{name}"] = (
                job.from_collection(given, TaxiRide, name=f"rides_{name}", max_rows_per_batch=cut)
                .assign_timestamps_and_watermarks("event_time", DELAYS.get(name, DELAY))
                .key_by(lambda ride: ride.ride_id, Types.LONG())
                .process(AlertFunction(), Types.LONG(), uid=f"long rides: {name}")
            )
        for name, (fares_given, _, _) in HOURS.items():
            tips = (
                job.from_collection(fares_given, TaxiFare, name=f"fares_{name}", max_rows_per_batch=cut)
                .assign_timestamps_and_watermarks("start_time")
                .key_by(lambda fare: fare.driver_id, Types.LONG())
                .process(PseudoWindow(Time.hours(1)), SUM, uid=f"hourly tips: {name}")
            )
            streams[f"tips_{name}"] = tips
            streams[f"late_{name}"] = tips.get_side_output(LATE_FARES)
            streams[f"max_{name}"] = tips.key_by(lambda tip: tip[0], Types.LONG()).process(
                HourlyMax(), SUM, uid=f"hourly max: {name}"
            )
        return streams

    return programs


@pytest.mark.parametrize("cut", CUTS)
def test_rides_and_tips_in_memory(cut: int | None) -> None:
    with MemoryPipeline.of(build(cut), parallelism=2) as pipeline:
        pipeline.run(drain=True)
        outputs = {name: sorted(values) for name, values in pipeline.outputs().items()}
        expected: dict[str, Sequence[Any]] = {
            f"long_{name}": alerts for name, (_, alerts) in LONG_RIDES.items()
        }
        for name, (_, sums, late) in HOURS.items():
            expected |= {f"tips_{name}": sums, f"late_{name}": late, f"max_{name}": MAXIMA[name]}
        assert outputs == {name: values for name, values in expected.items() if values}


def test_a_ride_is_long_as_soon_as_the_watermark_says_so() -> None:
    harness = KeyedHarness(
        AlertFunction(), key_by=lambda r: r.ride_id, timestamp_of=lambda r: millis(r.event_time)
    )
    assert harness.process(rides((1, START, 0), (2, START, 180))) == []
    harness.set_watermark(millis(at(120)) - 1)
    assert harness.process([]) == []
    harness.set_watermark(millis(at(120)))
    assert harness.process([]) == [1]
    assert list(harness.state("ride event")) == [2]
