"""Dagster definitions of any registered job. The only package that imports Dagster; the extra ``dagster`` brings it."""

from state_engine.core.extras import optional

optional("dagster", needed_by="state_engine.dagster")

from state_engine.dagster.definitions import build  # noqa: E402 - what it imports is what was just looked for

__all__ = ["build"]
