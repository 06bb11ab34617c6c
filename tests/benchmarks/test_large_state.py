"""Benchmarks of small micro-batches on large state: what they count must come out, and maps write what changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from benchmarks.large_state import app, changed_entries
from benchmarks.sized_jobs import Mapped, SizedJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_of_a_map_what_changed_is_written(tmp_path: Path, spark: SparkSession) -> None:
    """A hundred entries a key: changing one of them writes one, and bytes for one."""
    job = SizedJob(spark, tmp_path, Mapped(), 300, entries=100)
    one, every = changed_entries(job, 300, 1), changed_entries(job, 300, 100)
    assert (one.changed_entries, every.changed_entries) == (300, 30_000)
    # thirty thousand numbers compress better than three hundred, so a hundredth is not reached
    assert one.changelog_bytes * 5 < every.changelog_bytes
    again = changed_entries(job, 300, 1)
    assert again.changelog_bytes < 1.2 * one.changelog_bytes
    job.close()


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize(
    "arguments",
    [
        ["timers", "--pending", "400", "--base", "100", "--due", "7", "--events", "20"],
        ["keys", "--size", "400", "--base", "100", "--events", "20"],
        ["maps", "--size", "40", "--entries", "5", "--events", "20"],
    ],
    ids=lambda a: a[0],
)
def test_each_benchmark_prints_its_ratio(
    arguments: list[str], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(spark), "stop", lambda session: None)  # that of all tests
    done = CliRunner().invoke(app, [*arguments, "--rounds", "2", "--warm-up", "1"])
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[-1].startswith("ratio ")
