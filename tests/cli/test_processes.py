"""Jobs in real processes, from the command line and from a program: interrupts, and other time zones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.support.clusters import spark_home

pytestmark = [pytest.mark.spark, pytest.mark.long]

JOBS = '''
"""Rows with their hour, counted by key; a file a micro-batch."""

import os
from datetime import datetime

from pyspark.sql.functions import col, lit, pandas_udf, udf

from state_engine import (
    DeltaSink, FileSource, KeyedProcessFunction, OutputTag, StatefulJob, ValueStateDescriptor
)
from state_engine.registry import RegisteredJob


ZONES = OutputTag("zones", str)


class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value, ctx):
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield ZONES, os.environ.get("TZ", "")
        yield value.k, value.id, count, value.hour, value.text, value.of_pandas, str(value.at), value.noons, value.half


def with_hours(rows):
    of_pandas = pandas_udf(lambda at: at.dt.hour.astype("int32"), "int")
    plain = rows.selectExpr("k", "id", "hour(at) AS hour", "CAST(at AS string) AS text", "at")
    noon = datetime(2024, 7, 1, 12)
    plain = plain.crossJoin(rows.sparkSession.createDataFrame([(noon,)], "noon timestamp"))
    plain = plain.withColumn("noons", (col("noon") == col("at")) & (lit(noon) == col("at"))).drop("noon")
    half = udf(lambda id: id // 2, "double", useArrow=False)
    return plain.withColumn("of_pandas", of_pandas("at")).withColumn("half", half("id"))


job = StatefulJob("hours", parallelism=2, max_parallelism=8)
source = FileSource("inbox", schema="k string, id bigint, at timestamp", format="json", max_files_per_batch=1)
columns = "k string, id bigint, count bigint, hour int, text string, of_pandas int, at string, noons boolean, "
columns += "half double"
counts = job.source("rows", source, order_by=["id"]).transform(with_hours, order_by=["id"])
counted = counts.key_by("k").process(Count(), uid="count", output_type=columns).sink("out", DeltaSink("out"))
counted.get_side_output(ZONES).sink("zones", DeltaSink("zones"))


def jobs(settings):
    return [RegisteredJob(job=job)]
'''
PROGRAM = """
import logging
import sys

from my_jobs import job
from state_engine import StateEngine, local_session

if __name__ == "__main__":
    spark = local_session()
    assert not logging.getLogger().filters, "logging is the user's"
    for option in sys.argv[1:]:
        spark.conf.set(*option.split("="))
    with StateEngine("root", spark) as engine:
        engine.run(job)
"""
FILES, KEYS = 12, "ab"
NOON = {(12, "2024-07-01 12:00:00", 12, "2024-07-01 12:00:00+00:00", True, True)}
ELSEWHERE = """
[spark]
master = "local-cluster[2,1,1024]"

[spark.options]
"spark.executor.memory" = "512m"
"spark.executorEnv.TZ" = "America/New_York"
"spark.executor.extraJavaOptions" = "-Duser.timezone=America/New_York"
"""
"""Executors whose Java and Python are in another zone than the driver."""
COMMAND = [str(Path(sys.executable).parent / "statelake"), "run", "hours"]
NOTEBOOK = [sys.executable, "program.py"]


class Project:
    """A directory with a job, its settings and its input."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "inbox").mkdir(parents=True)
        (directory / "my_jobs.py").write_text(JOBS)
        (directory / "program.py").write_text(PROGRAM)
        (directory / "statelake.toml").write_text('root = "root"\n[jobs]\nmodules = ["my_jobs"]\n')
        for number in range(FILES):
            rows = [{"k": k, "id": 2 * number + i, "at": "2024-07-01T12:00:00Z"} for i, k in enumerate(KEYS)]
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (directory / "inbox" / f"{number:02}.json").write_text(lines)

    def start(self, command: list[str], **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            cwd=self.directory,
            env={**os.environ, "PYTHONPATH": str(self.directory), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, command: list[str], **environment: str) -> None:
        process = self.start(command, **environment)
        _, printed = process.communicate(timeout=600)
        assert process.returncode == 0, printed[-4000:]

    def interrupted(self, command: list[str], reached: Callable[[int], bool]) -> tuple[int, str]:
        """Its exit code and what it wrote, where its process group is interrupted, as a terminal does it."""
        process = self.start(command)
        while not reached(process.pid):
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        children = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)
        _, printed = process.communicate(timeout=120)
        _, left = psutil.wait_procs(children, timeout=60)
        assert not left, "a JVM or a worker stays"
        return process.returncode, printed

    def commits(self) -> int:
        return len(list(self.directory.glob("root/hours/checkpoints/_delta_log/*.json")))

    def zones(self) -> set[str]:
        """Of the processes that ran the function."""
        return {*DeltaTable(self.directory / "zones").to_pyarrow_table()["value"].to_pylist()}

    def shown(self) -> set[tuple[object, ...]]:
        """What each row says of its time, of times in code, and of its half."""
        columns = ("hour", "text", "of_pandas", "at", "noons")
        return {(*(row[name] for name in columns), row["half"] == row["id"] // 2) for row in self.rows()}

    def rows(self) -> list[dict[str, Any]]:
        table: pa.Table = DeltaTable(self.directory / "out").to_pyarrow_table()
        return sorted(table.to_pylist(), key=lambda row: row["id"])


@pytest.mark.timeout(1200)
def test_an_interrupt_ends_as_one_and_the_next_run_goes_on(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")

    def after(commits: int) -> Callable[[int], bool]:
        return lambda _: project.commits() >= commits

    def while_java_starts(process: int) -> bool:
        return any("java" in child.name() for child in psutil.Process(process).children())

    for command in (COMMAND, NOTEBOOK):
        for reached in (while_java_starts, after(project.commits() + 2)):
            code, printed = project.interrupted(command, reached)
            if command == COMMAND:
                assert (code, "Traceback" in printed) == (130, False), printed
            else:
                assert code in (-signal.SIGINT, 130), printed
                assert printed.strip().splitlines()[-1].startswith("KeyboardInterrupt"), printed
    project.run(COMMAND)
    rows = project.rows()
    assert [row["id"] for row in rows] == list(range(2 * FILES))
    assert [row["count"] for row in rows] == [n // 2 + 1 for n in range(2 * FILES)]


@pytest.mark.timeout(1200)
def test_a_command_and_a_notebook_with_another_zone_give_the_same_rows(tmp_path: Path) -> None:
    command, notebook = Project(tmp_path / "command"), Project(tmp_path / "notebook")
    command.run(COMMAND, TZ="UTC")
    options = [
        "spark.sql.session.timeZone=America/New_York",
        "spark.sql.execution.pythonUDF.arrow.enabled=false",
        "spark.sql.execution.arrow.maxRecordsPerBatch=1",
        "spark.sql.timestampType=TIMESTAMP_NTZ",
    ]
    notebook.run([*NOTEBOOK, *options], TZ="Asia/Tokyo")
    assert command.shown() == NOON
    assert notebook.rows() == command.rows()
    assert (command.zones(), notebook.zones()) == ({"UTC"}, {"Asia/Tokyo"})


@pytest.mark.timeout(1200)
def test_executors_in_another_zone_give_the_same_rows(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    with (project.directory / "statelake.toml").open("a") as settings:
        settings.write(ELSEWHERE)
    home = spark_home(tmp_path / "home")
    project.run(COMMAND, TZ="UTC", SPARK_HOME=str(home), PYSPARK_PYTHON=sys.executable)
    assert project.zones() == {"America/New_York"}
    assert project.shown() == NOON
    assert len(project.rows()) == 2 * FILES
