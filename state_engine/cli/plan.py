"""The command ``statelake plan``: what a run of today's code would do to a job; starts neither Spark nor Java.

Exit codes: 0: the same, or it continues; 2: a replay would make again what other code made; 3: a run is refused; 1: an
error of the command.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

import typer
from pyspark.sql import SparkSession
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from state_engine.cli.form import for_people
from state_engine.cli.output import show
from state_engine.cli.session import console, declared, loaded_settings, no_settings, registered, remark, say
from state_engine.cli.tables import table
from state_engine.code_changes.job_plan import JobPlan, Verdict
from state_engine.code_changes.planned import plan_of
from state_engine.core.errors import ConfigurationError

_STYLES: dict[Verdict, str] = {"same": "dim", "continues": "green", "replay": "yellow", "refused": "red"}


def plan(
    job: Annotated[
        str | None, typer.Argument(help="Name of the job; all registered ones by default.")
    ] = None,
    root: Annotated[
        str | None,
        typer.Option(metavar="URI", help="The root to compare with; that of the settings by default."),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, for a pull request.")] = False,
    sample: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Also run the code over the last N recorded rows, and compare."
        ),
    ] = None,
    spark: Annotated[
        bool, typer.Option("--spark", help="With --sample: start Spark for what needs it.")
    ] = False,
) -> None:
    """Show what a run of today's code would do; ends with 0: goes on; 2: a replay is due; 3: refused."""
    if spark and sample is None:
        raise ConfigurationError("--spark is for the rows of --sample: give --sample N, or leave it out")
    plans = _plans(job, root, sample, spark=spark)
    if looked := no_settings():
        remark(looked)
    if markdown and for_people():
        say("\n\n".join(one.markdown() for one in plans))
    else:
        show_plans(plans)
    raise typer.Exit(code=max((one.exit_code for one in plans), default=0))


def _plans(job: str | None, root: str | None, sample: int | None, *, spark: bool) -> list[JobPlan]:
    settings = loaded_settings().settings
    jobs = [declared(job).job] if job else [one.job for one in registered(settings).values()]
    now_ms = time.time_ns() // 1_000_000

    def session() -> SparkSession:
        from state_engine.spark.session import local_session  # here: a plan without it starts none

        return local_session(settings)

    return [
        plan_of(
            root or settings.root,
            one,
            clock=lambda: now_ms,
            parameters={},
            sample=sample,
            session=session if spark else None,
        )
        for one in jobs
    ]


def show_plans(plans: Sequence[JobPlan]) -> None:
    """Print plans, part by part."""
    show([one.to_json() for one in plans], lambda: plan_table(plans))
    for one in plans if for_people() else ():
        for line in (one.summary(), *one.lines()):
            console.print(escape(line), soft_wrap=True, highlight=False)


def plan_table(plans: Sequence[JobPlan]) -> Table:
    """One line a part."""
    rows = [
        (plan.job, str(one.part), Text(one.verdict, _STYLES[one.verdict]), one.text)
        for plan in plans
        for one in plan.parts
    ]
    return table(
        ("job", "part", "verdict", "what differs"), rows, folds=("what differs",), usual={"what differs": ""}
    )
