"""Customers and the cities that they lived in: a dimension with versions, from changes that come in any order."""

from __future__ import annotations

from examples.operators.drawing import at, spans
from state_engine import DeltaStateTable, FileSource, StatefulJob
from state_engine.testing import run_in_memory

MOVES = [
    [("ada", "Oslo", at("00:00"), 1), ("eva", "Rome", at("04:00"), 2)],
    [
        ("ada", "Paris", at("18:00"), 3),
        ("ada", "Bern", at("08:00"), 4),
    ],  # the last one is a correction of the past
]
"""What each run finds: who moved where, when, and the number of the change."""


def build() -> StatefulJob:
    """The job: its table has a row for each version."""
    job = StatefulJob("customers")
    source = FileSource("moves", schema="customer string, city string, since timestamp, number bigint")
    moves = job.source("moves", source)
    versions = moves.key_by("customer").scd2(
        valid_from="since", sequence="number", tracked=["city"], uid="customers"
    )
    versions.publish(DeltaStateTable("customers"), name="customers")
    return job


def main() -> list[str]:
    """Run it, and draw the versions after each run."""
    lines, end = [], at("00:00", day=1)
    with run_in_memory(build()) as run:
        for moves in MOVES:
            run.process({"moves": moves})
            versions = sorted(run.table("customers"), key=lambda one: one.valid_from)
            lanes = {
                customer: [
                    (v.valid_from, v.valid_to or end, v.city) for v in versions if v.customer == customer
                ]
                for customer in ("ada", "eva")
            }
            lines += spans(lanes, at("00:00"), end)
    return lines


if __name__ == "__main__":
    print(*main(), sep="\n")
