"""Jobs as Dagster definitions. The only package that imports Dagster; the extra ``dagster`` brings it."""

from typing import Any

from state_engine.core.extras import optional

optional("dagster", needed_by="state_engine.dagster")

# ruff: noqa: E402 - what these import is what was just looked for
from state_engine.dagster.asset_checks import output_check, state_check
from state_engine.dagster.component import JobComponent
from state_engine.dagster.definitions import statelake_assets, statelake_definitions
from state_engine.dagster.engine_resource import StateEngineResource
from state_engine.dagster.external.launch import PipesLaunch
from state_engine.dagster.options import JobOptions
from state_engine.dagster.translator import StatelakeTranslator, StatelakeTranslatorData
from state_engine.monitoring.strains import HealthLimits

__all__ = [
    "HealthLimits",
    "JobComponent",
    "JobOptions",
    "PipesLaunch",
    "StateEngineResource",
    "StatelakeTranslator",
    "StatelakeTranslatorData",
    "output_check",
    "state_check",
    "statelake_assets",
    "statelake_definitions",
]


def __getattr__(name: str) -> Any:
    if name == "build":
        raise ImportError(
            "state_engine.dagster.build(settings) is statelake_definitions(settings=settings) now. It brings less by "
            "default: options=JobOptions.everything() brings what build did"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
