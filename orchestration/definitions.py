"""The one entry point of Dagster: the jobs that the settings name."""

from state_engine.dagster.definitions import build
from state_engine.machine.settings import load_settings

defs = build(load_settings())
