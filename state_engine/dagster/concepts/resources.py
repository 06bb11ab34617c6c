"""Resources: the engine that the assets of all jobs use, and the executor."""

from __future__ import annotations

import dagster as dg

from state_engine.dagster.engine_resource import StateEngineResource
from state_engine.machine.settings import Settings


def definitions(settings: Settings) -> dg.Definitions:
    """The engine under the name ``state_engine``; runs stay in one process, because a session cannot be shared."""
    return dg.Definitions(
        resources={"state_engine": StateEngineResource(root=settings.root)},
        executor=dg.in_process_executor,
    )
