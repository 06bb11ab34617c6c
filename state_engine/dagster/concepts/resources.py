"""Resources: the engine that the assets of all jobs use."""

from __future__ import annotations

from functools import cache

import dagster as dg

from state_engine.dagster.engine_resource import StateEngineResource


def definitions(root: str) -> dg.Definitions:
    """The engine of a state root, under the name ``state_engine``."""
    return dg.Definitions(resources={"state_engine": _engine_of(root)})


@cache  # definitions of several jobs are merged where their resource is one and the same object
def _engine_of(root: str) -> StateEngineResource:
    return StateEngineResource(root=root)
