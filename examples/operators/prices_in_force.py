"""Trades at the price in force: the newest one that is not newer than the trade, and not older than a day."""

from __future__ import annotations

from examples.operators.drawing import at, bars
from state_engine import DeltaSink, FileSource, StatefulJob
from state_engine.testing import run_in_memory

PRICES = [("tea", 5, at("09:00")), ("tea", 8, at("11:00")), ("jam", 3, at("08:00"))]
TRADES = [
    ("tea", 10, at("10:59")), ("tea", 10, at("11:00")),
    ("jam", 10, at("08:00", day=1)), ("jam", 10, at("08:01", day=1)),
]  # fmt: skip
"""The last one finds a price that is too old."""


def build() -> StatefulJob:
    """The job."""
    job = StatefulJob("trades")
    traded = FileSource("trades", schema="item string, n bigint, at timestamp")
    trades = job.source("trades", traded, event_time="at", max_out_of_orderness="1 h")
    priced = FileSource("prices", schema="item string, price bigint, at timestamp")
    prices = job.source("prices", priced, event_time="at", max_out_of_orderness="1 h")
    at_price = trades.key_by("item").join_asof(
        prices.key_by("item"), take=["price"], tolerance="1 day", uid="at price"
    )
    at_price.sink("at_price", DeltaSink("at_price"))
    return job


def main() -> list[str]:
    """Run it to the end of its input, and draw what each trade was worth."""
    with run_in_memory(build()) as run:
        run.process({"trades": TRADES, "prices": PRICES})
        run.process(drain=True)
        rows = sorted(run.sink("at_price"), key=lambda row: row.at)
        worth = {f"{row.item} {row.at:%d. %H:%M}": row.n * (row.price or 0) for row in rows}
    return bars(worth)


if __name__ == "__main__":
    print(*main(), sep="\n")
