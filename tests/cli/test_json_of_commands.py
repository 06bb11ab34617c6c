"""Every command prints JSON that programs can read, and nothing else, while it does its work."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from state_engine.cli.main import app
from tests.support.commands import every_command

JOBS = """
from state_engine.registry import RegisteredJob
from state_engine import DeltaSink, FileSink, FileSource, StatefulJob, TimePartitions

def total(row, before):
    after = (before or 0) + row.v
    return (row.k, after), after

def summed(job, rows, out):
    sums = rows.key_by("k").map_with_state(total, int, "k string, total bigint")
    sums.uid("totals").sink("out", DeltaSink(out))
    return RegisteredJob(job=job)

def jobs(settings):
    job = StatefulJob("sums", parallelism=2)
    rows = job.from_collection([("a", 1), ("b", 2), ("a", 3)], "k string, v bigint", name="rows", max_rows_per_batch=2)
    days = StatefulJob("days", parallelism=1, partitions=TimePartitions("at", start="2026-01-01", every="day"))
    inbox = FileSource("DIRECTORY/inbox", schema="k string, v bigint, at timestamp", format="json")
    events = days.source("events", inbox)
    return [summed(job, rows, "DIRECTORY/out"), summed(days, events, "DIRECTORY/by_day")]
"""
LINES = (
    "jobs", "config show", "doctor --no-spark", "init project",
    "run sums --max-batches 1", "run sums", "run days --partition 2026-01-01", "partitions days",
    "backfill days --from 2026-01-01 --to 2026-01-01 --dry-run",
    "checkpoints sums", "status sums", "sql sums --views",
    ["sql", "sums", "SELECT k, value FROM state"], ["sql", "sums", "SELECT upper(k) AS k FROM state"],
    "explain sums --key a", "state diff sums 1 2", "dead-letters list sums", "dead-letters replay sums --dry-run",
    "publish-pending sums", "restore sums 1 --dry-run", "rescale sums --parallelism 3 --dry-run",
    "compact sums", "expire-checkpoints sums --dry-run", "vacuum sums --dry-run",
    ["state", "erase-keys", "sums", "--key", '{"k": "b"}', "--dry-run"],
    "change-key-type sums --operator totals --dry-run", "upgrade --dry-run",
    "savepoint create sums safe", "savepoint list sums", "savepoint verify root/sums/savepoints/safe",
    "savepoint delete sums safe", "branch create sums --branch again", "branch list sums",
    "branch compare sums again", "branch promote sums again --dry-run", "branch drop sums again",
)  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> Path:
    (tmp_path / "own_jobs.py").write_text(JOBS.replace("DIRECTORY", str(tmp_path)))
    (tmp_path / "inbox").mkdir()
    row = {"k": "a", "v": 1, "at": "2026-01-01T10:00:00Z"}
    (tmp_path / "inbox" / "0.json").write_text(json.dumps(row))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STATELAKE__ROOT", str(tmp_path / "root"))
    monkeypatch.setenv("STATELAKE__JOBS__MODULES", "own_jobs")
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def printed(line: str | list[str]) -> Any:
    words = line.split() if isinstance(line, str) else line
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exception is None or isinstance(done.exception, SystemExit), (line, done.exception)
    if words[0] == "status":
        return [json.loads(done.stdout)]
    return [json.loads(text) for text in done.stdout.splitlines()]


@pytest.mark.long
@pytest.mark.spark
def test_every_command_prints_json_and_nothing_else(here: Path) -> None:
    records = {
        " ".join(line.split()[:2] if isinstance(line, str) else line[:2]): printed(line) for line in LINES
    }
    for line, printed_records in records.items():
        assert all(isinstance(one, dict) for one in printed_records), line
        if line not in ("dead-letters list", "branch list", "savepoint list"):
            assert printed_records, line
    assert records["run sums"][0]["caught_up"] is True
    assert records["run days"][0]["batches"][0]["partition"] == "2026-01-01"
    assert records["restore sums"][0]["checkpoint_id"] == 1

    assert records["savepoint list"][0]["name"] == "safe"
    assert records["branch list"][0]["branch"] == "again"


def test_no_command_is_forgotten_above() -> None:
    tried = {" ".join(line.split() if isinstance(line, str) else line) for line in LINES}
    # what setup does takes minutes, and is done in the set-up of this project; a registration needs a metastore
    assert [name for name in every_command() if not any(one.startswith(name) for one in tried)] == [
        "setup",
        "verify-table",
        "rebuild-table",
        "accept-table",
        "register",
    ]
