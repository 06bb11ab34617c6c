"""``python -m benchmarks.started ENGINE DIRECTORY``: a new process that runs one engine once, as a scheduler starts it.

The last line that it prints says when its micro-batch was committed, and how much processor time it and all of its
processes had taken by then. It is also the module of jobs that the settings of ``benchmarks.start`` name.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from state_engine.machine.settings import Settings
    from state_engine.registry import RegisteredJob

STATELAKE, TRANSFORM_WITH_STATE = "statelake", "transformWithState_rows"


def run_statelake(directory: Path) -> None:
    """``statelake run``, with the settings in the directory."""
    _command(directory, "run", "count_window_average")


def compact_statelake(directory: Path) -> None:
    """``statelake compact``."""
    _command(directory, "compact", "count_window_average")


def run_transform_with_state(directory: Path) -> None:
    """A streaming query that takes what is there, on its checkpoint."""
    from benchmarks.contenders.transform_with_state import TransformWithState

    TransformWithState(_spark(), directory, once=True).finish()


def read_transform_with_state(directory: Path) -> None:
    """Write the query's state into a file."""
    import pyarrow.parquet as pq

    from benchmarks.contenders.transform_with_state import state_at

    spark = _spark()
    _ = spark.streams.active  # starts what readers of state stores ask
    pq.write_table(state_at(spark, directory / "checkpoint"), directory / "state.parquet")


WORK: dict[str, Callable[[Path], None]] = {
    STATELAKE: run_statelake,
    f"{STATELAKE} compact": compact_statelake,
    TRANSFORM_WITH_STATE: run_transform_with_state,
    f"{TRANSFORM_WITH_STATE} state": read_transform_with_state,
}


def jobs(settings: Settings) -> list[RegisteredJob]:
    """The reference job over the directory of the settings, for the registry."""
    from benchmarks.contenders.statelake import reference_job
    from state_engine.registry import RegisteredJob

    return [RegisteredJob(job=reference_job(Path.cwd()))]


def _command(directory: Path, *arguments: str) -> None:
    from state_engine.cli.main import main

    os.chdir(directory)
    sys.argv = ["statelake", *arguments, "--json"]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise


def _spark() -> SparkSession:
    """A session without Delta; with the archive of Java's classes that ``statelake setup`` made, if there is one."""
    from pyspark.sql import SparkSession

    from benchmarks.workload import PARALLELISM
    from state_engine.machine.java import find_java_home
    from state_engine.spark.class_archive import archive_options

    java = find_java_home(environ=os.environ, explicit=None)
    builder = SparkSession.builder.master(f"local[{PARALLELISM}]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", os.environ["STATELAKE__SPARK__DRIVER_MEMORY"])
    builder = builder.config("spark.driver.extraJavaOptions", archive_options(java))
    return builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()


def processor_s() -> float:
    """Processor time of this process and of all that it started."""
    import psutil

    me = psutil.Process()
    total = 0.0
    for process in [me, *me.children(recursive=True)]:
        times = process.cpu_times()
        total += times.user + times.system + times.children_user + times.children_system
    return total


if __name__ == "__main__":
    WORK[sys.argv[1]](Path(sys.argv[2]))
    done_at = time.time()
    print(json.dumps({"done_at": done_at, "processor_s": processor_s()}), flush=True)
