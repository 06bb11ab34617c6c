"""``run_for_dagster``: does in this process what a run of Dagster asks for, and reports every committed checkpoint.

The only module that imports ``dagster_pipes``. Who launched the process, and how it reports back, is Pipes' own matter:
by default the environment says it; where it does not (a cluster that passes no variables on, messages that go through
a store), open Pipes before, with the loader and the writer that fit: ``dagster_pipes.open_dagster_pipes(…)``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from state_engine.core.errors import ConfigurationError, to_wire
from state_engine.core.extras import missing, optional
from state_engine.machine.defects import guarded_function
from state_engine.machine.settings import load_settings
from state_engine.microbatch.reports import BatchReport, RunReport
from state_engine.pipes.engine_calls import EngineCall, Message
from state_engine.registry import RegisteredJob, load_jobs, registered_job
from state_engine.replay.backfill import BackfillReport
from state_engine.storage.stores.object_stores import PROCESS_STORES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from state_engine import StateEngine, StatefulJob

_CONTEXT = "DAGSTER_PIPES_CONTEXT"
_NOT_LAUNCHED = (
    "no run of Dagster launched this process: launch it from there, by JobOptions(launch=PipesLaunch(command=[…])). "
    "Run a job without Dagster by `statelake run`, or StateEngine.run"
)


@guarded_function
def run_for_dagster(
    jobs: Sequence[StatefulJob | RegisteredJob] | None = None,
    *,
    root: str | None = None,
    spark: SparkSession | None = None,
) -> RunReport | BackfillReport:
    """Do what a run of Dagster asks of this process, and report it there: what a script for ``spark-submit`` calls.

    Each checkpoint is shown in Dagster as if its own process had run the job. So is a failure, which is raised here.

    Args:
        jobs: of which it may ask for one; by default those that the settings name.
        root: the state root, instead of that of the settings; the same as in Dagster.
        spark: session; by default that of ``spark-submit``, or one that is started by the settings.

    Returns:
        What the call of the engine returned.

    Raises:
        ConfigurationError: no run of Dagster launched this process, or it asks for a job that is not there.
        MissingPackageError: dagster-pipes is not installed.
        StatelakeError: whatever the engine raised.

    Example::

        # run_clicks.py, launched by spark-submit
        from my_project.jobs.clicks import job
        from state_engine.pipes import run_for_dagster

        run_for_dagster([job], root="s3a://lake/state")
    """
    optional("dagster_pipes", needed_by="run_for_dagster")
    with launched_run() as launched:
        if launched is None:
            raise ConfigurationError(_NOT_LAUNCHED)
        from state_engine.engine.engine import StateEngine
        from state_engine.spark.session import local_session

        settings = load_settings()
        PROCESS_STORES.describe(settings.storage)
        known = load_jobs(settings) if jobs is None else [registered_job(job) for job in jobs]
        by_name = {one.job.name: one for one in known}
        if launched.call.job not in by_name:
            raise ConfigurationError(
                f"Dagster asks for the job '{launched.call.job}', and this process has {sorted(by_name)}"
            )
        session = local_session(settings) if spark is None else spark
        with StateEngine(root or settings.root, session, durability=settings.durability) as engine:
            return launched.perform(engine, by_name[launched.call.job])


@dataclass(frozen=True)
class LaunchedRun:
    """What a run of Dagster asks of this process."""

    call: EngineCall
    send: Callable[[Message], object]

    def perform(
        self,
        engine: StateEngine,
        registered: RegisteredJob,
        on_progress: Callable[[BatchReport], object] | None = None,
    ) -> RunReport | BackfillReport:
        """Prepare the job's input and make the call; report every batch, and what the call returned."""

        def committed(report: BatchReport) -> None:
            self.send(Message.of_batch(report))
            if on_progress is not None:
                on_progress(report)

        registered.prepare()
        method: Any = engine.run if self.call.method == "run" else engine.backfill
        report: RunReport | BackfillReport = method(
            registered.job, on_progress=committed, **self.call.arguments
        )
        self.send(Message.of_end(report))
        return report


@contextmanager
def launched_run() -> Iterator[LaunchedRun | None]:
    """What a run of Dagster asks of this process; None where none launched it. What is raised inside is reported."""
    if not _is_launched():
        yield None
        return
    from dagster_pipes import open_dagster_pipes

    with open_dagster_pipes() as pipes:

        def send(message: Message) -> None:
            pipes.report_custom_message(message.to_payload())

        try:
            call = EngineCall.from_extras(pipes.extras)
            yield None if call is None else LaunchedRun(call, send)
        except BaseException as error:
            send(Message(failure=to_wire(error)))
            raise


def _is_launched() -> bool:
    """Whether Pipes was opened here, or the environment says who launched this process."""
    if find_spec("dagster_pipes") is None:
        if _CONTEXT in os.environ:  # it would run, and nobody would hear of it
            raise missing("dagster_pipes", needed_by="a process that Dagster launches")
        return False
    from dagster_pipes import PipesContext, PipesEnvVarParamsLoader, PipesParamsLoader

    environment: PipesParamsLoader = PipesEnvVarParamsLoader()  # type: ignore[no-untyped-call]
    return PipesContext.is_initialized() or environment.is_dagster_pipes_process()
