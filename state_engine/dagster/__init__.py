"""Dagster definitions of any registered job. The only package that imports Dagster."""
