"""A fresh project with components in a real browser: a job between assets of the project, a schedule, a backfill."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import dagster as dg
import pytest

from tests.dagster.project import NAME, Project
from tests.support.waiting import until
from tests.ui.dagster_pages import RUN_MS, Ui
from tests.ui.pictures import Album
from tests.ui.server import server

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.ui, pytest.mark.spark, pytest.mark.timeout(1800)]

TYPE = "state_engine.dagster.JobComponent"
TOTALS = dg.AssetKey(["totals", "sinks", "totals"])


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """With two components; the asset that writes orders is upstream of both."""
    new = Project(tmp_path_factory.mktemp("project"))
    for name, job in (("totals", "every_minute"), ("daily", "by_day")):
        new.run("dg", "scaffold", "defs", TYPE, name, "--job", f"shop.jobs.orders:{job}")
        new.add(name, f"  job: shop.jobs.orders:{job}\n  upstream:\n    orders: raw/orders\n")
    return new


@pytest.fixture(scope="module")
def ui(page: Page, album: Album, project: Project) -> Iterator[Ui]:
    log = project.home / "dagster.log"
    command, variables = ["dg", "dev"], project.variables
    with server(command, directory=project.directory, variables=variables, log=log) as address:
        yield Ui(page, address, album, location=NAME)


def test_assets_of_jobs_stand_beside_those_of_the_project(ui: Ui) -> None:
    ui.go("assets")
    ui.sees("raw", "totals", "daily", "reports")
    ui.ends_with("Success", ui.materialize("raw/orders"))


def test_a_schedule_runs_the_job(ui: Ui, project: Project) -> None:
    ui.switch_on("totals_schedule")
    with dg.DagsterInstance.from_config(str(project.home)) as instance:
        until(
            lambda: instance.get_latest_materialization_event(TOTALS) is not None,
            "the schedule has run the job",
            within_s=RUN_MS // 1000,
        )
        [run] = instance.get_runs(dg.RunsFilter(job_name="totals"), limit=1)
        assert run.tags["dagster/schedule_name"] == "totals_schedule"
        ui.switch_off("totals_schedule")  # it would start a run each minute, also while the picture is taken
        until(
            lambda: all(run.is_finished for run in instance.get_runs(dg.RunsFilter(job_name="totals"))),
            "the runs of the schedule have ended",
            within_s=RUN_MS // 1000,
        )


def test_a_backfill_runs_partitions_and_the_lineage_shows_what_happened(ui: Ui, project: Project) -> None:
    ui.backfill_ends_with("Succeeded", ui.backfill("daily/sinks/totals", "[2024-03-01...2024-03-03]"))
    with dg.DagsterInstance.from_config(str(project.home)) as instance:
        days = instance.get_materialized_partitions(dg.AssetKey(["daily", "sinks", "totals"]))
    assert days == {"2024-03-01", "2024-03-02", "2024-03-03"}
    ui.ends_with("Success", ui.materialize("best_customers"))
    ui.go("assets/totals/sinks/totals", view="lineage", lineageDepth="2")
    ui.sees("best_customers", "totals", "checkpoint", "orders", re.compile("^Materialized"))
    ui.picture("dagster-project")
