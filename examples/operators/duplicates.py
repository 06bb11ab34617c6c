"""Payments that a queue delivered twice: each counts once within a week, however far apart its copies come."""

from __future__ import annotations

from examples.operators.drawing import at, bars
from state_engine import DeltaSink, FileSource, StatefulJob
from state_engine.testing import run_in_memory

PAYMENTS = [
    [("p1", 500, at("09:00")), ("p2", 200, at("09:01")), ("p1", 500, at("09:00"))],
    [("p2", 200, at("09:01")), ("p3", 300, at("09:30")), ("p1", 500, at("09:00", day=8))],
]
"""What each run finds: ids, cents and times. The last p1 is another payment, a week later."""


def build() -> StatefulJob:
    """The job."""
    job = StatefulJob("payments")
    source = FileSource("payments", schema="id string, cents bigint, at timestamp")
    payments = job.source("payments", source, event_time="at", max_out_of_orderness="1 h")
    payments.key_by("id").drop_duplicates(within="7 days", uid="once").sink("once", DeltaSink("once"))
    return job


def main() -> list[str]:
    """Run it, and draw what was paid by the table, and by the rows that came."""
    with run_in_memory(build()) as run:
        for payments in PAYMENTS:
            run.process({"payments": payments})
        once = sum(row.cents for row in run.sink("once"))
    return bars({"rows": sum(cents for rows in PAYMENTS for _, cents, _ in rows), "payments": once})


if __name__ == "__main__":
    print(*main(), sep="\n")
