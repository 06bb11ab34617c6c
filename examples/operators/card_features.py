"""Features of payments by card, and a rule: sums of the last hour, day and 30 days, for each payment at once."""

from __future__ import annotations

from examples.operators.drawing import at, bars
from state_engine import DeltaSink, FileSource, StatefulJob, count, sum_
from state_engine.testing import run_in_memory

PAYMENTS = [
    ("c1", cents, at(clock, day))
    for day, clock, cents in [
        (0, "10:00", 2000), (9, "12:00", 1500), (20, "20:00", 900), (20, "20:04", 700), (20, "20:07", 1100),
        (20, "20:11", 9000),
    ]
]  # fmt: skip


def build() -> StatefulJob:
    """The job; tiles keep some tens of sums a card, and not all payments of 30 days."""
    job = StatefulJob("cards")
    source = FileSource("payments", schema="card string, cents bigint, at timestamp")
    payments = job.source("payments", source, event_time="at", max_out_of_orderness="1 h")
    features = payments.key_by("card").over(
        spent=sum_("cents", last=["1 h", "1 day", "30 days"]), n=count(last="1 h"),
        tile="5 min", emit="at_once", uid="features",
    )  # fmt: skip
    features.sink("features", DeltaSink("features"))
    suspicious = features.filter(lambda row: row.n >= 4 and row.spent_1h > row.spent_30days // 2)
    suspicious.sink("suspicious", DeltaSink("suspicious"))
    return job


def main() -> list[str]:
    """Run it, and draw what each payment made of the last hour."""
    with run_in_memory(build()) as run:
        run.process({"payments": PAYMENTS})
        lines = bars({f"{row.at:%d. %H:%M}": row.spent_1h for row in run.sink("features")})
        return [*lines, *(f"suspicious: {row.card} at {row.at:%H:%M}" for row in run.sink("suspicious"))]


if __name__ == "__main__":
    print(*main(), sep="\n")
