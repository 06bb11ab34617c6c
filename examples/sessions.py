"""Sessions: the clicks of a user up to a pause of half an hour, by event time, with a timer.

Each click moves a timer to half an hour after itself. Where the timer fires, the session is over: it is put out, and
its state is cleared. A session may span several runs; `drain=True` ends those that are still open.

    python -m examples.sessions
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
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
    ValueStateDescriptor,
)

PAUSE_MS = 30 * 60 * 1000
CLICKS = [
    [("ann", "09:00"), ("bob", "09:10"), ("ann", "09:20")],
    [("ann", "09:45"), ("bob", "10:30"), ("ann", "11:00")],
]
"""The clicks of each run: user and time of day."""


class Sessions(KeyedProcessFunction):
    """Emits (user, first click, last click, clicks) at the end of each session."""

    def open(self, runtime_context: RuntimeContext) -> None:
        session = ValueStateDescriptor("session", tuple[int, int, int])
        self.session = runtime_context.get_state(session)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        at = ctx.timestamp()
        assert at is not None, "the source has event time"
        first, last, clicks = self.session.value() or (at, at, 0)
        if clicks:
            ctx.timer_service().delete_event_time_timer(last + PAUSE_MS)
        ctx.timer_service().register_event_time_timer(max(at, last) + PAUSE_MS)
        self.session.update((min(at, first), max(at, last), clicks + 1))

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield ctx.get_current_key(), *self.session.value()
        self.session.clear()


def build(directory: Path) -> StatefulJob:
    """The job, with its input and its output in a directory."""
    job = StatefulJob("sessions", parallelism=2)
    clicks = job.source(
        "clicks",
        FileSource(str(directory / "clicks"), schema="user string, at timestamp", format="json"),
        order_by=["at", "user"],
        event_time="at",
        max_out_of_orderness=timedelta(minutes=1),
    )
    output = "user string, first_ms bigint, last_ms bigint, clicks bigint"
    sessions = clicks.key_by("user").process(Sessions(), uid="sessions", output_type=output)
    sessions.sink("sessions", DeltaSink(str(directory / "sessions")))
    return job


def arrive(directory: Path, name: str, clicks: Iterable[tuple[str, str]]) -> None:
    """Write clicks as one file of the source."""
    (directory / "clicks").mkdir(exist_ok=True)
    rows = [{"user": user, "at": f"2026-03-02T{time}:00Z"} for user, time in clicks]
    (directory / "clicks" / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def main(directory: Path, engine: StateEngine) -> list[tuple[str, str, str, int]]:
    """Run the job once for each file, end what is open, and give all sessions."""
    for number, clicks in enumerate(CLICKS):
        arrive(directory, f"{number}.json", clicks)
        engine.run(build(directory), drain=number == len(CLICKS) - 1)
    rows = engine.spark.read.format("delta").load(str(directory / "sessions")).collect()

    def time(ms: int) -> str:
        return (datetime(1970, 1, 1) + timedelta(milliseconds=ms)).strftime("%H:%M")

    return sorted((r["user"], time(r["first_ms"]), time(r["last_ms"]), r["clicks"]) for r in rows)


if __name__ == "__main__":
    with TemporaryDirectory() as scratch, StateEngine(f"{scratch}/state") as own:
        for user, first, last, clicks in main(Path(scratch), own):
            print(f"{user}: {first} to {last}, {clicks} clicks")
