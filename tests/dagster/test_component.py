"""``JobComponent``: built in Python, and scaffolded into a fresh project whose own assets are above and below it."""

from __future__ import annotations

import json
from pathlib import Path

import dagster as dg
import pytest
from dagster.components import ScaffoldRequest

from state_engine.core.errors import ConfigurationError
from state_engine.dagster import JobComponent
from state_engine.dagster.component import JobComponentParams, JobComponentScaffolder
from tests.dagster.project import Project

TYPE = "state_engine.dagster.JobComponent"
TICK = """
from pathlib import Path

import dagster as dg
import shop

defs = dg.load_from_defs_folder(path_within_project=Path(shop.__file__).parent)
schedule = defs.resolve_schedule_def("totals_schedule")
with dg.DagsterInstance.get() as instance, dg.build_schedule_context(instance=instance) as context:
    [request] = schedule.evaluate_tick(context).run_requests
    job = defs.resolve_job_def(schedule.job_name)
    done = job.execute_in_process(instance=instance, run_config=request.run_config, tags=request.tags)
    print(done.success, len(done.get_asset_materialization_events()))
"""


def keys(component: JobComponent) -> set[str]:
    defs = component.build_defs(dg.ComponentTree.for_test().load_context)
    return {spec.key.to_user_string() for spec in defs.resolve_all_asset_specs()}


def test_a_component_has_the_assets_of_its_job_and_what_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop_orders.py").write_text(
        "from tests.dagster.many_jobs import from_files, Path\njob = from_files('orders', Path('/nowhere'))\n"
        "def build():\n    return job\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    upstream = {"rows": "raw/orders"}
    component = JobComponent(job="shop_orders:job", operations=["base"], upstream=upstream)
    made = {"orders/checkpoint", "orders/sinks/totals", "orders/state/total/total"}
    assert keys(component) == {*made, "orders/operations/base", "raw/orders"}
    assert keys(JobComponent(job="shop_orders:build", root="s3a://lake/state")) == {
        *made,
        "orders/sources/rows",
    }
    everything = JobComponent(job="shop_orders:job", operations="all", automation="all", checks="all")
    defs = everything.build_defs(dg.ComponentTree.for_test().load_context)
    assert len(list(defs.sensors or [])) == 5
    assert defs.executor is None  # that of the project stays in force


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ("jobs.nothing:job", "there is no module 'jobs.nothing'"),
        ("jobs.flights:job", "has no 'job'"),
        ("jobs.flights:__name__", "a StatefulJob or a RegisteredJob is needed"),
    ],
)
def test_a_job_that_is_not_there_is_named(job: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        JobComponent(job=job).build_defs(dg.ComponentTree.for_test().load_context)


def test_a_new_job_is_written_where_none_is_named(tmp_path: Path) -> None:
    directory = tmp_path / "src" / "shop" / "defs" / "first"
    directory.mkdir(parents=True)
    request = ScaffoldRequest(
        type_name=TYPE,
        target_path=directory,
        scaffold_format="yaml",
        project_root=tmp_path,
        params=JobComponentParams(),
    )
    JobComponentScaffolder().scaffold(request)
    assert "job: shop.defs.first.job:job" in (directory / "defs.yaml").read_text()
    namespace: dict[str, object] = {}
    exec((directory / "job.py").read_text(), namespace)
    assert "StatefulJob('first'" in repr(namespace["job"])


@pytest.mark.timeout(1200)  # a dozen commands, each a process with an engine
@pytest.mark.long
@pytest.mark.spark
def test_in_a_fresh_project_it_is_scaffolded_and_runs_beside_the_assets_that_are_there(
    tmp_path: Path,
) -> None:
    project = Project(tmp_path)
    assert TYPE in project.run("dg", "list", "components", "--json")
    project.run("dg", "scaffold", "defs", TYPE, "totals", "--job", "shop.jobs.orders:totals_so_far")
    project.run(
        "dg", "scaffold", "defs", TYPE, "daily", "--format", "python", "--job", "shop.jobs.orders:by_day"
    )
    project.run("dg", "scaffold", "defs", TYPE, "first")
    project.add("totals", "  job: shop.jobs.orders:totals_so_far\n  upstream:\n    orders: raw/orders\n")
    project.run("dg", "check", "yaml")
    project.run("dg", "check", "defs")
    assets = {
        asset["asset_key"]: asset
        for asset in json.loads(project.run("dg", "list", "defs", "--json"))["assets"]
    }
    assert assets["totals/checkpoint"]["dependency_keys"] == ["raw/orders"]
    assert assets["best_customers"]["dependency_keys"] == ["totals/sinks/totals"]
    assert {"daily/checkpoint", "first/checkpoint"} <= set(assets)

    project.run("dg", "launch", "--assets", "key:raw/orders or group:totals or key:best_customers")
    project.run("dg", "launch", "--assets", "group:daily", "--partition-range", "2024-03-01...2024-03-03")
    (project.directory / "tick.py").write_text(TICK)
    more = project.directory / "lake" / "orders" / "more.json"
    more.write_text('{"customer": "ann", "amount": 1, "at": "2024-03-03T13:00:00Z"}\n')
    assert project.run("python", "tick.py").splitlines()[-1] == "True 3"
    with dg.DagsterInstance.from_config(str(project.home)) as instance:
        shown = instance.get_latest_materialization_event(dg.AssetKey(["totals", "sinks", "totals"]))
        days = instance.get_materialized_partitions(dg.AssetKey(["daily", "sinks", "totals"]))
        below = instance.get_latest_materialization_event(dg.AssetKey("best_customers"))
    assert shown is not None
    assert shown.asset_materialization is not None
    assert shown.asset_materialization.metadata["rows_out"].value == 1
    assert days == {"2024-03-01", "2024-03-02", "2024-03-03"}
    assert below is not None
