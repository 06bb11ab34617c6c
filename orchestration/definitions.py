"""The one entry point of Dagster: the jobs that the settings name."""

from state_engine import load_settings
from state_engine.dagster import build

defs = build(load_settings())
