"""How far visitors come: view, cart, buy within a day; those who stop half-way are counted, too."""

from __future__ import annotations

from collections import Counter

from examples.operators.drawing import at, bars
from state_engine import DeltaSink, FileSource, StatefulJob
from state_engine.testing import run_in_memory

STEPS = ("view", "cart", "buy")
EVENTS = [
    ("ada", "view", at("09:00")), ("ada", "buy", at("09:40")), ("ada", "cart", at("09:20")),
    ("eva", "view", at("10:00")), ("eva", "cart", at("10:30")),
    ("ida", "view", at("11:00")),
    ("ulf", "view", at("12:00")), ("ulf", "buy", at("13:00")),
]  # fmt: skip


def build() -> StatefulJob:
    """The job."""
    job = StatefulJob("funnel")
    source = FileSource("events", schema="user string, action string, at timestamp")
    events = job.source("events", source, event_time="at", max_out_of_orderness="1 h")
    funnel = events.key_by("user").sequence(
        *STEPS, by="action", within="1 day", incomplete=True, uid="funnel"
    )
    funnel.sink("funnel", DeltaSink("funnel"))
    return job


def main() -> list[str]:
    """Run it to the end of its input, and draw how many came to each step."""
    with run_in_memory(build()) as run:
        run.process({"events": EVENTS})
        run.process(drain=True)
        reached = Counter(step for row in run.sink("funnel") for step in STEPS[: row.steps])
    return bars({step: reached[step] for step in STEPS})


if __name__ == "__main__":
    print(*main(), sep="\n")
