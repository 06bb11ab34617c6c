"""Visits: clicks of a user that are less than half an hour apart. A late click joins two visits to one."""

from __future__ import annotations

from examples.operators.drawing import at, spans
from state_engine import DeltaSink, FileSource, Session, StatefulJob, count
from state_engine.testing import run_in_memory

CLICKS = [
    [("ada", at("09:00")), ("ada", at("09:20")), ("eva", at("09:05")), ("ada", at("10:10"))],
    [("eva", at("11:00")), ("ada", at("09:45"))],  # the last one is late, and between two visits
]
"""What each run finds."""


def build() -> StatefulJob:
    """The job: its table has one row a visit, whatever joins later."""
    job = StatefulJob("visits")
    clicks = job.source("clicks", FileSource("clicks", schema="user string, at timestamp"), event_time="at")
    visits = clicks.key_by("user").window(Session("30 min"), lateness="2 h", emit="changes")
    table = DeltaSink("visits", key=["user", "window_start"])
    visits.aggregate(clicks=count(), uid="visits").sink("visits", table)
    return job


def main() -> list[str]:
    """Run it, and draw the visits after each run."""
    lines = []
    with run_in_memory(build()) as run:
        for clicks in CLICKS:
            run.process({"clicks": clicks})
            visits = {
                user: [
                    (v.window_start, v.window_end, str(v.clicks))
                    for v in run.table("visits")
                    if v.user == user
                ]
                for user in ("ada", "eva")
            }
            lines += spans(visits, at("09:00"), at("12:00"))
    return lines


if __name__ == "__main__":
    print(*main(), sep="\n")
