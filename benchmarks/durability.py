"""``python -m benchmarks.durability``: what it costs that commits wait for the disk.

Two jobs that are alike in all but the setting ``durability`` take turns, a micro-batch each, in one Spark application
and on one disk (``--directory``); medians are compared, and the load of the machine is shown beside them. The last
line is ``ratio sync to os = N``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track

from benchmarks.comparison import spark_application
from benchmarks.contenders.statelake import Statelake
from benchmarks.figures import Spread, load_of_machine
from benchmarks.workload import Feed, Workload, scratch


def run(
    batches: Annotated[int, typer.Option(min=2, help="Micro-batches of each that are counted.")] = 20,
    events: Annotated[int, typer.Option(min=1, help="Events in each.")] = 1000,
    keys: Annotated[int, typer.Option(min=10, help="Distinct keys.")] = 10_000,
    warm_up: Annotated[int, typer.Option(min=0, help="Micro-batches that are not counted.")] = 3,
    directory: Annotated[Path | None, typer.Option(help="On the disk to be measured.")] = None,
) -> None:
    """Run two jobs in turn, and print how long their micro-batches take."""
    with scratch(directory) as place, spark_application() as spark:
        feed = Feed(Workload(keys), place / "feed")
        jobs = {
            "sync": Statelake(spark, place / "sync", durability="sync"),
            "os": Statelake(spark, place / "os", durability="os"),
        }
        seconds: dict[str, list[float]] = {kind: [] for kind in jobs}
        for number in track(range(warm_up + batches), "micro-batches"):
            files = feed.write(events)
            for kind in sorted(jobs, reverse=bool(number % 2)):
                seconds[kind].append(jobs[kind].run(files).seconds)
        for job in jobs.values():
            job.close()
    spreads = {kind: Spread.of(of_kind[warm_up:]) for kind, of_kind in seconds.items()}
    for kind, spread in spreads.items():
        print(f"{kind}: {spread}")
    print(load_of_machine())
    print(f"ratio sync to os = {spreads['sync'].median / spreads['os'].median:.2f}", flush=True)


if __name__ == "__main__":
    typer.run(run)
