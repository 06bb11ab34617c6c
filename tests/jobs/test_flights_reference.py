"""The reference against the known facts of the data; comparisons with it rest on these tests."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from tests.jobs import reference


@pytest.fixture(scope="module")
def raw() -> pl.DataFrame:
    return reference.raw_flights()


@pytest.fixture(scope="module")
def flown(raw: pl.DataFrame) -> pl.DataFrame:
    return reference.departures(raw)


@pytest.fixture(scope="module")
def delays(flown: pl.DataFrame) -> pl.DataFrame:
    return reference.plane_delays(flown)


@pytest.fixture(scope="module")
def ranking(delays: pl.DataFrame) -> pl.DataFrame:
    return reference.route_ranking(delays)


def test_facts_of_the_rows(raw: pl.DataFrame, flown: pl.DataFrame) -> None:
    cancelled = raw.filter(pl.col("dep_time").is_null())
    assert raw.shape == (336_776, 19)
    assert (cancelled.height, cancelled["tailnum"].null_count()) == (8_255, 2_512)
    assert flown.height == 328_521
    assert flown["tailnum"].null_count() == 0
    assert flown["tailnum"].n_unique() == 4_037
    assert flown.select("origin", "dest").n_unique() == 223
    assert flown["arr_delay"].null_count() == 1_175
    assert set(flown["origin"]) == {"EWR", "JFK", "LGA"}


def test_the_total_order_is_total(flown: pl.DataFrame) -> None:
    assert not flown.select(reference.TOTAL_ORDER).is_duplicated().any()
    assert not flown.select("departed_at", "tailnum").is_duplicated().any()
    assert flown.select("departed_at", "origin", "dest").is_duplicated().any()


def test_slices_follow_the_clock_of_new_york(flown: pl.DataFrame) -> None:
    departed = pl.col("departed_at")
    assert flown.select(reference.new_york_date(departed).n_unique()).item() == 366
    months = flown.group_by(reference.new_york_month(departed).alias("month")).len().sort("month")
    assert months.height == 13
    assert months.row(-1) == ("2014-01", 3)


def test_every_column_by_a_plain_loop_over_some_aircraft(flown: pl.DataFrame, delays: pl.DataFrame) -> None:
    """Windows are easy to get subtly wrong; the busiest, and some rare, aircraft are redone by hand."""
    ranked = flown["tailnum"].value_counts().sort("count", "tailnum", descending=True)["tailnum"].to_list()
    for tailnum in [*ranked[:3], *ranked[1_000:4_037:500]]:
        expected = _by_hand(flown.filter(pl.col("tailnum") == tailnum).to_dicts())
        assert delays.filter(pl.col("tailnum") == tailnum).to_dicts() == expected


def _by_hand(flights: list[dict[str, Any]]) -> list[dict[str, Any]]:
    carried = ["departed_at", "carrier", "flight", "tailnum", "origin", "dest", "dep_delay", "arr_delay"]
    rows = []
    for i, flight in enumerate(flights):
        earlier = flights[:i]
        known = [f["arr_delay"] for f in earlier if f["arr_delay"] is not None]
        gap = flight["departed_at"] - earlier[-1]["departed_at"] if earlier else None
        rows.append(
            {
                **{column: flight[column] for column in carried},
                "carried_over": earlier[-1]["arr_delay"] if earlier else None,
                "minutes_since_previous_departure": int(gap.total_seconds()) // 60
                if gap is not None
                else None,
                "flights_so_far": i + 1,
                "airports_so_far": len({f[end] for f in flights[: i + 1] for end in ("origin", "dest")}),
                "worst_of_last_5": max(known[-5:], default=None),
            }
        )
    return rows


def test_route_totals_by_a_plain_loop_over_some_routes(delays: pl.DataFrame, ranking: pl.DataFrame) -> None:
    diverted_first = ranking.filter((pl.col("flights") == 1) & (pl.col("arrived") == 0)).row(0, named=True)
    for origin, dest in [("EWR", "TYS"), ("JFK", "LAX"), (diverted_first["origin"], diverted_first["dest"])]:
        here = (pl.col("origin") == origin) & (pl.col("dest") == dest)
        running, expected = {"flights": 0, "arrived": 0, "total_arr_delay": 0, "inherited": 0}, []
        worst = None
        for row in delays.filter(here).iter_rows(named=True):
            running["flights"] += 1
            if row["arr_delay"] is not None:
                running["arrived"] += 1
                running["total_arr_delay"] += row["arr_delay"]
                worst = row["arr_delay"] if worst is None else max(worst, row["arr_delay"])
            running["inherited"] += (row["carried_over"] or 0) >= 15 and (row["dep_delay"] or 0) >= 15
            mean = running["total_arr_delay"] / running["arrived"] if running["arrived"] else None
            expected.append({**running, "worst_arr_delay": worst, "mean_arr_delay": mean})
        columns = list(expected[0])
        assert ranking.filter(here).select(columns).to_dicts() == expected
