"""What the commands share: where they print, the settings of this directory, an engine on their root, and the jobs.

Jobs are found by the registries that installed packages offer as entry points of the group ``statelake.jobs``:
functions that take the settings and return objects with ``job`` and ``prepare``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from rich.console import Console

from state_engine.cli.logs import set_up_logs
from state_engine.core.errors import ConfigurationError
from state_engine.engine.engine import StateEngine
from state_engine.job.job import StatefulJob
from state_engine.machine.settings import LoadedSettings, load
from state_engine.spark.session import local_session

console = Console()

REGISTRIES = "statelake.jobs"


class Registered(Protocol):
    """A job, and what makes its input available."""

    @property
    def job(self) -> StatefulJob:
        """The graph."""

    @property
    def prepare(self) -> Callable[[], object]:
        """Called before every run."""


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


def declared(name: str) -> Registered:
    """A job by its name.

    Raises:
        ConfigurationError: there is none; names those that there are.
    """
    settings, found = loaded_settings().settings, _registered()
    if name not in found:
        raise ConfigurationError(
            f"there is no job '{name}' in the modules {settings.jobs.modules}; there are {sorted(found)}. "
            "The setting jobs.modules names the modules that hold jobs"
        )
    return found[name]


def known(name: str) -> StatefulJob | str:
    """A job where a registry has it; else just its name."""
    found = _registered().get(name)
    return name if found is None else found.job


def _registered() -> dict[str, Registered]:
    settings = loaded_settings().settings
    look_for_modules_here()
    return {
        registered.job.name: registered
        for registry in entry_points(group=REGISTRIES)
        for registered in registry.load()(settings)
    }
