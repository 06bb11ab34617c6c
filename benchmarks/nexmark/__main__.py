"""``python -m benchmarks.nexmark``: the queries here, on Spark and on Flink, as a table."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.figures import Comparison, chosen_of, load_of_machine
from benchmarks.nexmark.measure import measure
from benchmarks.nexmark.queries import QUERIES


def run(
    events: Annotated[int, typer.Option(help="How many: of 50, 46 are bids.", min=50)] = 1_000_000,
    batches: Annotated[int, typer.Option(help="Micro-batches of each query.", min=1)] = 10,
    only: Annotated[str, typer.Option(help="Some queries, comma-separated, such as q5,q8.")] = "",
) -> None:
    """Run the queries of Nexmark, compare their results with polars, and show what each took."""
    chosen = chosen_of(only, list(QUERIES), what="query")
    print(f"{events:,} events in {batches} micro-batches; {load_of_machine()}", flush=True)
    figures = measure(events=events, batches=batches, only=chosen)
    table = Table("query", "statelake s", "Spark s", "Spark ÷ statelake", "Flink s")
    for comparison in figures.comparisons.values():
        table.add_row(*_row(comparison))
    console = Console()
    console.print(table)
    for missing in figures.missing:
        console.print(f"missing: {missing}")


def _row(comparison: Comparison) -> list[str]:
    seconds = [comparison.median_s(engine) for engine in ("statelake", "spark", "flink")]
    ours, spark, flink = ("" if median is None else f"{median:.2f}" for median in seconds)
    ratio = f"{float(spark) / float(ours):.1f}" if spark else ""
    return [comparison.title, ours, spark, ratio, flink]


if __name__ == "__main__":
    typer.run(run)
