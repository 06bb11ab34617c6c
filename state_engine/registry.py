"""The registry: finds the jobs of a project by name, for commands and orchestrators.

A module takes part by offering ``jobs(settings)``, which returns its jobs as ``RegisteredJob``. The setting
``jobs.modules`` names modules, or packages whose modules are all looked into, so a new file in such a package appears
by itself. Installed packages name theirs as entry points of the group ``statelake.jobs``. Registering builds the graph
of a job and nothing else: no Spark, no data, no network.
"""

from __future__ import annotations

import difflib
import importlib
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from state_engine import StatefulJob
from state_engine.core.argument_checks import checked_class
from state_engine.core.cron import check_cron
from state_engine.core.errors import ConfigurationError
from state_engine.expectations.gates import add_gates
from state_engine.expectations.suites import OfSink, Suite
from state_engine.machine.settings import Settings, load

GROUP = "statelake.jobs"
"""Entry points that name modules with jobs."""

EVERY_TEN_MINUTES = "*/10 * * * *"
_OWNER = re.compile(r"team:.+|[^@\s]+@[^@\s]+")


def nothing() -> None:
    """The preparation of a job whose input arrives by itself."""


@checked_class
@dataclass(frozen=True, kw_only=True)
class RegisteredJob:
    """A job and what an orchestrator needs besides.

    Attributes:
        job: the graph.
        prepare: makes the input available; called before every run, so it must be quick when there is nothing to do.
        cron: when the job is to run, once its schedule is switched on.
        description: for people; the first paragraph is shown in lists.
        owners: who answers for it: mail addresses, or ``team:<name>``.
        expectations: what its outputs and states are expected to be. A suite with ``gate`` becomes a gate of the job.

    Raises:
        ConfigurationError: a part is not what it must be, or a suite is about a sink or operator that the job lacks.
    """

    job: StatefulJob
    prepare: Callable[[], object] = nothing
    cron: str = EVERY_TEN_MINUTES
    description: str = ""
    owners: tuple[str, ...] = ()
    expectations: tuple[Suite, ...] = ()

    def __post_init__(self) -> None:
        where = f"job '{self.job.name}'"
        check_cron(self.cron, what=where)
        for owner in self.owners:
            if not _OWNER.fullmatch(str(owner)):
                raise ConfigurationError(
                    f"{where}: {owner!r} is not an owner: give a mail address, or 'team:' and a name"
                )
        for suite in self.expectations:
            _check_subject(where, self.job, suite)
        add_gates(self.job, self.expectations)


def _check_subject(where: str, job: StatefulJob, suite: Suite) -> None:
    """Refuse a suite about what the job does not have; its states are known once it runs."""
    kind, name, known = (
        ("sink", suite.of.sink, list(job.sinks))
        if isinstance(suite.of, OfSink)
        else ("operator", suite.of.operator, list(job.operators))
    )
    if name not in known:
        raise ConfigurationError(
            f"{where}, suite '{suite.name}': there is no {kind} '{name}'; there are {known}"
        )


class JobParameters(BaseModel):
    """Base of a job's typed parameters: the section ``[jobs.parameters.<job>]`` of the settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def of(cls, settings: Settings, job: str) -> Self:
        """The parameters of one job.

        Raises:
            ConfigurationError: a parameter does not exist, or its value does not fit.
        """
        try:
            return cls.model_validate(settings.jobs.parameters.get(job, {}))
        except ValidationError as error:
            problems = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
            raise ConfigurationError(
                f"settings, section jobs.parameters.{job}: {'; '.join(problems)}. "
                f"Parameters are {sorted(cls.model_fields)}"
            ) from None


def load_jobs(settings: Settings) -> list[RegisteredJob]:
    """All jobs of the modules that the settings name, in that order, then those of installed packages.

    Raises:
        ConfigurationError: a module is missing or offers no jobs, a name is taken twice, or there are parameters
            of a job that does not exist.

    Example:
        >>> settings = Settings(jobs={"modules": ["jobs"]})
        >>> [registered.job.name for registered in load_jobs(settings)]
        ['count_window_average', 'daily_delays', 'flights']
    """
    by_name: dict[str, RegisteredJob] = {}
    places = [(name, "settings, jobs.modules") for name in settings.jobs.modules]
    places += [(e.value, f"entry point '{e.name}' of the group {GROUP}") for e in entry_points(group=GROUP)]
    for module in (m for name, where in places for m in _modules(name, where)):
        for registered in module.jobs(settings):
            name = registered.job.name
            if name in by_name:
                raise ConfigurationError(f"two jobs are named '{name}', one of them in {module.__name__}")
            by_name[name] = registered
    for name in settings.jobs.parameters:
        if name not in by_name:
            near = difflib.get_close_matches(name, by_name, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"jobs are {sorted(by_name)}"
            raise ConfigurationError(f"settings, jobs.parameters.{name}: there is no such job: {hint}")
    return list(by_name.values())


def project_jobs(settings: Settings) -> dict[str, RegisteredJob]:
    """All jobs that the settings name, by their names; modules are also looked up from the current directory."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    return {one.job.name: one for one in load_jobs(settings)}


def job_named(name: str, known: Mapping[str, RegisteredJob], settings: Settings) -> RegisteredJob:
    """One of ``project_jobs``. Raises ConfigurationError where the name is unknown."""
    if name not in known:
        raise ConfigurationError(
            f"there is no job '{name}' in the modules {settings.jobs.modules}; there are {sorted(known)}. "
            "The setting jobs.modules names the modules that hold jobs"
        )
    return known[name]


def project_job(name: str) -> StatefulJob:
    """A job of the project in the current directory, as commands find it: by its settings. For tests.

    Raises:
        ConfigurationError: there is no such job, or as ``load_jobs``.

    Example::

        harness = KeyHarness(project_job("sums"), "sums", "ann")
    """
    settings = load(environ=os.environ, directory=Path.cwd()).settings
    return job_named(name, project_jobs(settings), settings).job


def registered_job(job: StatefulJob | RegisteredJob) -> RegisteredJob:
    """A job with what an orchestrator needs besides.

    Raises:
        ConfigurationError: it is neither a job nor a registered one.
    """
    if isinstance(job, RegisteredJob):
        return job
    if isinstance(job, StatefulJob):
        return RegisteredJob(job=job)
    raise ConfigurationError(f"a StatefulJob or a RegisteredJob is needed, not {job!r}")


def beside(settings: Settings, *parts: str) -> str:
    """A location next to the state root, where a job puts what the settings do not place elsewhere.

    Example:
        >>> beside(Settings(root="s3a://bucket/lake/state"), "sinks", "flights")
        's3a://bucket/lake/sinks/flights'
    """
    return "/".join([settings.root.rstrip("/").rpartition("/")[0] or ".", *parts])


def data_directory(settings: Settings) -> Path:
    """Where feeds are prepared: next to a local state root, else below the current directory.

    Example:
        >>> data_directory(Settings(root="/lake/state")).as_posix()
        '/lake/feeds'
    """
    remote = "://" in settings.root
    return Path(".statelake/feeds") if remote else Path(beside(settings, "feeds"))


def _modules(name: str, where: str) -> Iterator[ModuleType]:
    """The module of that name if it offers jobs; of a package, its modules that do."""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module is there, but something that it imports is not
        raise ConfigurationError(f"{where}: there is no module '{name}' on Python's path") from error
    if callable(getattr(module, "jobs", None)):
        yield module
        return
    inside = [info.name for info in pkgutil.iter_modules(getattr(module, "__path__", []), f"{name}.")]
    offering = [m for m in map(importlib.import_module, inside) if callable(getattr(m, "jobs", None))]
    if not offering:
        raise ConfigurationError(f"{where}: '{name}' offers no jobs: define jobs(settings) there")
    yield from offering
