"""Deduplication: of events that are delivered more than once, the first one; ids are remembered for a day.

Whether an id was seen is state with a time to live by event time, so state stays as large as a day of ids, whatever the
job's age. An id that comes again after more than a day counts as new.

    python -m examples.deduplication
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
    KeyedProcessFunction,
    RuntimeContext,
    StateEngine,
    StatefulJob,
    StateTtlConfig,
    Time,
    ValueStateDescriptor,
)

EVENTS = [
    [("a", "2026-03-02T09:00"), ("b", "2026-03-02T09:05"), ("a", "2026-03-02T09:06")],
    [("b", "2026-03-02T20:00"), ("a", "2026-03-04T09:00")],
]
"""The events of each run: id and time."""


class FirstOfEachId(KeyedProcessFunction):
    """Passes on the first event of each id."""

    def open(self, runtime_context: RuntimeContext) -> None:
        seen = ValueStateDescriptor("seen", bool)
        seen.enable_time_to_live(StateTtlConfig.new_builder(Time.days(1)).use_event_time().build())
        self.seen = runtime_context.get_state(seen)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        if self.seen.value() is None:
            self.seen.update(True)
            yield value


def build(directory: Path) -> StatefulJob:
    """The job, with its input and its output in a directory."""
    job = StatefulJob("deduplication", parallelism=2)
    schema = "id string, at timestamp"
    events = job.source(
        "events",
        FileSource(str(directory / "events"), schema=schema, format="json"),
        order_by=["at", "id"],
        event_time="at",
    )
    first = events.key_by("id").process(FirstOfEachId(), uid="first", output_type=schema)
    first.sink("events", DeltaSink(str(directory / "first")))
    return job


def arrive(directory: Path, name: str, events: Iterable[tuple[str, str]]) -> None:
    """Write events as one file of the source."""
    (directory / "events").mkdir(exist_ok=True)
    rows = [{"id": id_, "at": f"{at}:00Z"} for id_, at in events]
    (directory / "events" / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def main(directory: Path, engine: StateEngine) -> list[str]:
    """Run the job once for each file, and give the ids that were passed on, by time."""
    for number, events in enumerate(EVENTS):
        arrive(directory, f"{number}.json", events)
        engine.run(build(directory))
    first = engine.spark.read.format("delta").load(str(directory / "first"))
    return [row["id"] for row in first.orderBy("at").collect()]


if __name__ == "__main__":
    with TemporaryDirectory() as scratch, StateEngine(f"{scratch}/state") as own:
        print(*main(Path(scratch), own))
