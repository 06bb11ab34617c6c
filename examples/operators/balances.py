"""Balances of accounts, with an alert where one is overdrawn: a function with state of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from examples.operators.drawing import bars
from state_engine import (
    DeltaSink,
    FileSource,
    KeyedProcessFunction,
    OutputTag,
    RuntimeContext,
    StatefulJob,
    ValueStateDescriptor,
)
from state_engine.testing import run_in_memory

ALERTS = OutputTag("alerts", "account string, balance bigint")
BOOKINGS = [("rent", 900), ("food", 100), ("rent", -700), ("food", -150), ("rent", -50), ("food", 80)]


class Balance(KeyedProcessFunction):
    """Emit (account, balance) for each booking, and an alert where the balance falls below zero."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.balance = runtime_context.get_state(ValueStateDescriptor("balance", int, default=0))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        before = self.balance.value()
        self.balance.update(before + value.cents)
        if before >= 0 > before + value.cents:
            yield ALERTS, (value.account, before + value.cents)
        yield value.account, before + value.cents


def build() -> StatefulJob:
    """The job: its table has the newest balance of each account."""
    job = StatefulJob("balances")
    bookings = job.source("bookings", FileSource("bookings", schema="account string, cents bigint"))
    balances = bookings.key_by("account").process(
        Balance(), uid="balances", output_type="account string, balance bigint"
    )
    balances.sink("balances", DeltaSink("balances", key=["account"]))
    balances.get_side_output(ALERTS).sink("alerts", DeltaSink("alerts"))
    return job


def main() -> list[str]:
    """Run it, and draw the balances."""
    with run_in_memory(build()) as run:
        run.process({"bookings": BOOKINGS})
        lines = bars({row.account: row.balance for row in run.table("balances")})
        return [*lines, *(f"alert: {row.account} is at {row.balance}" for row in run.sink("alerts"))]


if __name__ == "__main__":
    print(*main(), sep="\n")
