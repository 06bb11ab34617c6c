"""The taxi exercises of Flink's training, written as a PyFlink user would: only imports and wiring are of this engine.

Ride cleansing, rides and fares, long ride alerts, hourly tips. Records are dataclasses, with an event time in
milliseconds beside the instant that Flink's have.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from state_engine import (
    CoFlatMapFunction,
    FilterFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    OutputTag,
    RuntimeContext,
    Time,
    Types,
    ValueStateDescriptor,
)

BEGINNING = datetime(2020, 1, 1, 12, tzinfo=UTC)
PENN_STATION = (-73.9947, 40.750626)
NORTH_POLE = (0.0, 90.0)


def millis(at: datetime) -> int:
    return round(at.timestamp() * 1000)


@dataclass(frozen=True)
class TaxiRide:
    ride_id: int
    is_start: bool
    event_time: datetime
    start_lon: float = 0.0
    start_lat: float = 0.0
    end_lon: float = 0.0
    end_lat: float = 0.0


@dataclass(frozen=True)
class TaxiFare:
    ride_id: int
    driver_id: int
    start_time: datetime
    tip: float = 0.0


def in_nyc(lon: float, lat: float) -> bool:
    """Whether a place lies in the box that the exercises take for New York."""
    return -74.05 <= lon <= -73.7 and 40.5 <= lat <= 41.0


class NYCFilter(FilterFunction):
    """Ride cleansing: keeps rides that begin and end in New York."""

    def filter(self, value: Any) -> bool:
        return in_nyc(value.start_lon, value.start_lat) and in_nyc(value.end_lon, value.end_lat)


class EnrichmentFunction(CoFlatMapFunction):
    """Rides and fares: whichever comes first waits in state for the other of its ride."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.ride = runtime_context.get_state(ValueStateDescriptor("saved ride", TaxiRide))
        self.fare = runtime_context.get_state(ValueStateDescriptor("saved fare", TaxiFare))

    def flat_map1(self, value: Any) -> Iterable[Any]:
        fare = self.fare.value()
        if fare is None:
            self.ride.update(value)
        else:
            self.fare.clear()
            yield value.ride_id, fare.tip

    def flat_map2(self, value: Any) -> Iterable[Any]:
        ride = self.ride.value()
        if ride is None:
            self.fare.update(value)
        else:
            self.ride.clear()
            yield ride.ride_id, value.tip


class AlertFunction(KeyedProcessFunction):
    """Long ride alerts: the id of every ride that lasts more than two hours, as soon as that is certain."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.first = runtime_context.get_state(ValueStateDescriptor("ride event", TaxiRide))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        first = self.first.value()
        if first is None:
            self.first.update(value)
            if value.is_start:
                ctx.timer_service().register_event_time_timer(self.timer_of(value))
            return
        if not value.is_start:
            ctx.timer_service().delete_event_time_timer(self.timer_of(first))
        start, end = (value, first) if value.is_start else (first, value)
        if end.event_time - start.event_time > timedelta(hours=2):
            yield value.ride_id
        self.first.clear()

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        yield self.first.value().ride_id
        self.first.clear()

    @staticmethod
    def timer_of(ride: Any) -> int:
        return millis(ride.event_time + timedelta(hours=2))


LATE_FARES = OutputTag("lateFares", Types.LONG())


class PseudoWindow(KeyedProcessFunction):
    """Hourly tips: sums per driver and hour, by a timer at the last millisecond of the hour."""

    def __init__(self, duration: Time) -> None:
        self.duration_ms = duration.to_milliseconds()

    def open(self, runtime_context: RuntimeContext) -> None:
        self.sums = runtime_context.get_map_state(
            MapStateDescriptor("sumOfTips", Types.LONG(), Types.DOUBLE())
        )

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        event_time, timers = millis(value.start_time), ctx.timer_service()
        if event_time <= timers.current_watermark():
            yield LATE_FARES, event_time  # its hour has been published
            return
        end = event_time - event_time % self.duration_ms + self.duration_ms - 1
        timers.register_event_time_timer(end)
        self.sums.put(end, (self.sums.get(end) or 0.0) + value.tip)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        yield timestamp, ctx.get_current_key(), self.sums.get(timestamp)
        self.sums.remove(timestamp)


class HourlyMax(KeyedProcessFunction):
    """The driver with the most tips of an hour; in Flink ``window_all(...).max_by(2)``."""

    def open(self, runtime_context: RuntimeContext) -> None:
        best = ValueStateDescriptor("best", Types.TUPLE([Types.LONG(), Types.LONG(), Types.DOUBLE()]))
        self.best = runtime_context.get_state(best)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        best = self.best.value()
        if best is None or value[2] > best[2]:
            self.best.update(tuple(value))
        ctx.timer_service().register_event_time_timer(value[0])

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        yield self.best.value()
        self.best.clear()
