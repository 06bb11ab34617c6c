"""Orders and their payments within an hour; an order without one comes out when none can come any more."""

from __future__ import annotations

from examples.operators.drawing import at, spans
from state_engine import DeltaSink, FileSource, StatefulJob
from state_engine.testing import run_in_memory

ORDERS = [(1, at("09:00")), (2, at("09:10")), (3, at("09:30"))]
PAYMENTS = [(3, at("09:50")), (1, at("09:20")), (2, at("10:30"))]  # the last one is too late for its order


def build() -> StatefulJob:
    """The job."""
    job = StatefulJob("orders")
    orders = job.source(
        "orders",
        FileSource("orders", schema="id int, at timestamp"),
        event_time="at",
        max_out_of_orderness="1 h",
    )
    payments = job.source(
        "payments",
        FileSource("payments", schema="id int, at timestamp"),
        event_time="at",
        max_out_of_orderness="1 h",
    )
    paid = orders.key_by("id").join(
        payments.key_by("id"), within=(0, "1 h"), how="left", take=["at"], right="_paid", uid="paid"
    )
    paid.sink("paid", DeltaSink("paid"))
    return job


def main() -> list[str]:
    """Run it to the end of its input, and draw each order until its payment."""
    with run_in_memory(build()) as run:
        run.process({"orders": ORDERS, "payments": PAYMENTS})
        run.process(drain=True)
        orders = {
            f"order {row.id}": [(row.at, row.at_paid or at("10:45"), "paid" if row.at_paid else "unpaid")]
            for row in sorted(run.sink("paid"), key=lambda row: row.id)
        }
    return spans(orders, at("09:00"), at("11:00"))


if __name__ == "__main__":
    print(*main(), sep="\n")
