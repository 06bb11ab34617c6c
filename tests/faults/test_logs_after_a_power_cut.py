"""Files of the JVM after a power cut: entries, checksums and checkpoints of Delta logs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.faults.plane import Fault, InjectedFault, installed
from tests.faults.workloads import WORKLOADS, Site


def newest(table: Path, ending: str = ".json") -> Path:
    return max((table / "_delta_log").glob(f"0*{ending}"))


def cut(file: Path, *, half: bool = False) -> None:
    os.truncate(file, file.stat().st_size // 2 if half else 0)


def test_entries_that_are_empty_or_cut_were_not_committed(spark: SparkSession, tmp_path: Path) -> None:
    plain = Site(tmp_path / "plain", WORKLOADS["sinks"], spark)
    plain.run()
    site = Site(tmp_path / "cut", WORKLOADS["sinks"], spark)
    site.run(max_batches=1)
    with installed([Fault("before publish")]), pytest.raises(InjectedFault):
        site.run()
    job = site.directory / "root" / "sinks"
    cut(newest(job / "checkpoints"), half=True)
    cut(newest(job / "operators" / "sums" / "changelog"))
    cut(newest(job / "operator_state"), half=True)
    for checksum in site.directory.rglob("_delta_log/*.crc"):
        cut(checksum)
    assert len(site.rows()) == 1  # the second was never committed
    site.run()
    assert site.seen() == plain.seen()

    # a publish that is lost comes again, and no other one with it
    for sink in ("delta", "delta_too"):
        cut(newest(site.directory / "sinks" / sink))
    site.run()
    assert site.seen() == plain.seen()
    assert [row.checkpoint_id for row in site.rows()] == [1, 2]


def test_a_log_checkpoint_that_is_cut_is_no_loss(spark: SparkSession, tmp_path: Path) -> None:
    site = Site(tmp_path, WORKLOADS["keyed"], spark, cut=2)  # ten micro-batches
    site.run()
    before, table = site.seen(), site.directory / "root" / "keyed" / "checkpoints"
    cut(newest(table, ".checkpoint.parquet"), half=True)
    cut(table / "_delta_log" / "_last_checkpoint")
    assert site.run().caught_up
    assert site.seen() == before
    assert len(site.rows()) == 10


@pytest.mark.parametrize(
    "lost",
    [
        "name",
        "a data file",
        pytest.param("content", marks=pytest.mark.long),
        pytest.param("part of a data file", marks=pytest.mark.long),
    ],
)
def test_what_spark_published_comes_again_where_its_entry_or_files_are_lost(
    lost: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Hadoop's checksum of the entry is still there: it must not be taken for that of the next one."""
    plain = Site(tmp_path / "plain", WORKLOADS["at_least_once"], spark, cut=7)
    plain.run()
    site = Site(tmp_path / "cut", WORKLOADS["at_least_once"], spark, cut=7)  # three micro-batches
    site.run(max_batches=2)
    table = site.directory / "sinks" / "spark_delta"
    entry = newest(table)
    data = max(table.glob("k=*/*.parquet"), key=lambda file: file.stat().st_mtime_ns)
    match lost:
        case "name":
            entry.unlink()
        case "content":
            cut(entry, half=True)
        case "a data file":
            data.unlink()
        case _:
            cut(data, half=True)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    site.run()
    assert site.seen() == plain.seen()
    shown = spark.read.format("delta").load(str(table)).select("k", "n").collect()
    assert sorted(map(tuple, shown)) == plain.seen().outputs["spark_delta"]
