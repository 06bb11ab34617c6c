"""Flipped bits in files of state and of checkpoints are reported, wherever they are; none ends the process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.faults.workloads import WORKLOADS, Site

ROOT_OF_REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def root(tmp_path: Path, spark: SparkSession) -> Path:
    """Of two jobs: changes, a base, changes after it; lists of operator state; positions; rows."""
    for name in ("keyed", "operator"):
        site = Site(tmp_path, WORKLOADS[name], spark)
        site.run(max_batches=1)
        if name == "keyed":
            with site.engine() as engine:
                engine.compact(name)
        site.run()
    return tmp_path / "root"


@pytest.mark.parametrize("flips", [30, pytest.param(1_000, marks=pytest.mark.faults)])
def test_no_flip_is_silent_and_none_ends_the_process(root: Path, flips: int) -> None:
    command = [sys.executable, "-m", "tests.faults.flips", str(root), str(flips), str(flips)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT_OF_REPOSITORY, timeout=280)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown.get("silent", 0) == 0, shown
    assert shown.get("raw", 0) == 0, shown
    assert shown["noticed"] + shown.get("harmless", 0) == flips, shown
    # the others hit statistics in the headers of pages, which nobody reads, and files that a base took the place of
    assert shown["noticed"] > flips * 0.6, shown
