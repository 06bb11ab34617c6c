"""Programs of Flink's documents and training give Flink's results, however their input is cut.

The inputs are those of the documents and of the training's own tests, where these have some. All programs are one job,
in memory at one row, at three rows, and with all rows in a micro-batch. `tests/testing` compares with Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from state_engine import DataStream, StatefulJob, Types
from state_engine.testing import KeyedHarness
from tests.porting.taxi import (
    BEGINNING,
    NORTH_POLE,
    PENN_STATION,
    EnrichmentFunction,
    NYCFilter,
    TaxiFare,
    TaxiRide,
)
from tests.porting.walkthroughs import FraudDetector, MatchFunction, Rule, StateMachineMapper
from tests.support.pipelines import MemoryPipeline

CUTS = [1, 3, None]


@dataclass(frozen=True)
class Transaction:
    account_id: int
    amount: float


@dataclass(frozen=True)
class Item:
    item: int
    color: str
    shape: str


# small and then large is fraud (3 and 4 of the first account), unless another transaction lies between (7, 8 and 9)
AMOUNTS = [13.01, 25.0, 0.09, 510.0, 102.62, 91.5, 0.02, 30.01, 701.83]
OTHERS = [0.99, 1.0, 501.0, 0.5, 500.0, 0.5, 0.4, 500.01, 500.01]
TRANSACTIONS = [
    Transaction(k, a) for pair in zip(AMOUNTS, OTHERS, strict=True) for k, a in enumerate(pair, 1)
]
FRAUDS = [1, 2]

EVENTS = [
    ("one", "a"), ("two", "c"), ("one", "b"), ("three", "a"), ("one", "e"), ("three", "c"), ("two", "d"), ("one", "g"),
    ("three", "b"), ("one", "e"), ("two", "g"), ("three", "e"), ("two", "c"), ("three", "a"), ("two", "b"), ("one", "a")
]  # fmt: skip
ALERTS = [("one", "Initial", "e"), ("three", "W", "c"), ("three", "Z", "a")]

RULES = [Rule("corners", "rectangle", "triangle"), Rule("again", "circle", "circle")]
SHAPES = [
    ("red", "rectangle"), ("blue", "triangle"), ("red", "circle"), ("red", "triangle"), ("red", "rectangle"),
    ("blue", "circle"), ("red", "rectangle"), ("red", "triangle"), ("red", "circle"), ("red", "circle"),
]  # fmt: skip
ITEMS = [Item(n, *shape) for n, shape in enumerate(SHAPES, 1)]
MATCHES = [f"MATCH: {a} - {b}" for a, b in ((1, 4), (5, 8), (7, 8), (3, 9), (9, 10))]

PLACES = [
    (PENN_STATION, NORTH_POLE),
    (NORTH_POLE, PENN_STATION),
    (PENN_STATION, PENN_STATION),
    (NORTH_POLE, NORTH_POLE),
]
TRIPS = [TaxiRide(n, True, BEGINNING, *start, *end) for n, (start, end) in enumerate(PLACES, 1)]

RIDES = [
    TaxiRide(n, start, BEGINNING)
    for n, start in ((1, True), (4, True), (5, False), (3, True), (2, True), (6, True))
]
FARES = [TaxiFare(n, n, BEGINNING, n / 2) for n in (2, 4, 1, 3, 5)]
ENRICHED = [(n, n / 2) for n in (1, 2, 3, 4)]


def build(cut: int | None) -> Callable[[StatefulJob], dict[str, DataStream]]:
    def programs(job: StatefulJob) -> dict[str, DataStream]:
        def given(name: str, elements: list[Any], kind: Any, *, at_once: bool = False) -> DataStream:
            return job.from_collection(elements, kind, name=name, max_rows_per_batch=None if at_once else cut)

        transactions = given("transactions", TRANSACTIONS, Transaction)
        events = given("events", EVENTS, Types.TUPLE([Types.STRING(), Types.STRING()]))
        items = given("items", ITEMS, Item)
        rules = given("rules", RULES, Rule, at_once=True).broadcast(MatchFunction().rules)
        rides, fares = given("rides", RIDES, TaxiRide), given("fares", FARES, TaxiFare)
        pair = Types.TUPLE([Types.LONG(), Types.DOUBLE()])
        return {
            "frauds": transactions.key_by(lambda t: t.account_id, Types.LONG())
            .process(FraudDetector(), Types.LONG())
            .uid("fraud-detector"),
            "alerts": events.key_by(lambda event: event[0], Types.STRING())
            .flat_map(StateMachineMapper(), Types.TUPLE([Types.STRING()] * 3))
            .uid("State machine"),
            "matches": items.key_by(lambda item: item.color, Types.STRING())
            .connect(rules)
            .process(MatchFunction(), Types.STRING())
            .uid("match rules"),
            "in_nyc": given("trips", TRIPS, TaxiRide)
            .filter(NYCFilter())
            .map(lambda r: r.ride_id, Types.LONG()),
            "enriched": rides.filter(lambda ride: ride.is_start)
            .key_by(lambda ride: ride.ride_id, Types.LONG())
            .connect(fares.key_by(lambda fare: fare.ride_id, Types.LONG()))
            .flat_map(EnrichmentFunction(), pair)
            .uid("enrichment"),
        }

    return programs


@pytest.mark.parametrize("cut", CUTS)
def test_programs_in_memory(cut: int | None) -> None:
    with MemoryPipeline.of(build(cut), parallelism=2) as pipeline:
        pipeline.run(clock=0)  # the fraud detector's minute goes by no wall clock
        assert {name: sorted(values) for name, values in pipeline.outputs().items()} == {
            "frauds": FRAUDS,
            "alerts": ALERTS,
            "matches": sorted(MATCHES),
            "in_nyc": [3],
            "enriched": ENRICHED,
        }
        assert pipeline.state("State machine", "state") == [("one", "W"), ("three", "Z"), ("two", "Y")]
        assert [key for key, *_ in pipeline.state("enrichment", "saved ride")] == [6]
        assert [key for key, *_ in pipeline.state("enrichment", "saved fare")] == [5]


def test_the_flag_of_the_fraud_detector_goes_after_a_minute() -> None:
    small, large = Transaction(1, 0.5), Transaction(1, 600.0)
    harness = KeyedHarness(FraudDetector(), key_by=lambda t: t.account_id)
    harness.process([small])
    harness.set_clock(59_999)
    assert harness.process([large]) == [1]
    assert harness.state("timer-state") == {}
    harness.process([small])
    harness.set_clock(59_999 + 60_000)
    assert harness.process([large]) == []
    assert harness.state("flag") == {}


def test_a_ride_waits_for_its_fare_and_leaves_nothing() -> None:
    ride, fare = TaxiRide(1, True, BEGINNING), TaxiFare(1, 1, BEGINNING + timedelta(minutes=1), 2.5)
    for first, second in (((1, ride), (2, fare)), ((2, fare), (1, ride))):
        harness = KeyedHarness(EnrichmentFunction(), key_by=(lambda r: r.ride_id, lambda f: f.ride_id))
        assert harness.process_pairs([first]) == []
        assert len(harness.state("saved ride")) + len(harness.state("saved fare")) == 1
        assert harness.process_pairs([second]) == [(1, 2.5)]
        assert harness.state("saved ride") == harness.state("saved fare") == {}
