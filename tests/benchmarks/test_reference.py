"""The benchmark itself: its figures mean something only while both engines do the same work."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from benchmarks.comparison import verify
from benchmarks.unequal import UnequalResultsError, check
from benchmarks.workload import WINDOW, Feed, Results, Workload

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.long
@pytest.mark.spark
def test_both_engines_give_the_expected_results(spark: SparkSession) -> None:
    ran: list[str] = []
    verify(spark, events=3000, keys=300, batches=2, done=ran.append)
    assert ran == ["statelake", "transformWithState_rows"] * 2


@pytest.mark.parametrize(("events", "keys"), [(25, 7), (3, 7), (70, 10), (40_000, 2000)])
def test_expected_results_are_those_of_a_plain_loop(events: int, keys: int) -> None:
    workload = Workload(keys)
    windows: dict[int, list[float]] = defaultdict(list)
    outputs: Counter[tuple[int, float]] = Counter()
    table = workload.events(0, events)
    for key, value in zip(table["k"].to_pylist(), table["v"].to_pylist(), strict=True):
        windows[key].append(value)
        if len(windows[key]) == WINDOW:
            outputs[key, sum(windows.pop(key)) / WINDOW] += 1
    assert workload.expected(events) == Results(outputs, {k: (len(v), sum(v)) for k, v in windows.items()})


def test_feed_goes_on_where_the_last_batch_ended(tmp_path: Path) -> None:
    feed = Feed(Workload(300), tmp_path)
    batches = [feed.write(5000), feed.write(1000)]
    assert [len(list(b.iterdir())) for b in batches] == [4, 1]
    files = sorted(f for b in batches for f in b.iterdir())
    keys = [k for f in files for k in pq.read_table(f)["k"].to_pylist()]
    assert keys == Workload(300).events(0, 6000)["k"].to_pylist()


def test_keys_that_would_get_no_event_are_refused() -> None:
    with pytest.raises(ValueError, match="7919"):
        Workload(2 * 7919)


@pytest.mark.parametrize(
    ("results", "message"),
    [
        (Results(Counter({(1, 2.0): 1}), {1: (1, 2.0)}), "1 outputs are missing"),
        (Results(Counter({(1, 2.0): 2, (3, 4.0): 1}), {1: (1, 2.0)}), "1 are wrong or too many"),
        (Results(Counter({(1, 2.0): 2}), {}), "state of 1 keys"),
        (Results(Counter({(1, 2.0): 2}), {1: (1, 2.0), 2: (1, 2.0)}), "state of 1 keys"),
    ],
)
def test_any_difference_is_an_error(results: Results, message: str) -> None:
    expected = Results(Counter({(1, 2.0): 2}), {1: (1, 2.0)})
    check("same", expected, expected)
    with pytest.raises(UnequalResultsError, match=message):
        check("other", results, expected)
