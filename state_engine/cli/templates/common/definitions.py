"""What Dagster loads: the jobs that statelake.toml names, as assets, jobs and schedules."""

from state_engine.dagster import statelake_definitions

defs = statelake_definitions()
