"""Duplicates, silences and lists in one job on Spark, through a restore and another parallelism: as a plain program."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from state_engine import DataStream, FileSource, StatefulJob, Tumbling
from tests.operators import test_deduplication as duplicates
from tests.operators import test_silence as silences
from tests.support.limits import NOTHING_BY_DRIVER, SetLimits
from tests.support.pipelines import Pipeline

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BOUND = duplicates.BOUND


def plain(rows: list[Any]) -> list[Any]:
    return sorted((tuple(map(in_ms, row)) for row in rows), key=repr)


def in_ms(value: Any) -> Any:
    return (value - EPOCH) // timedelta(milliseconds=1) if isinstance(value, datetime) else value


def published(directory: Path) -> list[Any]:
    """The rows of a sink of files, which a restore has withdrawn some of."""
    files = sorted(directory.glob("checkpoint_id=*/*.parquet"))
    return [tuple(row.values()) for file in files for row in pq.ParquetFile(file).read().to_pylist()]


@pytest.mark.more
@pytest.mark.spark
def test_duplicates_silences_and_lists_are_those_of_a_plain_program(
    spark: SparkSession, tmp_path: Path, limits: SetLimits
) -> None:
    limits(**NOTHING_BY_DRIVER)
    (tmp_path / "in").mkdir()
    rows = duplicates.stream(3, count=60)

    def build(job: StatefulJob) -> dict[str, DataStream]:
        source = FileSource(str(tmp_path / "in"), format="parquet")
        read = job.source("rows", source, event_time="at", max_out_of_orderness=BOUND, order_by=["v"])
        keyed = read.key_by("k")
        first = keyed.drop_duplicates(within=5, lateness=9, uid="first")
        return {
            "first": first,
            "final": keyed.drop_duplicates(within=5, emit="final", lateness=9, uid="final"),
            "best": first.key_by("k").window(Tumbling(10)).top_n(1, by="v", uid="best"),
            "silent": keyed.silent(4, lateness=9, back=True, take=["v"], uid="silent"),
        }

    pipeline = Pipeline(tmp_path, spark, build, parallelism=2)
    rng, cut = random.Random(1), 0
    for number in range(3):
        part = rows[cut : cut + 20]
        cut += 20
        columns = {"k": [row.k for row in part], "v": [row.v for row in part]}
        times = pa.array([EPOCH + timedelta(milliseconds=row.at) for row in part], pa.timestamp("us", "UTC"))
        pq.write_table(pa.table({**columns, "at": times}), tmp_path / "in" / f"{number}.parquet")
        pipeline.run(parallelism=rng.choice([1, 2, 3]))
    with pipeline.engine() as engine:
        engine.restore("pipeline", checkpoint_id=2)
    pipeline.run(parallelism=3)
    pipeline.run(drain=True)
    outputs = {
        name: plain(published(tmp_path / "out" / name)) for name in ("first", "final", "best", "silent")
    }
    for name, final in (("first", False), ("final", True)):
        expected, late = duplicates.expected_of(rows, 5, 9, final=final)
        assert late
        assert outputs[name] == plain(expected)
    windows: dict[Any, list[Any]] = {}
    for row in duplicates.expected_of(rows, 5, 9, final=False)[0]:
        windows.setdefault((row.k, row.at // 10 * 10), []).append(row)
    best = {window: max(of, key=lambda row: row.v) for window, of in windows.items()}
    assert outputs["best"] == plain([(k, at, at + 10, 1, row.v, row.at) for (k, at), row in best.items()])
    assert outputs["silent"] == plain(silences.expected_of(rows, 4, 9, None)[0])
