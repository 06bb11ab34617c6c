"""What the commands share: where they print and log, the settings of this directory, an engine on their root, the jobs.

The engine's log goes to standard error, as lines for people or as JSON for machines. The engine itself only writes to
Python's loggers below ``state_engine``, with the facts (job, checkpoint, …) as fields beside the text; whoever runs it
elsewhere sets these up as is usual there. Jobs are looked up in the registry of the engine, see
``state_engine.registry``.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape

from state_engine.cli.form import for_people
from state_engine.core.errors import ConfigurationError, InternalError, StatelakeError
from state_engine.core.names import check_name
from state_engine.machine.settings import (
    FILE_NAME,
    FILE_VARIABLE,
    LoadedSettings,
    LoggingSettings,
    Settings,
    load,
)
from state_engine.monitoring.job_history import JobHistory, read_history
from state_engine.storage.stores.files import normal_uri
from state_engine.storage.stores.object_stores import PROCESS_STORES

if TYPE_CHECKING:
    from state_engine.engine.engine import StateEngine
    from state_engine.job.job import StatefulJob
    from state_engine.registry import RegisteredJob

console = Console()
errors = Console(stderr=True)

LOGGER = "state_engine"


def say(text: str) -> None:
    """Print a line as it is: nothing in it is markup, and it is not wrapped."""
    console.print(text, soft_wrap=True, highlight=False, markup=False)


def remark(text: str) -> None:
    """Print a line to standard error: for people only, where programs read the rest."""
    errors.print(text, soft_wrap=True, highlight=False, markup=False)


def show_failure(job: str, error: Exception) -> None:
    """Print why a job failed, where others run after it: of a foreseen error its message, else the traceback."""
    what = f"job '{job}': {error}" if f"'{job}'" not in str(error) else str(error)
    errors.print(f"[red]error[/]: {escape(what)}", soft_wrap=True, highlight=False)
    for note in getattr(error, "__notes__", ()):
        errors.print(note, soft_wrap=True, highlight=False, markup=False, style="dim")
    if not isinstance(error, StatelakeError) or isinstance(error, InternalError):
        remark("".join(traceback.format_exception(error)).rstrip())


def progressed(text: str) -> None:
    """Print a line about work that goes on."""
    (say if for_people() else remark)(text)


def listed(values: Iterable[object], *, none: str = "none") -> str:
    """Values with commas between them."""
    return ", ".join(map(str, values)) or none


def loaded_settings() -> LoadedSettings:
    """The settings file of this directory, overridden by the environment; the log is shown as they say."""
    loaded = load(environ=os.environ, directory=Path.cwd())
    set_up_logs(loaded.settings.logging)
    PROCESS_STORES.describe(loaded.settings.storage)
    return loaded


def no_settings() -> str:
    """Where settings were looked for, if nothing says what they are; else nothing."""
    directory = Path.cwd()
    if (directory / FILE_NAME).is_file() or any(name.startswith("STATELAKE_") for name in os.environ):
        return ""
    return (
        f"No {FILE_NAME} was found in {directory}, and {FILE_VARIABLE} names no other file: start statelake in the "
        f"directory of a project, or set {FILE_VARIABLE}"
    )


def set_up_logs(settings: LoggingSettings) -> None:
    """Show the engine's log from a level on; called again, it replaces what it set up before."""
    handler: logging.Handler
    if settings.format == "json":
        handler = logging.StreamHandler()
        handler.setFormatter(_json_lines())
    else:
        handler = RichHandler(console=Console(stderr=True), show_path=False)
    logger = logging.getLogger(LOGGER)
    logger.handlers = [handler]
    logger.setLevel(settings.level.upper())
    logging.getLogger().addFilter(_raised_anyway)


def _raised_anyway(record: logging.LogRecord) -> bool:
    """Whether a record of the root logger is none of py4j's: what fails as it calls Java, it logs and raises."""
    return "while sending command" not in record.getMessage()


def _json_lines() -> logging.Formatter:
    import structlog  # here: it takes a tenth of a second

    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.stdlib.ExtraAdder(),
            structlog.processors.TimeStamper(fmt="iso", utc=True),
        ],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str, ensure_ascii=False),
        ],
    )


@contextmanager
def opened(doing: str = "", *, spark: bool = True) -> Iterator[StateEngine]:
    """The engine on the root that the settings name.

    Args:
        spark: whether to start Spark; else the engine does where it needs it.
    """
    with errors.status("Starting Spark …" if spark else "Loading …"):
        from state_engine.engine.engine import (
            StateEngine,
        )  # here: most of the engine is needed only with Spark
        from state_engine.spark.session import local_session

        settings = loaded_settings().settings
        session = local_session(settings) if spark else None
        engine = StateEngine(settings.root, session, durability=settings.durability)
    with engine:
        if not doing:
            yield engine
            return
        with errors.status(f"{doing} …"):
            yield engine


def history_of(name: str) -> JobHistory:
    """What a job has recorded, read without Spark."""
    root = loaded_settings().settings.root
    _leave_pandas_alone()
    history = read_history(root, check_name(name, what="job"))
    if history is None:
        raise ConfigurationError(f"job '{name}' has no checkpoint in {normal_uri(root)} yet: run it first")
    return history


class _NoPandas:
    """A finder of modules, for a moment the first, that says there is no pandas."""

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def _leave_pandas_alone() -> None:
    """Have pyarrow look for pandas now, and not find it: with its first array it looks once, and imports it.

    That takes a third of a second, and commands that only look make no data frames. What asks pyarrow for one later
    still gets it.
    """
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)


def declared(name: str) -> RegisteredJob:
    """A job of the project. Raises ConfigurationError where the name is unknown."""
    from state_engine.registry import job_named  # here: jobs are not needed by those that only look

    settings = loaded_settings().settings
    return job_named(name, registered(settings), settings)


def known(name: str) -> StatefulJob | str:
    """A job where a registry has it; else just its name."""
    job = registered(loaded_settings().settings).get(name)
    return name if job is None else job.job


def registered(settings: Settings) -> dict[str, RegisteredJob]:
    """All jobs that the settings name, by their names."""
    from state_engine.registry import project_jobs  # here: jobs are not needed by those that only look

    return project_jobs(settings)
