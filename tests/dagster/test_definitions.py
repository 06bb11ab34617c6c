"""The definitions as Dagster sees them: their names, how many there are, and what loading them must not do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import SparkSession

import state_engine.dagster
from state_engine import StateEngine
from state_engine.core.errors import ConfigurationError
from state_engine.dagster import JobOptions, statelake_definitions
from state_engine.dagster.naming import state_key
from state_engine.machine.settings import JobsSettings, Settings
from state_engine.storage.stores.object_stores import PROCESS_STORES, StoreAccess
from tests.dagster.many_jobs import arrive, from_files
from tests.dagster.sites import QUIET

PROJECT = Path(__file__).parents[2]
KEYS = {
    "count_window_average": [
        "count_window_average/checkpoint",
        "count_window_average/sinks/averages",
        "count_window_average/sources/pairs",
        "count_window_average/state/count_window_average/window",
    ],
    "daily_delays": [
        "daily_delays/checkpoint",
        "daily_delays/sinks/delays",
        "daily_delays/sources/flights",
        "daily_delays/state/daily_delays/in_a_row",
    ],
    "flights": [
        "flights/checkpoint",
        "flights/sinks/plane_delays",
        "flights/sinks/route_ranking",
        "flights/state/plane_delays/airports",
        "flights/state/plane_delays/last_flight",
        "flights/state/plane_delays/recent_delays",
        "flights/state/route_ranking/totals",
    ],
}
JOBS = [*KEYS]
OPERATIONS = ["base", "head", "layout", "retention", "savepoints"]
GROUPS = KEYS | {f"{job}_operations": [f"{job}/operations/{name}" for name in OPERATIONS] for job in JOBS}
LAUNCHABLE = ["", "__check", "__compact", "__expect", "__expire", "__recover", "__rescale", "__savepoint"]
SENSORS = ["__compaction", "__new_data", "__retention", "__savepoint_partitions", "__watch"]
SCHEDULES = ["__check_schedule", "__expect_schedule", "_schedule"]
EXPECTATIONS = [
    "count_window_average/sinks/averages:average_is_there",
    "count_window_average/sinks/averages:key_is_there",
    "count_window_average/state/count_window_average/window:window_is_open",
    "daily_delays/sinks/delays:delay_is_late",
    "flights/sinks/plane_delays:aircraft_is_there",
    "flights/sinks/plane_delays:no_flight_twice",
    "flights/state/route_ranking/totals:no_more_arrivals_than_flights",
    "flights/state/route_ranking/totals:route_has_flights",
    "flights/state/route_ranking/totals:three_airports_of_origin",
]
CHECKS = [
    "files_are_there",
    "keys_are_in_their_groups",
    "moves_on",
    "dead_letters",
    "plan",
    "one_commit_per_parent",
    "outputs_are_published",
    "rows_fit_their_parents",
    "positions_are_contiguous",
]


def of_every_job(suffixes: list[str]) -> list[str]:
    return sorted(job + suffix for job in JOBS for suffix in suffixes)


def everything(settings: Settings) -> dg.Definitions:
    return statelake_definitions(settings=settings, options=JobOptions.everything())


def spec(defs: dg.Definitions, key: str) -> dg.AssetSpec:
    return next(s for s in defs.resolve_all_asset_specs() if s.key.to_user_string() == key)


def test_names_are_what_they_were(settings: Settings) -> None:
    defs = everything(settings)
    keys_by_group: dict[str, list[str]] = {}
    for one in defs.resolve_all_asset_specs():
        assert one.group_name is not None
        keys_by_group.setdefault(one.group_name, []).append(one.key.to_user_string())
    assert {group: sorted(keys) for group, keys in keys_by_group.items()} == GROUPS
    jobs = {job.name for job in defs.resolve_all_job_defs()} - {"__ASSET_JOB"}
    assert sorted(jobs) == of_every_job(LAUNCHABLE)
    assert sorted(s.name for s in defs.schedules or []) == of_every_job(SCHEDULES)
    assert sorted(s.name for s in defs.sensors or []) == of_every_job(SENSORS)
    checks = [c for c in defs.asset_checks or [] if isinstance(c, dg.AssetChecksDefinition)]
    keys = sorted(f"{k.asset_key.to_user_string()}:{k.name}" for c in checks for k in c.check_keys)
    of_jobs = [f"{job}/checkpoint:{name}" for job in JOBS for name in CHECKS]
    assert keys == sorted([*EXPECTATIONS, *of_jobs, "daily_delays/checkpoint:late_rows"])


def test_all_automation_is_off_until_somebody_switches_it_on(settings: Settings) -> None:
    defs = everything(settings)
    assert {s.default_status for s in defs.sensors or []} == {dg.DefaultSensorStatus.STOPPED}
    schedules = [s for s in defs.schedules or [] if isinstance(s, dg.ScheduleDefinition)]
    assert {s.default_status for s in schedules} == {dg.DefaultScheduleStatus.STOPPED}
    assert defs.resolve_schedule_def("flights_schedule").cron_schedule == "*/10 * * * *"


def test_operations_depend_on_nothing_and_tell_who_they_are(settings: Settings) -> None:
    defs = everything(settings)
    for name in OPERATIONS:
        one = spec(defs, f"flights/operations/{name}")
        assert list(one.deps) == []
        assert one.skippable
        assert one.tags["statelake/operation"] == name
        assert one.code_version == spec(defs, "flights/checkpoint").code_version
        assert len(one.description or "") > 80


def test_one_multi_asset_a_job_and_none_of_it_is_empty(settings: Settings) -> None:
    definitions = [a for a in everything(settings).assets or [] if isinstance(a, dg.AssetsDefinition)]
    assert sorted(a.op.name for a in definitions if a.op.name.endswith("_micro_batches")) == [
        "count_window_average_micro_batches",
        "daily_delays_micro_batches",
        "flights_micro_batches",
    ]
    [flights] = [a for a in definitions if a.op.name == "flights_micro_batches"]
    assert sorted(k.to_user_string() for k in flights.keys) == [
        k for k in KEYS["flights"] if "/sources/" not in k
    ]
    # An output that is required would turn green in a tick that committed nothing.
    assert not any(output.is_required for output in flights.op.output_defs)


def test_a_job_runs_its_whole_multi_asset_in_one_process(settings: Settings) -> None:
    job = everything(settings).resolve_job_def("flights")
    assert job.executor_def is dg.in_process_executor
    selected = {key.to_user_string() for key in job.asset_layer.executable_asset_keys}
    assert selected == {k for k in KEYS["flights"] if "/sources/" not in k}


def links(of: dg.AssetSpec) -> list[str]:
    references = of.metadata["dagster/code_references"].code_references
    return [f"{Path(one.file_path).relative_to(PROJECT)} {one.label}" for one in references]


def test_specs_tell_columns_locations_kinds_and_docs(settings: Settings) -> None:
    defs = everything(settings)
    sink = spec(defs, "flights/sinks/route_ranking")
    columns = {c.name: c.type for c in sink.metadata["dagster/column_schema"].columns}
    assert list(columns)[:3] == ["departed_at", "carrier", "flight"]
    assert (columns["departed_at"], columns["mean_arr_delay"]) == ("timestamp", "double")
    assert sink.metadata["dagster/uri"].endswith("/sinks/flights/route_ranking")
    assert sink.description is not None
    assert sink.description.startswith("Per route: running totals")
    assert sink.kinds == {"deltalake", "pyspark"}
    state = spec(defs, "flights/state/plane_delays/airports")
    assert state.metadata["state_kind"] == "map"
    assert state.metadata["stored_type"] == "struct<`key`: string, `value`: bigint>"
    assert state.metadata["dagster/uri"].endswith("/state/flights/operators/plane_delays/changelog")
    assert {d.asset_key.to_user_string() for d in state.deps} == {"flights/checkpoint"}
    checkpoint = spec(defs, "flights/checkpoint")
    assert {d.asset_key.to_user_string() for d in checkpoint.deps} == {
        "daily_delays/sources/flights"
    }  # both read it
    assert checkpoint.code_version == state.code_version
    assert len(checkpoint.code_version or "") == 12
    assert links(state) == [
        "jobs/flights.py PlaneDelays",
        "docs/guides/dagster.md Guide: Statelake in Dagster",
    ]
    assert links(checkpoint) == [
        "jobs/flights.py PlaneDelays",
        "jobs/flights.py RouteRanking",
        "docs/guides/dagster.md Guide: Statelake in Dagster",
    ]


USERS_MODULE = '''
from state_engine.registry import RegisteredJob
from state_engine import DeltaSink, FileSource, KeyedProcessFunction, StatefulJob, ValueStateDescriptor

class Broken(KeyedProcessFunction):
    """Wants something that is only there in a run."""
    def open(self, runtime_context):
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", int))
        raise OSError("no model here")

def jobs(settings):
    job = StatefulJob("mine", code_version="v7")
    stream = job.source("rows", FileSource("/none", schema="k bigint"))
    stream.key_by("k").process(Broken(), uid="broken", output_type="bigint").sink("out", DeltaSink("/none/out"))
    return [RegisteredJob(job=job, cron="0 3 * * *")]
'''


def test_a_users_module_appears_and_a_function_that_cannot_open_breaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "my_statelake_jobs.py").write_text(USERS_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    modules = JobsSettings(modules=["jobs", "my_statelake_jobs"])
    defs = everything(Settings(root=str(tmp_path / "state"), jobs=modules))
    assert defs.resolve_schedule_def("mine_schedule").cron_schedule == "0 3 * * *"
    assert spec(defs, "mine/checkpoint").code_version == "v7"
    assert spec(defs, "mine/state/broken/seen").metadata["state_kind"] == "value"
    assert "no model here" in caplog.text


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ({"modules": ["no_such_module"]}, "no module 'no_such_module'"),
        ({"modules": ["jobs.flights_data"]}, "'jobs.flights_data' offers no jobs"),
        ({"modules": ["jobs.flights", "jobs.flights"]}, "two jobs are named 'flights'"),
        ({"modules": ["jobs"], "parameters": {"flihgts": {}}}, "did you mean 'flights'"),
        (
            {"modules": ["jobs"], "parameters": {"flights": {"paralelism": 3}}},
            "section jobs.parameters.flights: paralelism",
        ),
        (
            {"modules": ["jobs"], "parameters": {"flights": {"cut": "week"}}},
            "section jobs.parameters.flights: cut",
        ),
    ],
)
def test_wrong_settings_of_jobs_are_named(jobs: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        everything(Settings(jobs=JobsSettings.model_validate(jobs)))


def test_parameters_of_the_settings_reach_the_job(tmp_path: Path) -> None:
    given = {"flights": {"parallelism": 5, "sinks": str(tmp_path / "elsewhere"), "cut": "day"}}
    defs = everything(Settings(jobs=JobsSettings(modules=["jobs"], parameters=given)))
    assert spec(defs, "flights/checkpoint").metadata["parallelism"] == 5
    uri = spec(defs, "flights/sinks/plane_delays").metadata["dagster/uri"]
    assert uri == f"file://{tmp_path}/elsewhere/plane_delays"
    assert "flights-by-day" in spec(defs, "flights/sources/flights").metadata["dagster/uri"]


LOADING = """
import json, sys, psutil
from orchestration.definitions import defs
defs.get_repository_def().load_all_definitions()  # sensors, schedules and checks as well
print(json.dumps({
    "assets": len(defs.resolve_all_asset_specs()),
    "heavy": sorted({"pyspark", "delta", "great_expectations", "pandas", "matplotlib"} & set(sys.modules)),
    "children": len(psutil.Process().children()),
}))
"""


def test_loading_imports_neither_spark_nor_great_expectations_starts_and_writes_nothing(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADING],
        cwd=tmp_path,
        env={
            "PYTHONPATH": str(PROJECT),
            "PATH": "/nonexistent",
            "HOME": str(tmp_path),
            "STATELAKE__JOBS__MODULES": '["jobs"]',
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report.pop("assets") == sum(map(len, GROUPS.values()))
    assert report == {"heavy": [], "children": 0}
    assert list(tmp_path.iterdir()) == []


def test_states_whose_names_dagster_would_take_for_one_are_assets_of_their_own() -> None:
    names = ("late-data", "late_data", "late data", "Late-Data", "late/data")
    keys = [state_key("job", "Fraud Detector", name) for name in names]
    assert len({key.to_python_identifier() for key in keys}) == len(names)
    assert state_key("job", "operator", "state") == dg.AssetKey(["job", "state", "operator", "state"])


def test_definitions_with_other_stores_name_their_buckets_in_one_process(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the last way would count for the first, too."""
    monkeypatch.setattr(PROCESS_STORES, "_described", {})
    first = settings.model_copy(update={"storage": StoreAccess(endpoint="http://one:9000")})
    statelake_definitions(settings=first)
    statelake_definitions(settings=first)
    second = settings.model_copy(update={"storage": StoreAccess(endpoint="http://two:9000")})
    with pytest.raises(
        ConfigurationError, match=r"in another way already, at http://one:9000.*name the buckets"
    ):
        statelake_definitions(settings=second)
    of_two = StoreAccess(endpoint="http://two:9000", buckets=("two",))
    statelake_definitions(settings=settings.model_copy(update={"storage": of_two}))
    endpoints = [PROCESS_STORES.access(bucket).endpoint for bucket in ("", "one", "two")]
    assert endpoints == ["http://one:9000", "http://one:9000", "http://two:9000"]


THREE_JOBS = ("one", "two", "three")
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
    everything = {"assets": 30, "jobs": 24, "schedules": 9, "sensors": 15, "checks": 37}
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
        [from_files(name, tmp_path) for name in THREE_JOBS],
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
        for name in THREE_JOBS:
            assert [row.checkpoint_id for row in engine.checkpoints(name) if row.kind == "checkpoint"] == [
                1,
                2,
            ]
            assert all(not row.retired for row in engine.checkpoints(name))
            rows = engine.read_state(name, "total", "total", checkpoint_id=1).collect()
            assert {row.key: row.value for row in rows} == {1: 10, 2: 20}


def materialize_all(defs: dg.Definitions, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    """What the button does, without any configuration; savepoints have partitions, so it leaves them out."""
    savepoints = [dg.AssetKey([name, "operations", "savepoints"]) for name in THREE_JOBS]
    all_assets = dg.AssetSelection.all() - dg.AssetSelection.assets(*savepoints)
    job = dg.define_asset_job("everything", all_assets, executor_def=dg.in_process_executor)
    defs = dg.Definitions.merge(defs, dg.Definitions(jobs=[job]))
    return defs.resolve_job_def("everything").execute_in_process(instance=instance, run_config=QUIET)


def files(directory: Path) -> set[Path]:
    """Of data, checkpoints and sinks; markers of locks and commits in the making come and go."""
    return {path for path in directory.rglob("*") if path.suffix in (".parquet", ".json")}
