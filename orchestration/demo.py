"""``make demo``: a year of real flights through two stateful operators, a Dagster run for every micro-batch.

An entry point. Starts from nothing each time: the directory ``.statelake/demo`` is made anew, and nothing else is
touched. The runs are kept in ``.dagster``, so that ``make ui`` shows them afterwards.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from textwrap import indent
from typing import Any

import dagster as dg
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from orchestration.demo_summary import show_summary
from state_engine import Settings, StateEngine, load_settings, local_session
from state_engine.core.counted_nouns import counted
from state_engine.dagster import statelake_definitions
from state_engine.dagster.doctor import dead_holders, free
from state_engine.dagster.naming import checkpoint_key
from state_engine.errors import StatelakeError
from state_engine.registry import beside, load_jobs

JOB = "flights"
HOME = Path(".statelake/demo")
FEEDS = Path(".statelake/feeds")
DAGSTER_HOME = Path(".dagster")
DAGSTER_YAML = Path(__file__).parent / "dagster.yaml"
QUIET: Mapping[str, Any] = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
ONE_BATCH: Mapping[str, Any] = {"ops": {f"{JOB}_micro_batches": {"config": {"max_batches": 1}}}}


@dataclass(frozen=True)
class Batch:
    """One micro-batch as its Dagster run recorded it."""

    run_id: str
    metadata: Mapping[str, Any]
    seconds_of_run: float


def demo_settings(settings: Settings, *, home: Path, feeds: Path) -> Settings:
    """The user's settings, with the demo's own root and a feed that comes month by month."""
    parameters = {JOB: {"feeds": str(feeds.absolute()), "cut": "month", "parallelism": 2}}
    jobs = settings.jobs.model_copy(update={"modules": ["jobs.flights"], "parameters": parameters})
    return settings.model_copy(update={"root": str((home / "state").absolute()), "jobs": jobs})


def start_afresh(home: Path) -> None:
    """Remove what an earlier demo left in its own directory, and make it."""
    if home.exists():
        shutil.rmtree(home)
    home.mkdir(parents=True)


def run_demo(console: Console, *, home: Path = HOME, feeds: Path = FEEDS) -> list[Batch]:
    """Run everything and print the summary; returns the micro-batches."""
    started = time.perf_counter()
    start_afresh(home)
    base = load_settings()
    settings = demo_settings(base, home=home, feeds=feeds)
    [registered] = load_jobs(settings)
    with console.status("The year's flights: writing them as 13 monthly files (once) …"):
        registered.prepare()
    with console.status("Starting Spark …"):
        spark = local_session(base, app_name="statelake-demo")
    ready = time.perf_counter()
    with dg.DagsterInstance.get() as instance:
        for dead in dead_holders(instance):  # a demo that was interrupted would keep this one waiting
            free(instance, dead)
        batches = _feed(
            statelake_definitions(settings=settings),
            instance,
            console,
            total=len(list(_files(registered.job))),
        )
    total = time.perf_counter()
    with StateEngine(settings.root, spark) as engine:
        show_summary(console, engine, registered.job, batches)
    console.print(
        f"\n[bold]{total - ready:.1f} s[/] for {counted(len(batches), 'micro-batch')}, each a Dagster run of its own; "
        f"{ready - started:.1f} s before them to write the feed and start Spark; "
        f"{time.perf_counter() - started:.1f} s in all.",
        highlight=False,
        soft_wrap=True,
    )
    _show_way_on(console, settings)
    spark.stop()
    return batches


def _feed(defs: dg.Definitions, instance: dg.DagsterInstance, console: Console, *, total: int) -> list[Batch]:
    """Materialise the job's assets again and again, until a run finds nothing new."""
    job = defs.resolve_job_def(JOB)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
    )
    batches: list[Batch] = []
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("micro-batches", total=total, rate="")
        while True:
            started = time.perf_counter()
            result = job.execute_in_process(
                instance=instance, run_config={**QUIET, **ONE_BATCH}, tags={"statelake/demo": "true"}
            )
            # the run's own result; the row of a compaction that followed is a version of the checkpoint as well
            metadata = [m.metadata for m in result.asset_materializations_for_node(f"{JOB}_micro_batches")
                     if m.asset_key == checkpoint_key(JOB) and "run_batches" in m.metadata]  # fmt: skip
            if not metadata:
                return batches
            values = {name: value.value for name, value in metadata[-1].items()}
            batches.append(Batch(result.run_id, values, time.perf_counter() - started))
            progress.update(
                bar,
                completed=len(batches),
                rate=f"checkpoint {values['checkpoint_id']}: {values['events_per_second']:,.0f} events/s",
            )


def _files(job: Any) -> list[Path]:
    [source] = job.sources.values()
    return sorted(Path(source.source.path.removeprefix("file://")).glob("*.parquet"))


def way_on(settings: Settings) -> list[tuple[str, str]]:
    """What to try after the demo, and the command for it: each has the root and the feed of the demo."""
    parameters = json.dumps(settings.jobs.parameters)
    same = f"STATELAKE__ROOT={quote(settings.root)} STATELAKE__JOBS__PARAMETERS={quote(parameters)}"
    sink = beside(settings, "sinks", JOB, "plane_delays")
    return [
        ("these runs, their checkpoints and metadata in Dagster", "make ui"),
        ("what was committed", f"{same} .venv/bin/statelake checkpoints {JOB}"),
        ("run again: nothing new, nothing happens", f"{same} .venv/bin/dg launch --job {JOB}"),
        (
            "in .venv/bin/python: any state, as of any checkpoint",
            "from state_engine import StateEngine\n"
            f'engine = StateEngine("{settings.root}")\n'
            f'engine.read_state("{JOB}", "plane_delays", "airports", checkpoint_id=6).show()',
        ),
        (
            "outputs and state are plain Delta tables; no engine is needed to read them",
            f'import polars; polars.read_delta("{sink}")',
        ),
    ]


def _show_way_on(console: Console, settings: Settings) -> None:
    console.print("\n[bold]Look further[/]")
    for about, command in way_on(settings):
        console.print(indent(f"# {about}\n{command}", "  "), soft_wrap=True, highlight=False, markup=False)


def main() -> None:
    """Entry point."""
    console = Console(width=None if sys.stdout.isatty() else 130)
    home = Path(os.environ.setdefault("DAGSTER_HOME", str(DAGSTER_HOME.absolute())))
    home.mkdir(parents=True, exist_ok=True)
    if not (home / "dagster.yaml").exists():
        shutil.copy(DAGSTER_YAML, home / "dagster.yaml")
    try:
        run_demo(console)
    except StatelakeError as error:
        console.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
