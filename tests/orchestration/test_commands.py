"""Dagster's own commands on the project as it is, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from state_engine.dagster.naming import checkpoint_key, state_key

PROJECT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def run(tmp_path: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """In the project's directory, with a state root and a Dagster instance of its own."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("STATELAKE", "DAGSTER"))}
    home = tmp_path / "dagster"
    home.mkdir(exist_ok=True)
    (home / "dagster.yaml").write_text((PROJECT / "orchestration" / "dagster.yaml").read_text())
    return subprocess.run(
        [str(BIN / command[0]), *command[1:]],
        cwd=PROJECT,
        env=environ
        | {
            "DAGSTER_HOME": str(home),
            "STATELAKE__ROOT": str(tmp_path / "state"),
            "STATELAKE__SPARK__MASTER": "local[2]",
            "STATELAKE__SPARK__DRIVER_MEMORY": "1g",
            "VIRTUAL_ENV": str(BIN.parent),
        },
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def test_definitions_are_valid_to_dagster(tmp_path: Path) -> None:
    """``make check`` asks ``dg`` the same."""
    done = run(tmp_path, "dagster", "definitions", "validate", "-w", "workspace.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "state").exists()


@pytest.mark.long
@pytest.mark.spark
def test_launch_from_the_shell_leaves_a_history(tmp_path: Path) -> None:
    done = run(tmp_path, "dg", "launch", "--assets", "group:count_window_average")
    assert done.returncode == 0, done.stdout + done.stderr
    with dg.DagsterInstance.from_ref(
        dg.DagsterInstance.local_temp(str(tmp_path / "dagster")).get_ref()
    ) as instance:
        for key, expected in (
            (checkpoint_key("count_window_average"), "3"),
            (state_key("count_window_average", "count_window_average", "window"), "3"),
        ):
            event = instance.get_latest_materialization_event(key)
            assert event is not None
            assert event.asset_materialization is not None
            assert (event.asset_materialization.tags or {})["dagster/data_version"] == expected
