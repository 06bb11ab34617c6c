"""A job with everything that a metric counts: late and refused rows, timers, two sinks, and metrics of its function."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from state_engine import (
    DeltaSink,
    FileSource,
    KeyedProcessFunction,
    MapStateDescriptor,
    RuntimeContext,
    StatefulJob,
    ValueStateDescriptor,
)
from state_engine.registry import RegisteredJob

DIRECTORY = "DIRECTORY_OF_SHOPS"


class Sales(KeyedProcessFunction):
    """The total of a shop; refuses negative sales; a timer an hour later."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", int))
        self.days = runtime_context.get_map_state(MapStateDescriptor("days", str, int))
        group = runtime_context.get_metrics_group()
        self.sold = group.counter("sold")
        self.cents = group.add_group("cents").distribution("of_a_sale")

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        if value.cents < 0:
            raise ValueError("a sale that is none")
        self.sold.inc()
        self.cents.update(value.cents)
        self.total.update((self.total.value() or 0) + value.cents)
        day = str(value.at)[:10]
        self.days.put(day, (self.days.get(day) or 0) + 1)
        ctx.timer_service().register_event_time_timer(int(value.at.timestamp() * 1000) + 3_600_000)
        return [(value.shop, self.total.value())]

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        return []


def shops(directory: Path) -> StatefulJob:
    job = StatefulJob("shops", parallelism=2, on_error="dead_letter")
    sales = job.source(
        "sales",
        FileSource(str(directory / "sales"), schema="shop string, at timestamp, cents bigint"),
        event_time="at",
    )
    totals = sales.key_by("shop").process(Sales(), uid="totals", output_type="shop string, total bigint")
    totals.sink("out", DeltaSink(str(directory / "out")))
    totals.sink("copy", DeltaSink(str(directory / "copy")))
    return job


def jobs(settings: object) -> list[RegisteredJob]:
    return [RegisteredJob(job=shops(Path(os.environ[DIRECTORY])), description="What shops sold.")]
