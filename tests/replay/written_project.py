"""A project with a job of several kinds of operators, whose keys ``debug --write-test`` writes tests of.

It is copied as the module ``shop`` of a project in a directory; what it reads and writes is there.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from state_engine import (
    DeltaSink,
    FileSource,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    RuntimeContext,
    StatefulJob,
    StateTtlConfig,
    Tumbling,
    ValueStateDescriptor,
    count,
    sum_,
)
from state_engine.registry import RegisteredJob

LIMITS = MapStateDescriptor("limits", str, int)
LARGE = OutputTag("large", "user string, amount bigint")


class Sums(KeyedProcessFunction):
    """Sum, what came within a minute, texts with the user in them, a timer, and large ones aside."""

    def __init__(self, factor: int = 1) -> None:
        self.factor = factor

    def open(self, runtime_context: RuntimeContext) -> None:
        lived = ListStateDescriptor("lived", int)
        lived.enable_time_to_live(StateTtlConfig.new_builder("1 min").build())
        self.total = runtime_context.get_state(ValueStateDescriptor("total", int, default=0))
        self.lived = runtime_context.get_list_state(lived)
        self.texts = runtime_context.get_map_state(MapStateDescriptor("texts", str, float))

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        self.total.update(self.total.value() + value.amount * self.factor)
        self.lived.add(value.amount)
        self.texts.put(f"{value.user}:{value.amount}", float("nan"))
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 1500)
        if value.amount > 20:
            yield LARGE, (value.user, value.amount)
        yield value.user, self.total.value()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        yield ctx.get_current_key(), -self.total.value()


class Refunds(KeyedCoProcessFunction):
    """What is left of each user's payments."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.left = runtime_context.get_state(ValueStateDescriptor("left", int, default=0))

    def process_element1(self, value: Any, ctx: Any) -> None:
        self.left.update(self.left.value() + value.amount)

    def process_element2(self, value: Any, ctx: Any) -> Iterable[Any]:
        self.left.update(self.left.value() - value.back)
        yield value.user, self.left.value()


class Judge(KeyedBroadcastProcessFunction):
    """Payments above the limit of now, and how many there were."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.alerts = runtime_context.get_state(ValueStateDescriptor("alerts", int, default=0))

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        limit = ctx.get_broadcast_state(LIMITS).get("all")
        if limit is not None and value.amount > limit:
            self.alerts.update(self.alerts.value() + 1)
            yield value.user, self.alerts.value()

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(LIMITS).put("all", value.limit)


def build(directory: Path, factor: int = 1) -> StatefulJob:
    """The job, on the files of a directory."""
    job = StatefulJob("shop", parallelism=2, max_parallelism=8)

    def read(name: str, schema: str, **options: Any) -> Any:
        return job.source(name, FileSource(str(directory / name), schema=schema, format="json"), **options)

    payments = read("payments", "user string, amount bigint, at timestamp", event_time="at").key_by("user")
    back = read("back", "user string, back bigint, at timestamp", event_time="at").key_by("user")
    limits = read("limits", "limit bigint")
    sums = payments.process(Sums(factor), uid="sums", output_type="user string, total bigint")
    streams = {
        "sums": sums,
        "large": sums.get_side_output(LARGE),
        "refunds": payments.connect(back).process(
            Refunds(), uid="refunds", output_type="user string, left bigint"
        ),
        "judge": payments.connect(limits.broadcast(LIMITS)).process(
            Judge(), uid="judge", output_type="user string, alerts bigint"
        ),
        "windows": payments.window(Tumbling("2 s")).aggregate(n=count(), s=sum_("amount"), uid="windows"),
        "first": payments.drop_duplicates(uid="first"),
        "features": payments.over(s=sum_("amount", last="3 s"), n=count(), uid="features"),
    }
    for name, stream in streams.items():
        stream.sink(name, DeltaSink(str(directory / "out" / name)))
    return job


def jobs(_settings: object) -> list[RegisteredJob]:
    """The job of this project."""
    return [RegisteredJob(job=build(Path(__file__).parent))]
