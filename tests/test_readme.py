"""The job of the first page and the questions that it asks: the code runs as it stands there."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from state_engine import open_state
from tests.support.environments import REPOSITORY
from tests.support.guides import code_blocks

NINE = datetime(2026, 1, 5, 9, tzinfo=UTC)


def arrive(inbox: Path, *clicks: tuple[str, int, int]) -> None:
    """A file of clicks: user, minutes after nine, cents."""
    inbox.mkdir(parents=True, exist_ok=True)
    users, minutes, cents = zip(*clicks, strict=True)
    at = [NINE + timedelta(minutes=minute) for minute in minutes]
    table = pa.table({"user": users, "at": at, "cents": cents})
    pq.write_table(table, inbox / f"{len(list(inbox.iterdir()))}.parquet")


def test_the_job_and_its_questions_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    job, asking, _ = code_blocks(REPOSITORY / "README.md", "python")
    here: dict[str, Any] = {"open_state": open_state}
    arrive(tmp_path / "data" / "clicks", ("ada", 0, 100), ("ada", 60, 50), ("bob", 100, 0))
    exec(compile(job, "README.md", "exec"), here)
    engine, asked = here["engine"], here["job"]
    table = str(tmp_path / "data" / "visits")
    first = spark.read.load(table, format="delta").select("user", "clicks", "spent").collect()
    assert sorted(map(tuple, first)) == [("ada", 1, 50), ("ada", 1, 100)]
    assert "ada" in capsys.readouterr().out  # what read_state shows
    arrive(tmp_path / "data" / "clicks", ("ada", 30, 7))  # late, and it joins the two
    engine.run(asked)
    joined = spark.read.load(table, format="delta").select("user", "clicks", "spent").collect()
    assert list(map(tuple, joined)) == [("ada", 3, 157)]
    now = asking.replace("2026-03-01T12:00", datetime.now(UTC).isoformat()).replace("7, 9", "1, 2")
    exec(compile(now, "README.md", "exec"), here)
    assert "ada" in capsys.readouterr().out
