"""Executors of their own with a Python of their own: what it lacks is said, and else a job runs as on one machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.spark.local_cluster_job import LIBRARY

pytestmark = pytest.mark.spark

REPOSITORY = Path(__file__).parents[2]
IMPORTING = f"""
import {LIBRARY} as library
from state_engine import KeyedProcessFunction


class Imports(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value.k, value.v, library.Series([value.v]).sum()
"""


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("local-cluster")
    (directory / "code").mkdir()
    (directory / "code" / "importing.py").write_text(IMPORTING)
    ran = subprocess.run(
        [sys.executable, "-m", "tests.spark.local_cluster_job", str(directory)],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY}:{directory / 'code'}"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-5000:]
    of_process: dict[str, Any] = json.loads((directory / "result.json").read_text())
    return of_process


def test_executors_without_the_engines_libraries_are_named(result: dict[str, Any]) -> None:
    assert "SetupError: job 'tiny': the Python that runs tasks" in result["bare"]
    assert "bare/python" in result["bare"]
    assert "has no module 'pyarrow'" in result["bare"]
    assert f"Install pyarrow=={version('pyarrow')} there" in result["bare"]
    assert "PYSPARK_PYTHON" in result["bare"]


def test_executors_without_a_library_of_the_job_are_named(result: dict[str, Any]) -> None:
    """Its module is not there either, and is sent; that cannot help where a library is missing."""
    assert "SetupError: job 'tiny': the Python that runs tasks" in result["less"]
    assert f"has no module '{LIBRARY}'" in result["less"]
    assert f"Install {LIBRARY}=={version(LIBRARY)} there" in result["less"]


def test_a_job_runs_on_executors_without_the_engine(result: dict[str, Any]) -> None:
    assert result["died"], "no task was tried again"
    assert result["state"] == {"a": 11, "b": 22, "c": 3, "d": 30}
    rows = [["a", 1, 1], ["a", 10, 11], ["b", 2, 2], ["b", 20, 22], ["c", 3, 3], ["d", 30, 30]]
    assert result["outputs"] == rows
    assert result["compacted"] == {"sums": 4}
