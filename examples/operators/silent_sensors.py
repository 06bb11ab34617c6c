"""Sensors that say nothing for ten minutes, and when they are back; the clock goes on where no row comes."""

from __future__ import annotations

from examples.operators.drawing import at, spans
from state_engine import DeltaSink, FileSource, StatefulJob
from state_engine.testing import run_in_memory

READINGS = {
    "12:00": [("roof", at("12:00")), ("cellar", at("11:59"))],
    "12:08": [("roof", at("12:08"))],
    "12:16": [("roof", at("12:16"))],  # the cellar is silent since 11:59
    "12:30": [("cellar", at("12:28"))],  # and is back; the roof is silent
    "12:40": [],
}
"""What each run finds, by the time of the run."""


def build() -> StatefulJob:
    """The job."""
    job = StatefulJob("sensors")
    source = FileSource("readings", schema="sensor string, at timestamp")
    readings = job.source(
        "readings",
        source,
        event_time="at",
        max_out_of_orderness="2 min",
        watermark="clock",
        clock_delay="2 min",
    )
    silences = readings.key_by("sensor").silent(after="10 min", back=True, uid="silences")
    silences.sink("silences", DeltaSink("silences"))
    return job


def main() -> list[str]:
    """Run it by its clock, and draw the silences."""
    with run_in_memory(build()) as run:
        for clock, readings in READINGS.items():
            run.process({"readings": readings}, clock=int(at(clock).timestamp() * 1000))
        silences: dict[str, dict[object, object]] = {}
        for row in run.sink("silences"):  # of a silence that ended there are two rows
            silences.setdefault(row.sensor, {})[row.silent_since] = row.back_at
    lanes = {
        sensor: [(since, back or at("12:40"), "silent") for since, back in of.items()]
        for sensor, of in silences.items()
    }
    return spans(lanes, at("11:50"), at("12:50"))  # type: ignore[arg-type]


if __name__ == "__main__":
    print(*main(), sep="\n")
