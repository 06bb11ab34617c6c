"""A run that is killed in the middle keeps its slot; the doctor names it and frees the slot."""

# No "from __future__ import annotations" here: Dagster reads the annotations of the assets below.
import logging
import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import EmptyWorkspaceTarget
from dagster._daemon.monitoring.run_monitoring import execute_run_monitoring_iteration

from state_engine.dagster.doctor import dead_holders, free

PROJECT = Path(__file__).parents[2]
POOL = "small_head"
STATELAKE = "from state_engine.cli.main import main; main()"
KILLED = f"""
import os, signal
import dagster as dg

@dg.asset(pool="{POOL}")
def small() -> None:
    os.kill(os.getpid(), signal.SIGKILL)

defs = dg.Definitions(assets=[small], jobs=[dg.define_asset_job("j", executor_def=dg.in_process_executor)])
with dg.DagsterInstance.get() as instance:
    defs.resolve_job_def("j").execute_in_process(instance=instance)
"""


def python(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("STATELAKE", "DAGSTER"))}
    return subprocess.run(
        [sys.executable, *arguments],
        env=environ | {"DAGSTER_HOME": str(home), "PYTHONPATH": str(PROJECT)},
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.long
def test_a_killed_run_keeps_its_slot_until_the_doctor_gives_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dagster.yaml").write_text((PROJECT / "orchestration" / "dagster.yaml").read_text())
    assert python(tmp_path, "-c", KILLED).returncode == -9
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    with (
        dg.DagsterInstance.get() as instance,
        WorkspaceProcessContext(instance, EmptyWorkspaceTarget()) as daemon,
    ):
        list(execute_run_monitoring_iteration(daemon, logging.getLogger("daemon")))
        [run] = instance.get_runs()
        assert run.status == dg.DagsterRunStatus.STARTED  # if Dagster notices by itself, the doctor can go
    seen = python(tmp_path, "-m", "state_engine.dagster.doctor")
    assert seen.returncode == 1, seen.stderr
    assert f"pool {POOL}: held by run" in seen.stdout
    assert "is gone" in seen.stdout
    engines = python(tmp_path, "-c", STATELAKE, "doctor", "--no-spark")
    assert engines.returncode == 1, engines.stderr
    assert f"Pool {POOL}: give the slot back: python -m state_engine.dagster.doctor --free" in engines.stdout
    freed = python(tmp_path, "-m", "state_engine.dagster.doctor", "--free")
    assert freed.returncode == 0, freed.stderr
    engines = python(tmp_path, "-c", STATELAKE, "doctor", "--no-spark")
    assert "no dead run holds a slot" in engines.stdout
    again = python(tmp_path, "-m", "state_engine.dagster.doctor")
    assert (again.returncode, again.stdout) == (0, "No dead run holds a slot of a pool.\n")
    with dg.DagsterInstance.get() as instance:
        [run] = instance.get_runs()
        assert run.status == dg.DagsterRunStatus.FAILURE
        assert instance.event_log_storage.get_concurrency_info(POOL).claimed_slots == []


def test_a_run_that_lives_is_left_alone_and_one_that_is_over_is_not(tmp_path: Path) -> None:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:

        @dg.asset(pool=POOL)
        def small(context: dg.AssetExecutionContext) -> None:
            seen.extend(dead_holders(context.instance))
            own.extend(context.instance.event_log_storage.get_concurrency_info(POOL).claimed_slots)

        seen: list[object] = []
        own: list[object] = []
        instance.event_log_storage.set_concurrency_slots(POOL, 1)
        defs = dg.Definitions(
            assets=[small], jobs=[dg.define_asset_job("j", executor_def=dg.in_process_executor)]
        )
        done = defs.resolve_job_def("j").execute_in_process(instance=instance)
        assert (len(own), seen) == (1, [])
        instance.event_log_storage.claim_concurrency_slot(POOL, done.run_id, "left behind")
        [dead] = dead_holders(instance)
        assert dead.why == "the run is over: SUCCESS"
        free(instance, dead)
        assert list(dead_holders(instance)) == []
