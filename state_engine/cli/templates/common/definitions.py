"""What Dagster loads: the jobs that statelake.toml names, as assets, jobs and schedules."""

from state_engine import load_settings
from state_engine.dagster import build

defs = build(load_settings())
