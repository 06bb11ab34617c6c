"""The first example of Flink's documentation, by hand and on the real engine, wherever batches are cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from jobs.count_window_average import CountWindowAverage, build
from state_engine import DeltaSink, FileSource, StateEngine
from state_engine.testing import KeyedHarness

PAIRS = [(1, 3), (1, 5), (1, 7), (1, 4), (1, 2)]
AVERAGES = [(1, 4), (1, 5)]


def harness() -> KeyedHarness:
    return KeyedHarness(CountWindowAverage(), key_by=lambda pair: pair[0])


def test_keys_have_windows_of_their_own() -> None:
    outputs = harness().process([(1, 10), (2, 1), (1, 20), (2, 2)])
    assert [tuple(pair) for pair in outputs] == [(1, 15), (2, 1)]


@pytest.mark.spark
@pytest.mark.parametrize("parallelism", [1, 4])
@pytest.mark.parametrize(
    ("options", "batches"),
    [({"max_rows_per_batch": 1}, 5), ({"max_rows_per_batch": 3}, 2), ({}, 1)],
)
def test_on_the_engine_wherever_batches_are_cut(
    tmp_path: Path, spark: SparkSession, options: dict[str, Any], batches: int, parallelism: int
) -> None:
    feed = tmp_path / "pairs"
    feed.mkdir()
    columns = zip(*PAIRS, strict=True)
    pq.write_table(pa.table(dict(zip(("key", "value"), map(list, columns), strict=True))), feed / "0.parquet")
    source = FileSource(str(feed), schema="key bigint, value bigint", format="parquet", **options)
    engine = StateEngine(root=str(tmp_path / "root"), spark=spark)
    job = build(source, DeltaSink(str(tmp_path / "averages")), parallelism=parallelism)

    engine.run(job)

    assert len(engine.checkpoints(job)) == batches
    published = DeltaTable(str(tmp_path / "averages")).to_pyarrow_table().to_pylist()
    assert sorted((row["key"], row["average"]) for row in published) == AVERAGES
    (waiting,) = engine.read_state(job, "count_window_average", "window").collect()
    assert (waiting["key"], tuple(waiting["value"])) == (1, (1, 2))
