"""The walk of one row from a file to a Delta table: how many modules it passes, and how often a call climbs back."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks.row_walk import walk

MOST_FILES, MOST_CLIMBS = 30, 10


@pytest.mark.spark
def test_a_row_passes_few_modules_and_the_executor_calls_down(tmp_path: Path, spark: SparkSession) -> None:
    """Bounds from above: a module more on the way, or a callback more, is a decision and no accident."""
    seen = walk(tmp_path, spark)
    assert len(seen.passed) <= MOST_FILES, sorted(seen.passed)
    assert len(seen.climbs) <= MOST_CLIMBS, sorted(seen.climbs)
    # it really looks from end to end: where the row is read, where it is handled, and where it is written
    ends = {"sources/file.py", "core/operator/stream_operator.py", "storage/stores/files.py"}
    assert ends <= seen.passed.keys()
