"""The command ``statelake metrics``: the numbers of jobs for the monitoring of a site; starts neither Spark nor Java.

It ends with 0 also where a job is stuck, because a collector drops the text of a failed command; ``statelake_status``
has the health of each job.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer
from rich.table import Table

from state_engine.cli.form import for_people
from state_engine.cli.output import show, text
from state_engine.cli.session import no_settings, remark
from state_engine.cli.status import LIMITS, MINUTES, StuckMinutes, looks, now_ms
from state_engine.cli.tables import table
from state_engine.core.errors import ConfigurationError
from state_engine.monitoring.job_metrics import metrics_of
from state_engine.telemetry.metrics import JOB, Point
from state_engine.telemetry.prometheus import exposition


class Format(StrEnum):
    """In which other form numbers are printed."""

    PROMETHEUS = "prometheus"


def metrics(
    job: Annotated[
        str | None, typer.Argument(help="Name of the job; all registered ones by default.")
    ] = None,
    format: Annotated[
        Format | None,
        typer.Option("--format", help="Print the text that Prometheus' text-file collector reads."),
    ] = None,
    stuck_minutes: StuckMinutes = MINUTES,
) -> None:
    """Print the numbers of jobs: rows, durations, lag, state, timers, health, and the jobs' own metrics."""
    if format is not None and not for_people():
        raise ConfigurationError("give --format, --json or --csv, not two of them")
    now = now_ms()
    points = [
        point
        for status, history in looks(job, stuck_minutes=stuck_minutes, limits=LIMITS, now_ms=now)
        for point in metrics_of(status, history, now_ms=now)
    ]
    if looked := no_settings():
        remark(looked)
    if format is None:
        show([_record(point) for point in points], lambda: metrics_table(points), columns=_COLUMNS)
    else:
        typer.echo(exposition(points), nl=False)


_COLUMNS = ("job", "metric", "attributes", "value", "unit", "kind")


def _record(point: Point) -> dict[str, object]:
    attributes = {name: value for name, value in point.attributes.items() if name != JOB}
    metric = point.metric
    cells = (point.attributes[JOB], metric.name, attributes, point.value, metric.unit, metric.kind)
    return dict(zip(_COLUMNS, cells, strict=True))


def metrics_table(points: Sequence[Point]) -> Table:
    """One line a number."""
    rows = [
        (
            point.attributes[JOB],
            point.metric.name,
            ", ".join(value for name, value in point.attributes.items() if name != JOB),
            text(int(point.value) if point.value.is_integer() else point.value),
            point.metric.unit.strip("{}"),
        )
        for point in points
    ]
    return table(("job", "metric", "of", "value", "unit"), rows, right=("value",))
