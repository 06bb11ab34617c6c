"""Resources: the engine that the assets of all jobs use."""

from __future__ import annotations

from functools import cache

import dagster as dg

from state_engine.dagster.engine_resource import StateEngineResource
from state_engine.machine.settings import Settings


def definitions(settings: Settings) -> dg.Definitions:
    """The engine of a state root, under the name ``state_engine``; it brings the modules of jobs to executors."""
    engine = _engine_of(settings.root, tuple(settings.jobs.modules), tuple(settings.jobs.package_data))
    return dg.Definitions(resources={"state_engine": engine})


@cache  # definitions of several jobs are merged where their resource is one and the same object
def _engine_of(root: str, modules: tuple[str, ...], package_data: tuple[str, ...]) -> StateEngineResource:
    return StateEngineResource(root=root, modules=list(modules), package_data=list(package_data))
