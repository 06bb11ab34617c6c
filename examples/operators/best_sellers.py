"""The three best sellers of each hour, and of each day by the clock of Rome, also where that day has 23 hours."""

from __future__ import annotations

from datetime import UTC, datetime

from examples.operators.drawing import bars
from state_engine import DeltaSink, FileSource, StatefulJob, Tumbling, sum_
from state_engine.testing import run_in_memory

SALES = [
    ("tea", 5, "2026-03-28T22:59"), ("tea", 2, "2026-03-28T23:00"), ("jam", 7, "2026-03-28T23:10"),
    ("rice", 3, "2026-03-28T23:20"), ("salt", 1, "2026-03-28T23:30"), ("tea", 4, "2026-03-29T21:59"),
    ("jam", 9, "2026-03-29T22:00"),
]  # fmt: skip
"""What was sold, how many, and when (UTC). The day of Rome on which clocks change is from 23:00 to 22:00."""


def build() -> StatefulJob:
    """The job."""
    job = StatefulJob("sales")
    source = FileSource("sales", schema="item string, n bigint, at timestamp")
    sales = job.source("sales", source, event_time="at", max_out_of_orderness="1 h")
    by_item = sales.key_by("item").window(Tumbling("1 h")).aggregate(sold=sum_("n"), uid="hours")
    hours = by_item.map(
        lambda row: (row.item, row.sold), output_type="item string, sold bigint", uid="item and sold"
    )
    hours.window_all(Tumbling("1 h")).top_n(3, by="sold", uid="best").sink("hours", DeltaSink("hours"))
    days = sales.window_all(Tumbling("1 day", time_zone="Europe/Rome")).aggregate(sold=sum_("n"), uid="days")
    days.sink("days", DeltaSink("days"))
    return job


def main() -> list[str]:
    """Run it to the end of its input, and draw the best sellers of the hours, and the days."""
    sales = [(item, n, datetime.fromisoformat(when).replace(tzinfo=UTC)) for item, n, when in SALES]
    with run_in_memory(build()) as run:
        run.process({"sales": sales})
        run.process(drain=True)
        best = {f"{row.window_start:%d. %H} h  {row.rank}. {row.item}": row.sold for row in run.sink("hours")}
        days = {
            f"{row.window_start:%d. %H:%M} to {row.window_end:%d. %H:%M}": row.sold
            for row in run.sink("days")
        }
    return [*bars(best), *bars(days)]


if __name__ == "__main__":
    print(*main(), sep="\n")
