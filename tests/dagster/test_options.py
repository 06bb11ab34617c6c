"""How much jobs bring into Dagster: few things by default, everything where somebody wants it; and a click on all."""

from __future__ import annotations

import os
from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import SparkSession

import state_engine.dagster
from state_engine import StateEngine
from state_engine.core.errors import ConfigurationError
from state_engine.dagster import JobOptions, statelake_definitions
from state_engine.machine.settings import Settings
from tests.dagster.many_jobs import arrive, from_files
from tests.dagster.sites import QUIET

JOBS = ("one", "two", "three")
LONG_AGO_S = 1_000_000_000


def counts(defs: dg.Definitions) -> dict[str, int]:
    checks = [c for c in defs.asset_checks or [] if isinstance(c, dg.AssetChecksDefinition)]
    return {
        "assets": len(list(defs.resolve_all_asset_specs())),
        "jobs": len({job.name for job in defs.resolve_all_job_defs()} - {"__ASSET_JOB"}),
        "schedules": len(list(defs.schedules or [])),
        "sensors": len(list(defs.sensors or [])),
        "checks": sum(len(list(check.check_keys)) for check in checks),
    }


def test_three_jobs_bring_few_things_and_everything_where_that_is_chosen(settings: Settings) -> None:
    few = {"assets": 15, "jobs": 3, "schedules": 3, "sensors": 0, "checks": 16}
    assert counts(statelake_definitions(settings=settings)) == few
    everything = {"assets": 30, "jobs": 24, "schedules": 9, "sensors": 15, "checks": 34}
    assert counts(statelake_definitions(settings=settings, options=JobOptions.everything())) == everything


def test_each_job_has_options_of_its_own(settings: Settings) -> None:
    chosen = JobOptions(operations=["savepoints"], automation=["retention", "watch"], checks=[])
    defs = statelake_definitions(settings=settings, options={"flights": chosen})
    jobs = {job.name for job in defs.resolve_all_job_defs()} - {"__ASSET_JOB"}
    assert jobs == {
        "count_window_average", "daily_delays", "flights", "flights__expire", "flights__savepoint",
    }  # fmt: skip
    assert {sensor.name for sensor in defs.sensors or []} == {"flights__retention", "flights__watch"}
    assert {s.name for s in defs.schedules or []} == {
        "count_window_average_schedule",
        "daily_delays_schedule",
    }


def test_an_automation_brings_what_it_starts() -> None:
    chosen = JobOptions(automation=["compaction", "retention", "savepoint_partitions", "watch"], checks=[])
    assert chosen.operations == {"base", "retention", "savepoints"}
    assert chosen.checks == {"moves_on"}


def test_unknown_names_are_refused(settings: Settings) -> None:
    with pytest.raises(ConfigurationError, match="automation: there is no 'cron'"):
        JobOptions(automation=["cron"])  # type: ignore[list-item]
    with pytest.raises(ConfigurationError, match="operations: there is no 'base'"):
        JobOptions(operations="base")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="options of the job 'flihgts': there is no such job"):
        statelake_definitions(settings=settings, options={"flihgts": JobOptions()})


def test_the_former_function_names_its_successor() -> None:
    with pytest.raises(ImportError, match="statelake_definitions"):
        state_engine.dagster.build  # noqa: B018


def test_materialize_all_deletes_nothing(tmp_path: Path, spark: SparkSession) -> None:
    """With all operations: on a fresh workspace, and once more with files that nobody needs and old checkpoints."""
    arrive(tmp_path, "first", [(1, 10), (2, 20)])
    defs = statelake_definitions(
        [from_files(name, tmp_path) for name in JOBS],
        root=str(tmp_path / "state"),
        options=JobOptions.everything(),
    )
    kept: set[Path] = set()
    with dg.DagsterInstance.ephemeral() as instance:
        for name in ("second", "third"):
            assert materialize_all(defs, instance).success
            assert kept <= files(tmp_path)
            arrive(tmp_path, name, [(1, 1)])
            orphan = tmp_path / "state" / "one" / "operators" / "total" / "changelog" / f"{name}.parquet"
            orphan.write_bytes(b"of an attempt that died")
            os.utime(orphan, (LONG_AGO_S, LONG_AGO_S))
            kept = files(tmp_path)
    with StateEngine(str(tmp_path / "state"), spark) as engine:
        for name in JOBS:
            assert [row.checkpoint_id for row in engine.checkpoints(name) if row.kind == "checkpoint"] == [
                1,
                2,
            ]
            assert all(not row.retired for row in engine.checkpoints(name))
            rows = engine.read_state(name, "total", "total", checkpoint_id=1).collect()
            assert {row.key: row.value for row in rows} == {1: 10, 2: 20}


def materialize_all(defs: dg.Definitions, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    """What the button does, without any configuration; savepoints have partitions, so it leaves them out."""
    savepoints = [dg.AssetKey([name, "operations", "savepoints"]) for name in JOBS]
    all_assets = dg.AssetSelection.all() - dg.AssetSelection.assets(*savepoints)
    job = dg.define_asset_job("everything", all_assets, executor_def=dg.in_process_executor)
    defs = dg.Definitions.merge(defs, dg.Definitions(jobs=[job]))
    return defs.resolve_job_def("everything").execute_in_process(instance=instance, run_config=QUIET)


def files(directory: Path) -> set[Path]:
    """Of data, checkpoints and sinks; markers of locks and commits in the making come and go."""
    return {path for path in directory.rglob("*") if path.suffix in (".parquet", ".json")}
