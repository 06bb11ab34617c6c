"""The benchmark of OpenTelemetry, small: it checks results, and prints its ratio last."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.spark
def test_pairs_with_and_without_are_compared() -> None:
    small = ["--pairs", "2", "--warm-up", "1", "--events", "50", "--keys", "100"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.telemetry", *small],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=280,
        check=True,
    )
    assert re.fullmatch(r"ratio with to without = \d+\.\d{3}", done.stdout.splitlines()[-1])
