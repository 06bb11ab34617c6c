"""The queries of Nexmark give what polars gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from pyspark.sql import SparkSession

from benchmarks.nexmark import on_spark
from benchmarks.nexmark.events import DISPLACED_MS, STREAMS, write
from benchmarks.nexmark.expected import EXPECTED, Frames, frames
from benchmarks.nexmark.measure import check, run
from benchmarks.nexmark.queries import QUERIES
from benchmarks.unequal import UnequalResultsError

EVENTS, PER_SECOND = 6_000, 200


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("nexmark")
    write(directory, EVENTS, files=4, per_second=PER_SECOND)
    return directory


@pytest.fixture(scope="module")
def rows(events: Path) -> Frames:
    return frames(events)


def test_events_do_not_depend_on_how_many_are_made_at_once() -> None:
    for name, (_, rows_of) in STREAMS.items():
        parts = [rows_of(np.arange(first, first + 500), PER_SECOND) for first in (0, 500)]
        assert pl.concat([pl.DataFrame(part) for part in parts]).equals(
            pl.DataFrame(rows_of(np.arange(1000), PER_SECOND))
        ), name


def test_streams_fit_together(rows: Frames) -> None:
    persons, auctions, bids = rows.values()
    assert len(persons) * 50 == len(auctions) * 50 // 3 == EVENTS
    assert len(bids) == EVENTS * 46 // 50
    assert bids["auction"].is_in(auctions["id"].implode()).all()
    assert bids["bidder"].is_in(persons["id"].implode()).all()
    assert auctions["seller"].is_in(persons["id"].implode()).all()
    behind = (bids["at"].cum_max() - bids["at"]).dt.total_milliseconds().to_list()
    assert 0 < max(behind) <= DISPLACED_MS
    assert all(len(EXPECTED[query](rows)) for query in QUERIES), "each query has results"


@pytest.mark.spark
@pytest.mark.parametrize("query", QUERIES)
def test_a_query_gives_what_polars_gives(
    query: str, events: Path, rows: Frames, spark: SparkSession, tmp_path: Path
) -> None:
    run(spark, query, events, tmp_path / "results", files_per_batch=2)
    assert check(spark, query, tmp_path / "results", EXPECTED[query](rows)) or query == "q2"


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("query", [query for query in QUERIES if query not in on_spark.CANNOT])
def test_a_query_of_spark_gives_no_other_rows(
    query: str, events: Path, rows: Frames, spark: SparkSession, tmp_path: Path
) -> None:
    on_spark.run(spark, query, events, tmp_path / "results", files_per_batch=2)
    check(spark, query, tmp_path / "results", EXPECTED[query](rows), whole=on_spark.gives_all(query))


@pytest.mark.spark
def test_other_results_are_refused(events: Path, rows: Frames, spark: SparkSession, tmp_path: Path) -> None:
    run(spark, "q2", events, tmp_path / "results", files_per_batch=2)
    with pytest.raises(UnequalResultsError, match="q2, some auctions"):
        check(spark, "q2", tmp_path / "results", EXPECTED["q2"](rows).slice(1))
