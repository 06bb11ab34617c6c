"""Enrichment by rules that change: every payment is judged by the limit of its country as of now.

Rules are a stream of their own that every subtask sees whole: broadcast state. A new rule holds for all payments of the
micro-batch that brings it, and of later ones; rules that are valid from a time on take ``connect(…, ordered=True)``.
How many alerts a customer had is keyed state beside it.

    python -m examples.broadcast_rules
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from state_engine import (
    DeltaSink,
    FileSource,
    KeyedBroadcastProcessFunction,
    MapStateDescriptor,
    RuntimeContext,
    StateEngine,
    StatefulJob,
    ValueStateDescriptor,
)

LIMITS = MapStateDescriptor("limits", str, int)
ARRIVALS: list[dict[str, list[dict[str, Any]]]] = [
    {
        "rules": [{"country": "NO", "limit": 100}],
        "payments": [
            {"id": 1, "customer": "ann", "country": "NO", "amount": 120},
            {"id": 2, "customer": "ann", "country": "SE", "amount": 120},
        ],
    },
    {
        "rules": [{"country": "NO", "limit": 500}, {"country": "SE", "limit": 50}],
        "payments": [
            {"id": 3, "customer": "ann", "country": "SE", "amount": 60},
            {"id": 4, "customer": "bob", "country": "NO", "amount": 120},
        ],
    },
]
"""What each run finds, by source."""


class Judge(KeyedBroadcastProcessFunction):
    """Emits (payment, customer, amount above the limit, alerts of the customer so far)."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.alerts = runtime_context.get_state(ValueStateDescriptor("alerts", int, default=0))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        limit = ctx.get_broadcast_state(LIMITS).get(value.country)
        if limit is not None and value.amount > limit:
            self.alerts.update(self.alerts.value() + 1)
            yield value.id, ctx.get_current_key(), value.amount - limit, self.alerts.value()

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(LIMITS).put(value.country, value.limit)


def build(directory: Path) -> StatefulJob:
    """The job, with its inputs and its output in a directory."""
    job = StatefulJob("broadcast_rules", parallelism=2)
    schema = "id bigint, customer string, country string, amount bigint"
    payments = job.source(
        "payments", FileSource(str(directory / "payments"), schema=schema, format="json"), order_by=["id"]
    )
    rules = job.source(
        "rules", FileSource(str(directory / "rules"), schema="country string, limit bigint", format="json")
    )
    (
        payments.key_by("customer")
        .connect(rules.broadcast(LIMITS))
        .process(Judge(), uid="judge", output_type="id bigint, customer string, above bigint, alerts bigint")
        .sink("alerts", DeltaSink(str(directory / "alerts")))
    )
    return job


def arrive(directory: Path, source: str, name: str, rows: Iterable[dict[str, Any]]) -> None:
    """Write rows as one file of a source."""
    (directory / source).mkdir(exist_ok=True)
    (directory / source / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def main(directory: Path, engine: StateEngine) -> list[tuple[int, str, int, int]]:
    """Run the job once for each arrival, and give all alerts."""
    for number, sources in enumerate(ARRIVALS):
        for source, rows in sources.items():
            arrive(directory, source, f"{number}.json", rows)
        engine.run(build(directory))
    alerts = engine.spark.read.format("delta").load(str(directory / "alerts")).collect()
    return sorted((r["id"], r["customer"], r["above"], r["alerts"]) for r in alerts)


if __name__ == "__main__":
    with TemporaryDirectory() as scratch, StateEngine(f"{scratch}/state") as own:
        for payment, customer, above, alerts in main(Path(scratch), own):
            print(f"payment {payment} of {customer} is {above} above the limit; alert {alerts}")
