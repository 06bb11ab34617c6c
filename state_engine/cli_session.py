"""What the commands share: where they print, the settings of this directory, and an engine on the root of these."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from state_engine.runtime.engine import StateEngine
from state_engine.runtime.session import local_session
from state_engine.runtime.settings import LoadedSettings, load

console = Console()


def loaded_settings() -> LoadedSettings:
    """The settings file of this directory, overridden by the environment."""
    return load(environ=os.environ, directory=Path.cwd())


@contextmanager
def opened() -> Iterator[StateEngine]:
    """The engine on the root that the settings name."""
    settings = loaded_settings().settings
    with console.status("Starting Spark …"):
        engine = StateEngine(settings.root, local_session(settings.spark))
    with engine:
        yield engine
