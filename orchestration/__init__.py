"""Dagster only: turns jobs into assets, checks and schedules. No state logic."""
