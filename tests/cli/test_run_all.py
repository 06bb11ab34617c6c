"""``statelake run --all``: each job has its turn in one session, whatever becomes of the others."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import Result
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from state_engine import open_state
from state_engine.cli.main import app

MODULE = """
from state_engine import FileSink, FileSource, KeyedProcessFunction, StatefulJob
from state_engine.registry import RegisteredJob


class Refuses(KeyedProcessFunction):
    def process_element(self, value, ctx):
        raise ValueError("never " + value.k)


def job(name, wanted=True):
    job = StatefulJob(name)
    rows = job.source("rows", FileSource("DIRECTORY/rows", schema="k string, v bigint")).key_by("k")
    out = rows.sum("v", uid="sum") if wanted else rows.process(Refuses(), uid="refuses", output_type="k string")
    out.sink("out", FileSink("DIRECTORY/" + name))
    return job


def nothing_to_prepare():
    raise RuntimeError("no input today")


def jobs(settings):
    return [
        RegisteredJob(job=job("first")),
        RegisteredJob(job=job("refuses", wanted=False)),
        RegisteredJob(job=job("unprepared"), prepare=nothing_to_prepare),
        RegisteredJob(job=job("last")),
    ]
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> Path:
    (tmp_path / "rows").mkdir()
    pq.write_table(pa.table({"k": ["a", "b"], "v": [1, 2]}), tmp_path / "rows" / "0.parquet")
    (tmp_path / "some_own_jobs.py").write_text(MODULE.replace("DIRECTORY", str(tmp_path)))
    (tmp_path / "statelake.toml").write_text('root = "root"\n[jobs]\nmodules = ["some_own_jobs"]\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "some_own_jobs", raising=False)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["run", *arguments])


@pytest.mark.spark
def test_jobs_after_one_that_fails_run_and_the_exit_code_says_it(project: Path) -> None:
    done = run("--all")
    assert done.exit_code == 1, done.output
    assert "first: 2 rows in, caught up, head 1" in done.stdout
    assert "last: 2 rows in, caught up, head 1" in done.stdout
    assert done.stdout.index("first: 2 rows") < done.stdout.index("last: 2 rows")
    assert "never a" in done.stderr
    assert "no input today" in done.stderr
    assert "2 of 4 jobs failed: refuses, unprepared" in " ".join(done.stderr.split())
    assert [bool(open_state.checkpoints(project / "root", job)) for job in ("first", "last")] == [True, True]

    first, refuses, unprepared, last = map(json.loads, run("--all", "--json").stdout.splitlines())
    assert [one["job"] for one in (first, refuses, unprepared, last)] == [
        "first",
        "refuses",
        "unprepared",
        "last",
    ]
    assert first["caught_up"] is last["caught_up"] is True
    assert refuses["error"].startswith("UserFunctionError: ")
    assert unprepared["error"] == "RuntimeError: no input today"
    header, *rows = run("--all", "--csv").stdout.splitlines()
    assert "error" in header.split(",")
    assert len(rows) >= 4


@pytest.mark.spark
def test_all_are_well(project: Path) -> None:
    text = (project / "some_own_jobs.py").read_text().replace('"refuses", wanted=False', '"third"')
    (project / "some_own_jobs.py").write_text(text.replace(", prepare=nothing_to_prepare", ""))
    done = run("--all", "--max-batches", "1")
    assert (done.exit_code, done.stdout.count("2 rows in, stopped after 1 micro-batch")) == (0, 4), (
        done.output
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "name the job to run, or give --all"),
        ("first --all", "name the job to run, or give --all"),
        ("--all --partition 2026-01-01", "--partition is of one job"),
    ],
)
def test_what_contradicts_itself_is_refused(line: str, message: str) -> None:
    assert message in str(run(*line.split()).exception)


def test_a_project_without_jobs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [])
    (tmp_path / "statelake.toml").write_text('root = "root"\n')
    assert "jobs.modules names the modules with jobs" in str(run("--all").exception)
