"""What the calls of the engine have in common: a job or its name, a clock, who asked."""

from __future__ import annotations

import getpass
import os
import socket
import time
from collections.abc import Callable

from state_engine.core.errors import ConfigurationError
from state_engine.core.names import check_name
from state_engine.job.job import StatefulJob

Clock = int | Callable[[], int] | None
"""Processing time in milliseconds: a fixed one, a function that gives it, or None for the wall clock."""


def job_name(job: StatefulJob | str) -> str:
    return job.name if isinstance(job, StatefulJob) else check_name(job, what="job")


def code_of(job: StatefulJob | str, call: str) -> StatefulJob:
    """A job that was given with its code. Raises ConfigurationError where only its name was."""
    if isinstance(job, StatefulJob):
        return job
    raise ConfigurationError(f"{call} needs the job itself, not only its name '{job}': its code takes part")


def clock_of(clock: Clock) -> Callable[[], int]:
    """A function that gives the processing time in milliseconds."""
    if clock is None:
        return lambda: time.time_ns() // 1_000_000
    if callable(clock):
        return clock
    fixed = int(clock)
    return lambda: fixed


def requester() -> str:
    """Who runs this, where nobody says so: user, host and process."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()} pid {os.getpid()}"
