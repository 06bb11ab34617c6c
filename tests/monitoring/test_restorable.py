"""Status by the files of the head: what is gone, and where one can go back to."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

from pyspark.sql import SparkSession

from state_engine.cli.status import notes
from state_engine.monitoring.job_history import read_history
from state_engine.monitoring.job_status import JobStatus, status_of_history
from tests.support.tiny import ROWS, Site


def status(site: Site) -> JobStatus:
    history = read_history(str(site.directory / "root"), "tiny")
    return status_of_history(
        "tiny", history, job=None, now_ms=time.time_ns() // 1_000_000, stuck_after=timedelta(days=1)
    )


def test_files_that_are_gone_or_cut_are_named_with_the_way_back(tmp_path: Path, spark: SparkSession) -> None:
    site = Site(tmp_path, spark)
    with site.engine() as engine:
        for number in range(3):
            engine.run(site.put(ROWS, str(number)).job())
        changelog = [row.operators[0].changelog for row in engine.checkpoints("tiny")]
    assert (status(site).state, status(site).restorable_id, notes(status(site))) == ("ok", 3, [])

    table = tmp_path / "root" / "tiny" / "operators" / "sums" / "changelog"
    newest = table / changelog[2][0].path
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-1])
    cut = status(site)
    assert (cut.state, cut.exit_code, cut.restorable_id) == ("damaged", 1, 2)
    assert [name.endswith(changelog[2][0].path) for name in cut.missing_files] == [True]
    assert any("statelake restore tiny 2" in text for text in notes(cut))

    newest.write_bytes(whole)
    (table / changelog[0][0].path).unlink()
    gone = status(site)
    assert (gone.state, gone.restorable_id) == ("damaged", None)
    assert any("restore a savepoint" in text for text in notes(gone))
