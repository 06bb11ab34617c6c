"""A process that runs a job in a store, logs all that it can, and prints what Spark's web interface shows of it.

python -m tests.stores.showing <directory> <URI in the store>
"""

from __future__ import annotations

import logging
import sys
import urllib.request
from pathlib import Path

from state_engine.machine.settings import SparkSettings
from state_engine.spark.session import local_session
from tests.faults.workloads import WORKLOADS, Site
from tests.support.java import SHORT_LIVED_JAVA
from tests.support.ports import free_port

PAGES = ("environment", "jobs", "stages", "executors", "SQL")


def main(directory: str, store: str) -> None:
    logging.basicConfig(level=logging.DEBUG)
    options = {
        "spark.driver.extraJavaOptions": SHORT_LIVED_JAVA,
        "spark.ui.enabled": "true",
        "spark.ui.port": str(free_port()),
        "spark.log.level": "INFO",
    }
    spark = local_session(SparkSettings(master="local[2]", options=options), app_name="statelake-shown")
    Site(Path(directory), WORKLOADS["sinks"], spark, store=store).run(max_batches=1)
    address = spark.sparkContext.uiWebUrl
    about = f"api/v1/applications/{spark.sparkContext.applicationId}/environment"
    for page in (*(f"{page}/" for page in PAGES), about):
        with urllib.request.urlopen(f"{address}/{page}", timeout=60) as answer:
            print(answer.read().decode())


if __name__ == "__main__":
    main(*sys.argv[1:])
