"""Rows with aggregates of those before them, over columns: what they are per element, on the same state."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from state_engine import (
    DataStream,
    EmbeddedRocksDBStateBackend,
    FileSource,
    StatefulJob,
    avg,
    count,
    count_distinct,
    max_,
    min_,
    sum_,
)
from state_engine.core.functions.vectorized_functions import vectorized_form
from state_engine.core.state.descriptors import TIMERS
from state_engine.operators.lateness import Lateness
from state_engine.operators.over import Over, WhenOut
from state_engine.operators.over_rows import SPANS as SPANS_OF_SUMS
from state_engine.testing import KeyedHarness
from tests.operators.mixed import check_equal, streams
from tests.operators.test_over import BOUND, LATE, ROW, options, stream
from tests.operators.test_rows_by_time_on_spark import plain, published
from tests.support.limits import NOTHING_BY_DRIVER, SetLimits
from tests.support.pipelines import Pipeline

pytestmark = pytest.mark.internal_errors
CACHES = {TIMERS, SPANS_OF_SUMS}
"""Timers are sufficient, and accumulators follow from the rows."""
SPANS: dict[str, Any] = {"last": [0, 7, 30]}
REACHES: dict[str, dict[str, Any]] = {"spans": SPANS, "rows": {"last_rows": 3}, "one": {"last_rows": 1}}


def over(emit: WhenOut, lateness: int, reach: dict[str, Any]) -> Over:
    aggregates = {"n": count(**reach), "s": sum_("v", **reach), "m": avg("v", **reach)}
    aggregates |= {"lo": min_("v", **reach), "hi": max_("v", **reach)}
    return Over(ROW, aggregates, emit=emit, lateness=Lateness(lateness, LATE))


def harness(parallelism: int, backend: Any = None, *, output: Any) -> dict[str, Any]:
    return {
        "key_by": lambda row: row[0],
        "timestamp_of": lambda row: row[2],
        "max_out_of_orderness_ms": BOUND,
        "parallelism": parallelism,
        "backend": backend,
        "key_type": str,
        "input_type": ROW,
        "output_type": output,
    }


@streams(170)
@pytest.mark.parametrize("reach", REACHES)
@pytest.mark.parametrize("emit", ["final", "at_once"])
def test_columns_and_elements_in_turn_give_what_elements_give(
    emit: WhenOut, reach: str, seeds: range
) -> None:
    over_columns = 0
    for seed in seeds:
        rng = random.Random(seed)
        make = partial(over, emit, rng.choice([0, 6]), REACHES[reach])
        by = partial(harness, output=make()._plan.output_type)
        backend = EmbeddedRocksDBStateBackend() if seed % 20 == 0 else None
        share = 0.5 if seed % 2 else 1.0
        runs = check_equal(make, stream(seed), rng, by, late=LATE, share=share, backend=backend, but=CACHES)
        over_columns += runs["columns"]
        if share == 1.0 and (emit == "final" or reach == "spans"):
            assert not runs["elements"], seed
    assert over_columns


NO_FORM: dict[str, dict[str, Any]] = {
    "tiles": {"aggregates": {"n": count(last=[8])}, "tile_ms": 2},
    "all rows": {"aggregates": {"n": count()}},
    "spans and rows": {"aggregates": {"n": count(last=[8]), "m": count(last_rows=2)}},
    "keys that are forgotten": {"aggregates": {"n": count(last_rows=2)}, "forget_after_ms": 5},
    "distinct": {"aggregates": {"n": count_distinct("v", last=[8])}},
}


@pytest.mark.parametrize("given", NO_FORM.values(), ids=NO_FORM)
def test_what_has_no_form_over_columns(given: dict[str, Any]) -> None:
    assert vectorized_form(Over(ROW, **given)) is None


@pytest.mark.parametrize("emit", ["final", "at_once"])
@pytest.mark.parametrize("newest", range(35, 38))
def test_what_a_span_ends_with_stays_until_nothing_has_it_in_reach(emit: WhenOut, newest: int) -> None:
    rows = [("a", 1, 0), ("a", 2, 30), ("a", 3, newest)]
    make = partial(over, emit, 0, SPANS)
    by = partial(harness, output=make()._plan.output_type)
    for seed in range(4):
        check_equal(make, rows, random.Random(seed), by, late=LATE, but=CACHES)


@pytest.mark.more
@pytest.mark.spark
def test_a_job_on_spark_gives_what_a_harness_gives(
    spark: SparkSession, tmp_path: Path, limits: SetLimits
) -> None:
    """Through a restore, and other parallelisms."""
    limits(**NOTHING_BY_DRIVER)
    (tmp_path / "in").mkdir()
    rows = [(k, number, at) for number, (k, _, at) in enumerate(stream(3))]
    emits: tuple[WhenOut, ...] = ("final", "at_once")

    def build(job: StatefulJob) -> dict[str, DataStream]:
        source = FileSource(str(tmp_path / "in"), format="parquet")
        read = job.source("rows", source, event_time="at", max_out_of_orderness=BOUND, order_by=["v"])
        keyed = read.key_by("k")
        return {
            emit: keyed.over(n=count(**SPANS), s=sum_("v", **SPANS), emit=emit, uid=emit) for emit in emits
        }

    pipeline = Pipeline(tmp_path, spark, build, parallelism=2)
    for number, cut in enumerate(range(0, 40, 10)):
        part = rows[cut : cut + 10]
        times = pa.array([row[2] * 1000 for row in part], pa.timestamp("us", "UTC"))
        table = pa.table({"k": [row[0] for row in part], "v": [row[1] for row in part], "at": times})
        pq.write_table(table, tmp_path / "in" / f"{number}.parquet")
        pipeline.run(parallelism=number % 3 + 1)
    with pipeline.engine() as engine:
        engine.restore("pipeline", checkpoint_id=2)
    pipeline.run(parallelism=3)
    pipeline.run(drain=True)
    for emit in emits:
        function = Over(ROW, {"n": count(**SPANS), "s": sum_("v", **SPANS)}, emit=emit)
        run = KeyedHarness(function, **options(max_out_of_orderness_ms=BOUND))
        assert plain(published(tmp_path / "out" / emit)) == plain([*run.process(rows), *run.drain()])
