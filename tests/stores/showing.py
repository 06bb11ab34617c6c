"""A process that runs a job in a store, by itself or under Dagster, and shows all that it can: what it logs on standard
error, what Spark's web interface has on standard output, and what Dagster keeps in the directory.

    python -m tests.stores.showing <directory> <URI in the store>
"""

from __future__ import annotations

import logging
import sys
import urllib.request
from pathlib import Path

import dagster as dg
import pytest

from state_engine.machine.settings import Settings, SparkSettings
from state_engine.spark.session import local_session
from tests.dagster import sites
from tests.faults.workloads import WORKLOADS, Site
from tests.support.java import SHORT_LIVED_JAVA
from tests.support.ports import free_port
from tests.support.stores import quick_race

PAGES = ("environment", "jobs", "stages", "executors", "SQL")


class DagsterSite(sites.Site):
    """The job of a few pairs, with its root in a store."""

    store = ""

    @property
    def settings(self) -> Settings:
        return super().settings.model_copy(update={"root": f"{self.store}/dagster"})


def run_by_dagster(directory: Path, store: str) -> None:
    """Run a job as an asset, with all of Dagster's records in a directory."""
    home = directory / "home"
    home.mkdir()
    with dg.DagsterInstance.local_temp(str(home)) as instance:
        site = DagsterSite(directory, instance)
        site.store = store
        site.run()


def main(directory: str, store: str) -> None:
    quick_race(pytest.MonkeyPatch())
    logging.basicConfig(level=logging.DEBUG)
    options = {
        "spark.driver.extraJavaOptions": SHORT_LIVED_JAVA,
        "spark.ui.enabled": "true",
        "spark.ui.port": str(free_port()),
        "spark.log.level": "INFO",
    }
    spark = local_session(SparkSettings(master="local[2]", options=options), app_name="statelake-shown")
    Site(Path(directory), WORKLOADS["sinks"], spark, store=store).run(max_batches=1)
    run_by_dagster(Path(directory), store)
    address = spark.sparkContext.uiWebUrl
    about = f"api/v1/applications/{spark.sparkContext.applicationId}/environment"
    for page in (*(f"{page}/" for page in PAGES), about):
        with urllib.request.urlopen(f"{address}/{page}", timeout=60) as answer:
            print(answer.read().decode())


if __name__ == "__main__":
    main(*sys.argv[1:])
