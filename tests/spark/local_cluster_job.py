"""A session that a user made, on executors of their own: ``python -m tests.spark.local_cluster_job <directory>``.

They run one Python after the other: without any library, without one that the job imports, and with all; none has the
engine. Writes to ``result.json`` what came of it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from state_engine import StatelakeError
from state_engine.spark.session import needed_jars, needed_options
from tests.support.clusters import python_program, spark_home
from tests.support.java import SHORT_LIVED_JAVA
from tests.support.tiny import Site, Sum

LIBRARY = "polars"
"""The job imports it, the engine does not."""


class Imports(Sum):
    """Sums, after an import; where there is no marker yet, its worker dies in the middle of its rows."""

    def __init__(self, marker: str) -> None:
        super().__init__()
        self.marker = marker

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        import xxhash  # noqa: F401

        yield from super().process_element(value, ctx)
        if value.v == DEADLY and not os.path.exists(self.marker):
            Path(self.marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)


DEADLY = 30
"""The value at which a worker dies."""
FIRST, SECOND = {"k": ["a", "b", "c"], "v": [1, 2, 3]}, {"k": ["a", "b", "d"], "v": [10, 20, DEADLY]}


def session(directory: Path, program: Path) -> SparkSession:
    """As a user makes one who has read the guides."""
    os.environ |= {"SPARK_HOME": str(spark_home(directory / "home")), "PYSPARK_PYTHON": str(program)}
    options = needed_options() | {
        "spark.jars": ",".join(str(jar) for jar in needed_jars()),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": SHORT_LIVED_JAVA,
        "spark.executor.extraJavaOptions": SHORT_LIVED_JAVA,
        "spark.executor.memory": "512m",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.task.maxFailures": "2",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    builder = SparkSession.builder.master("local-cluster[2,1,1024]")
    for name, value in options.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def refusal(site: Site, function: Sum) -> str:
    """The error that a run ends with, as text."""
    try:
        site.engine().run(site.job(function))
    except StatelakeError as error:
        assert site.nothing_happened()
        return f"{type(error).__name__}: {error}"
    return "none"


def main(directory: Path) -> None:
    bare = python_program(directory / "bare", libraries=False)
    spark = session(directory, bare)
    try:
        site = Site(directory / "site", spark).put(FIRST, "first")
        result: dict[str, Any] = {"bare": refusal(site, Sum())}
        spark.sparkContext.pythonExec = str(python_program(directory / "less", without=(LIBRARY,)))
        module = __import__("importing")  # on this process' path only
        result["less"] = refusal(site, module.Imports())
        spark.sparkContext.pythonExec = str(python_program(directory / "whole"))
        marker = directory / "died"
        for rows, name in ((FIRST, "first"), (SECOND, "second")):
            site.put(rows, name)
            site.engine().run(site.job(Imports(str(marker))))
        result["compacted"] = site.engine().compact("tiny").entries
    finally:
        spark.stop()
    result |= {"died": marker.exists(), "state": site.state(), "outputs": site.outputs()}
    (directory / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
