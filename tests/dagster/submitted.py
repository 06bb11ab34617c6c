"""What the tests launch by ``spark-submit``: does what a run of Dagster asks for, with the jobs of the settings."""

from __future__ import annotations

from state_engine.pipes import run_for_dagster

if __name__ == "__main__":
    run_for_dagster()
