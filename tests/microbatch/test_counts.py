"""What a micro-batch writes is in a log once, and recorded as it is; what it costs is in ``test_budgets``."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from state_engine import StateEngine
from tests.support.costs import SparkRecords
from tests.support.small_job import CLOCK_MS, build, write_feed
from tests.support.tiny import ROWS, Site

pytestmark = pytest.mark.spark_tasks


def added_files(*directories: Path) -> dict[str, int]:
    """Rows by absolute path of every file that a log adds."""
    records: dict[str, int] = {}
    for directory in directories:
        for entry in directory.rglob("_delta_log/*.json"):
            for line in entry.read_text().splitlines():
                add = json.loads(line).get("add")
                if add:
                    path = str(entry.parents[1] / add["path"])
                    assert path not in records, "a file was added twice"
                    records[path] = json.loads(add["stats"])["numRecords"]
    return records


def parquet_rows(*directories: Path) -> dict[str, int]:
    """Rows of every Parquet file that is there."""
    files = (f for d in directories for f in d.rglob("*.parquet") if "_delta_log" not in f.parts)
    return {str(f): pq.read_metadata(f).num_rows for f in files}


@pytest.fixture
def warm(tmp_path: Path, spark: SparkSession) -> tuple[Site, StateEngine]:
    """One operator, one sink, after the first batch."""
    site = Site(tmp_path, spark).put(ROWS)
    engine = site.engine()
    engine.run(site.job())
    return site.put({"k": ["a", "b", "b"], "v": [10, 20, 30]}, "1"), engine


def test_every_row_is_written_once_and_every_file_is_in_a_log(tmp_path: Path, spark: SparkSession) -> None:
    engine = StateEngine(tmp_path / "root", spark)
    recorder = SparkRecords(spark)
    report = engine.run(build(write_feed(tmp_path / "feed"), tmp_path / "sinks"), clock=CLOCK_MS)
    rows = engine.checkpoints("small")

    tables = (tmp_path / "root", tmp_path / "sinks" / "totals")
    assert parquet_rows(*tables) == added_files(*tables)  # no orphan, no other copy, counts as recorded

    changelogs = sum(parquet_rows(tmp_path / "root" / "small" / "operators").values())
    assert changelogs == sum(o.changed_entries for row in rows for o in row.operators)
    assert sum(parquet_rows(tmp_path / "sinks" / "totals").values()) == report.rows_out["totals"]
    assert sum(parquet_rows(tmp_path / "sinks" / "ranks").values()) == report.rows_out["ranks"]
    assert sum(r.rows_in for r in rows) == report.rows_in == 240

    # one job an operator and batch, and no other
    expected = {f"small: checkpoint {n}, operator {uid}": 1 for n in (1, 2, 3) for uid in ("totals", "ranks")}
    assert recorder.descriptions() == expected
    assert recorder.stages()["skipped"] == recorder.stages()["failed"] == 0
    # with two operators one changelog more
    assert [b.delta_commits for b in report.batches] == [5, 5, 5]


def test_nothing_is_left_of_the_exchange_between_operators(tmp_path: Path, spark: SparkSession) -> None:
    StateEngine(tmp_path / "root", spark).run(
        build(write_feed(tmp_path / "feed"), tmp_path / "sinks"), clock=CLOCK_MS
    )
    left = list((tmp_path / "root" / "small").glob("exchange/*"))
    assert left == []


def test_the_row_records_what_was_written(warm: tuple[Site, StateEngine]) -> None:
    site, engine = warm
    (batch,) = engine.run(site.job(), requested_by="a test").batches
    row = engine.checkpoints("tiny")[-1]
    files = parquet_rows(site.directory / "root" / "tiny", site.sink)
    mine = {p: n for p, n in files.items() if row.write_id in p and "/checkpoints/" not in p}
    listed = [f for o in row.operators for f in o.changelog] + row.operator_state_files
    listed += [f for s in row.sinks for f in s.files]
    assert len(mine) == len(listed)
    assert sum(f.bytes for f in listed) == sum(Path(p).stat().st_size for p in mine) == batch.bytes_written
    assert sum(f.rows for f in listed) == sum(mine.values())
    assert (row.rows_in, row.rows_refused, row.requested_by, row.parent_id) == (3, 0, "a test", 1)
    assert row.sources[0].rows == 3
    assert sorted(batch.operators["sums"].group_rows.values()) == [1, 2]
    assert (batch.operators["sums"].keys, batch.operators["sums"].changed_entries) == (2, 2)
