"""``python -m benchmarks``: the command behind ``make bench``. ``benchmarks.all`` is that behind ``make bench-all``.

The last line printed is ``ratio transformWithState_rows = N``: the median time of Spark's ``transformWithState`` for a
full batch, divided by ours.
"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from benchmarks import comparison, report
from benchmarks.comparison import Plan
from benchmarks.contenders import flink
from benchmarks.contenders.registry import CONTENDERS
from benchmarks.contenders.statelake import Statelake
from benchmarks.contenders.transform_with_state import TransformWithState
from benchmarks.figures import chosen_of

ALL = (*CONTENDERS, *flink.NAMES)
DEFAULT = (*comparison.NAMES, *flink.AVERAGES)
VERIFY_EVENTS, VERIFY_KEYS, VERIFY_BATCHES = 20_000, 2_000, 3


def run(
    events: Annotated[int, typer.Option(min=1000, help="Events in a full batch.")] = 1_000_000,
    keys: Annotated[int, typer.Option(min=10, help="Distinct keys.")] = 100_000,
    rounds: Annotated[int, typer.Option(min=1, help="Counted batches of each engine.")] = 3,
    warm_up: Annotated[int, typer.Option(min=1, help="Batches of each engine before these.")] = 2,
    only: Annotated[str, typer.Option(help=f"Some of {', '.join(ALL)}, comma-separated.")] = ",".join(
        DEFAULT
    ),
) -> None:
    """Compare this engine with its peers on the reference workload."""
    console = Console()
    chosen = chosen_of(only, ALL, what="engine")
    plan = Plan(events=events, keys=keys, rounds=rounds, warm_up=warm_up)
    full: list[comparison.Series] = []
    small: list[comparison.Series] = []
    inside = [name for name in CONTENDERS if name in chosen]
    flinks = [name for name in flink.NAMES if name in chosen] if flink.available() else []
    steps = len(inside) * (VERIFY_BATCHES + plan.batches) + flink.steps(flinks)
    with report.steps(console, steps) as done:
        if inside:
            with comparison.spark_application() as spark:
                comparison.verify(
                    spark, events=VERIFY_EVENTS, keys=VERIFY_KEYS, batches=VERIFY_BATCHES, only=inside,
                    done=lambda name: done(f"equal results? {name}"),
                )  # fmt: skip
                full, small = comparison.compare(spark, plan, only=inside, done=done)
        measured = [flink.measure(name, events=events, keys=keys, done=done) for name in flinks]
    report.show(console, full=full, small=small, flinks=measured, plan=plan)
    if not flinks and any(name in flink.NAMES for name in chosen):
        console.print("PyFlink and Flink SQL were left out: `make bench-all` sets their environment up.")
    medians = {series.name: series.spread.median for series in full}
    if {Statelake.name, TransformWithState.name} <= medians.keys():
        ratio = medians[TransformWithState.name] / medians[Statelake.name]
        print(f"ratio {TransformWithState.name} = {ratio:.2f}", flush=True)


if __name__ == "__main__":
    typer.run(run)
