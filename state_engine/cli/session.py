"""What the commands share: where they print, the settings of this directory, an engine on their root, and the jobs.

Jobs are found by the registry of the engine, see ``state_engine.registry``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from state_engine.cli.logs import set_up_logs
from state_engine.core.errors import ConfigurationError
from state_engine.engine.engine import StateEngine
from state_engine.job.job import StatefulJob
from state_engine.machine.settings import LoadedSettings, Settings, load
from state_engine.registry import RegisteredJob, load_jobs
from state_engine.spark.session import local_session

console = Console()


def loaded_settings() -> LoadedSettings:
    """The settings file of this directory, overridden by the environment; the log is shown as they say."""
    loaded = load(environ=os.environ, directory=Path.cwd())
    set_up_logs(loaded.settings.logging)
    return loaded


@contextmanager
def opened() -> Iterator[StateEngine]:
    """The engine on the root that the settings name."""
    with console.status("Starting Spark …"):
        settings = loaded_settings().settings
        engine = StateEngine(settings.root, local_session(), durability=settings.durability)
    with engine:
        yield engine


def look_for_modules_here() -> None:
    """Modules of jobs are looked up from the current directory, as with ``python -m``."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


def declared(name: str) -> RegisteredJob:
    """A job by its name.

    Raises:
        ConfigurationError: there is none; names those that there are.
    """
    settings = loaded_settings().settings
    found = registered(settings)
    if name not in found:
        raise ConfigurationError(
            f"there is no job '{name}' in the modules {settings.jobs.modules}; there are {sorted(found)}. "
            "The setting jobs.modules names the modules that hold jobs"
        )
    return found[name]


def known(name: str) -> StatefulJob | str:
    """A job where a registry has it; else just its name."""
    found = registered(loaded_settings().settings).get(name)
    return name if found is None else found.job


def registered(settings: Settings) -> dict[str, RegisteredJob]:
    """All jobs that the settings name, by their names."""
    look_for_modules_here()
    return {one.job.name: one for one in load_jobs(settings)}
