"""The end of ``make demo``: what came in and went out, what each micro-batch cost, and samples of everything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from jobs.flights import worst_routes
from state_engine import StateEngine, StatefulJob

if TYPE_CHECKING:
    from orchestration.demo import Batch

SAMPLES = 3
MOST_COLUMNS = 6
"""More columns than this are shown as rows."""


def show_summary(console: Console, engine: StateEngine, job: StatefulJob, batches: Sequence[Batch]) -> None:
    """Print the tables of a finished demo."""
    show_batches(console, [b.metadata for b in batches], [b.seconds_of_run for b in batches])
    totals = Table("", "rows", title=f"Job {job.name}", title_justify="left")
    totals.columns[1].justify = "right"
    totals.add_row("rows in, cleaned", _number(sum(b.metadata["rows_in"] for b in batches)))
    samples: list[tuple[str, pa.Table]] = []
    for name, node in job.sinks.items():
        frame = engine.spark.read.format("delta").load(node.sink.path)  # type: ignore[attr-defined]
        totals.add_row(f"rows out, sink {name}", _number(frame.count()))
        samples.append((f"sink {name}", frame.limit(SAMPLES).toArrow()))
    checkpoints = engine.checkpoints(job)
    for operator in checkpoints[-1].operators:
        for state in operator.states:
            table = engine.read_state(job, operator.uid, state.name).toArrow()
            what = "entries" if state.kind == "map" else "keys"
            totals.add_row(f"{what}, {state.kind} state {operator.uid}.{state.name}", _number(table.num_rows))
            samples.append((f"{state.kind} state {operator.uid}.{state.name}", table.slice(0, SAMPLES)))
    totals.add_row("checkpoints", _number(len(checkpoints)))
    console.print(totals)
    ranking = worst_routes(engine.read_state(job, "route_ranking", "totals")).limit(SAMPLES).toArrow()
    samples.append(("the worst routes: a query on the state of route_ranking", ranking))
    for title, rows in samples:
        show_sample(console, title, rows)


def show_batches(
    console: Console, batches: Sequence[Mapping[str, Any]], seconds_of_runs: Sequence[float]
) -> None:
    """One line a micro-batch, from the metadata of its checkpoint."""
    names = (
        "checkpoint", "rows in", "rows out", "keys", "changes", "seconds", "events/s", "run", "Delta commits", "bytes"
    )  # fmt: skip
    table = Table(*names, title="Micro-batches", title_justify="left")
    for column in table.columns:
        column.justify = "right"
    for values, run_seconds in zip(batches, seconds_of_runs, strict=True):
        cells = [
            values[n] for n in ("checkpoint_id", "rows_in", "rows_out", "keys_touched", "changed_entries")
        ]
        table.add_row(
            *map(_number, cells),
            f"{values['seconds']:.2f}",
            f"{values['events_per_second']:,.0f}",
            f"{run_seconds:.2f} s",
            _number(values["delta_commits"]),
            _number(values["bytes_written"]),
        )
    rows, seconds = sum(v["rows_in"] for v in batches), sum(v["seconds"] for v in batches)
    table.add_section()
    table.add_row(
        "all",
        _number(rows),
        _number(sum(v["rows_out"] for v in batches)),
        "",
        _number(sum(v["changed_entries"] for v in batches)),
        f"{seconds:.2f}",
        f"{rows / seconds:,.0f}" if seconds else "",
        f"{sum(seconds_of_runs):.2f} s",
        _number(sum(v["delta_commits"] for v in batches)),
        _number(sum(v["bytes_written"] for v in batches)),
    )
    console.print(table)


def show_sample(console: Console, title: str, sample: pa.Table) -> None:
    """A few rows; those of a wide table stand beside each other."""
    console.print(f"\n[italic]{title}[/]")
    rows = [list(map(_text, row.values())) for row in sample.to_pylist()]
    if sample.num_columns <= MOST_COLUMNS:
        table = Table(*sample.column_names)
        for row in rows:
            table.add_row(*row)
    else:
        table = Table("column", *(f"row {i + 1}" for i in range(len(rows))))
        for index, name in enumerate(sample.column_names):
            table.add_row(name, *(row[index] for row in rows))
    console.print(table)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={_text(inner)}" for name, inner in value.items())
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M}"
    if isinstance(value, float):
        return f"{value:,.2f}"
    return "" if value is None else str(value)


def _number(value: int) -> str:
    return f"{value:,}"
