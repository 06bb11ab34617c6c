"""Shows what was measured, as tables for people."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date

import pyspark
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.comparison import OnStep, Plan, Series
from benchmarks.contenders.flink import Rate
from benchmarks.contenders.statelake import Statelake
from benchmarks.figures import load_of_machine
from benchmarks.unequal import UnequalResultsError
from benchmarks.workload import PARALLELISM, WINDOW


def show(
    console: Console, *, full: Sequence[Series], small: Sequence[Series], flinks: Sequence[Rate], plan: Plan
) -> None:
    """All tables, and what the figures were measured on."""
    ours = next((s for s in full if s.name == Statelake.name), None)
    console.print(_full_table(full, flinks, plan, ours))
    for one in flinks:
        console.print(f"{one.name}: {one.how}", highlight=False, soft_wrap=True)
    if small:
        console.print(_small_table(small, plan))
    if ours is not None:
        _show_ours(console, ours, next(s for s in small if s.name == Statelake.name))
    console.print(
        f"{date.today().isoformat()}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python "
        f"{platform.python_version()}, Spark {pyspark.__version__}; {load_of_machine()}",
        highlight=False,
    )


@contextmanager
def steps(console: Console, total: int) -> Iterator[OnStep]:
    """A bar of so many steps, and a line for each; results that are not equal end the command."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("starting", total=total)

        def done(what: str) -> None:
            bar.update(task, advance=1, description=what)
            bar.console.print(what, highlight=False)  # a bar alone shows nothing in a log

        try:
            yield done
        except UnequalResultsError as error:
            bar.stop()
            console.print(f"[red]error[/]: {error}", soft_wrap=True, highlight=False)
            raise typer.Exit(code=1) from None


def _full_table(full: Sequence[Series], flinks: Sequence[Rate], plan: Plan, ours: Series | None) -> Table:
    table = Table(
        title=f"{plan.events:,} events, {plan.keys:,} keys, window {WINDOW}, parallelism {PARALLELISM}, warm",
        title_justify="left",
    )
    table.add_column("engine")
    for column in ("min s", "median s", "max s", "events/s", "÷ ours"):
        table.add_column(column, justify="right")
    for series in full:
        median_s = series.spread.median
        rate = f"{series.events / median_s:,.0f}"
        table.add_row(series.name, *series.spread.cells(2), rate, _ratio(median_s, ours))
    for one in flinks:
        seconds = plan.events / one.events_per_s
        table.add_row(one.name, "", f"{seconds:.2f}", "", f"{one.events_per_s:,.0f}", _ratio(seconds, ours))
    return table


def _small_table(small: Sequence[Series], plan: Plan) -> Table:
    table = Table(
        title=f"{small[0].events:,} events while the state of {plan.keys:,} keys is there, warm",
        title_justify="left",
    )
    table.add_column("engine")
    for column in ("min s", "median s", "max s"):
        table.add_column(column, justify="right")
    for series in small:
        table.add_row(series.name, *series.spread.cells(3))
    return table


def _show_ours(console: Console, full: Series, small: Series) -> None:
    """What a batch of ours consists of: jobs, commits, and the time of each step of the middle batch."""
    for series in (full, small):
        middle = sorted(series.taken, key=lambda t: t.seconds)[len(series.taken) // 2]
        steps = ", ".join(f"{name} {seconds:.3f}" for name, seconds in (middle.detail or {}).items())
        jobs = sorted({t.spark_jobs for t in series.taken if t.spark_jobs is not None})
        commits = sorted({t.delta_commits for t in series.taken if t.delta_commits is not None})
        console.print(
            f"{series.name}, a batch of {series.events:,}: Spark jobs {_span(jobs)}, Delta commits {_span(commits)}; "
            f"seconds: call {middle.seconds:.3f}, {steps}",
            highlight=False,
            soft_wrap=True,
        )


def _span(numbers: list[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def _ratio(seconds: float, ours: Series | None) -> str:
    return "" if ours is None else f"{seconds / ours.spread.median:.2f}"
