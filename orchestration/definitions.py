"""The one entry point of Dagster: the jobs that the settings name, with all that there is."""

from state_engine.dagster import JobOptions, statelake_definitions

defs = statelake_definitions(options=JobOptions.everything())
