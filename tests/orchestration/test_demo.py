"""What ``make demo`` names at its end does what it says, with the root and the feed of the demo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from orchestration.demo import JOB, demo_settings, way_on
from state_engine import Settings, StateEngine
from state_engine.registry import load_jobs

PROJECT = Path(__file__).parents[2]
MONTHS = ["2013-01", "2013-02"]


def shell(command: str, home: Path) -> str:
    """What a command prints in the project's directory."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("STATELAKE")}
    environ = inherited | {"DAGSTER_HOME": str(home), "VIRTUAL_ENV": str(PROJECT / ".venv")}
    command = command.replace(".venv/bin", str(Path(sys.executable).parent))
    done = subprocess.run(
        ["/bin/sh", "-c", command], cwd=PROJECT, env=environ, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.spark
def test_what_the_demo_names_at_its_end(tmp_path: Path, spark: SparkSession) -> None:
    settings = demo_settings(Settings(), home=tmp_path, feeds=tmp_path / "feeds")
    settings.jobs.parameters[JOB]["months"] = MONTHS
    [registered] = load_jobs(settings)
    registered.prepare()
    with StateEngine(settings.root, spark) as engine:
        engine.run(registered.job)
        recorded = [row.checkpoint_id for row in engine.checkpoints(JOB)]
    ui, checkpoints, again, any_state, tables = (command for _, command in way_on(settings))
    assert f"\n{ui.removeprefix('make ')}:" in (PROJECT / "Makefile").read_text()
    (tmp_path / "dagster").mkdir()
    assert "RUN_SUCCESS" in shell(again, tmp_path / "dagster")
    listed = shell(f"{checkpoints} --json", tmp_path / "dagster")
    assert [json.loads(line)["id"] for line in listed.splitlines()] == recorded, "nothing happened"
    for python in (any_state.replace("checkpoint_id=6", "checkpoint_id=2"), tables):
        exec(python, {})
