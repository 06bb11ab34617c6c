"""Contenders: each comes to the results of the formula, or none of its times counts."""

from __future__ import annotations

import doctest
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from benchmarks import comparison
from benchmarks.comparison import Plan, verify
from benchmarks.contenders import flink, polars_frames
from benchmarks.contenders.flink import FlinkError
from benchmarks.contenders.polars_frames import PolarsFrames
from benchmarks.contenders.registry import CONTENDERS
from benchmarks.contenders.statelake_columns import CountWindowAverageOverColumns
from benchmarks.unequal import UnequalResultsError
from benchmarks.workload import WINDOW, Results, Workload
from state_engine.testing import KeyedHarness

IN_TESTS = [name for name in CONTENDERS if "transformWithState" not in name]
"""Spark's streaming queries take the most time: they are compared in a long test."""

Batches = list[list[tuple[int, int]]]
BATCHES = st.lists(
    st.lists(st.tuples(st.integers(0, 4), st.integers(-9, 9)), min_size=1), min_size=1, max_size=4
)


def windows_of(batches: Batches) -> tuple[Counter[tuple[int, float]], dict[int, tuple[int, float]]]:
    """Outputs and state by a plain loop; values of a key differ, other than in the workload."""
    windows: dict[int, list[int]] = defaultdict(list)
    outputs: Counter[tuple[int, float]] = Counter()
    for key, value in (event for batch in batches for event in batch):
        windows[key].append(value)
        if len(windows[key]) == WINDOW:
            outputs[key, sum(windows.pop(key)) / WINDOW] += 1
    return outputs, {key: (len(values), float(sum(values))) for key, values in windows.items()}


@given(batches=BATCHES)
def test_columns_have_the_windows_of_a_plain_loop(batches: Batches) -> None:
    harness = KeyedHarness(
        CountWindowAverageOverColumns(),
        key_by=lambda row: row[0],
        key_type=int,
        input_type="k bigint, v double",
        output_type="k bigint, a double",
    )
    outputs: Counter[tuple[int, float]] = Counter()
    for batch in batches:
        outputs.update((row.k, row.a) for row in harness.process([(k, float(v)) for k, v in batch]))
    wanted, state = windows_of(batches)
    assert outputs == wanted
    assert {key: tuple(window) for key, window in harness.state("window").items()} == state


@given(batches=BATCHES)
def test_polars_has_the_windows_of_a_plain_loop(batches: Batches) -> None:
    windows, outputs = pl.DataFrame(schema=polars_frames.OPEN), Counter[Any]()
    for batch in batches:
        keys, values = [k for k, _ in batch], [float(v) for _, v in batch]
        made, windows = polars_frames.count_windows(pl.DataFrame({"k": keys, "v": values}), windows)
        outputs.update(made.iter_rows())
    wanted, state = windows_of(batches)
    assert outputs == wanted
    assert {k: (count, total) for k, count, total in windows.iter_rows()} == state


def test_examples() -> None:
    assert doctest.testmod(polars_frames).failed == 0


@pytest.mark.spark
def test_contenders_give_the_expected_results(spark: SparkSession) -> None:
    """Three batches: keys have no window before, an open one, and one that a batch closes."""
    ran: list[str] = []
    verify(spark, events=3000, keys=700, batches=3, only=IN_TESTS, done=ran.append)
    assert ran == IN_TESTS * 3


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_streaming_queries_give_the_expected_results(spark: SparkSession) -> None:
    queries = [name for name in CONTENDERS if name not in IN_TESTS]
    assert len(queries) == 2
    verify(spark, events=3000, keys=700, batches=3, only=queries)


class LosesOutputs(PolarsFrames):
    """Wrong: the first output is gone."""

    def results(self) -> Results:
        results = super().results()
        results.outputs.subtract([next(iter(results.outputs))])
        return results


class LosesState(PolarsFrames):
    """Wrong: the state of a key is gone."""

    def results(self) -> Results:
        results = super().results()
        results.state.popitem()
        return results


@pytest.mark.spark
@pytest.mark.parametrize(
    ("wrong", "message"), [(LosesOutputs, "1 outputs are missing"), (LosesState, "the state of 1 keys")]
)
def test_a_wrong_contender_is_refused_before_any_time(
    wrong: type[PolarsFrames], message: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CONTENDERS, "wrong", wrong)
    with pytest.raises(UnequalResultsError, match=message):
        verify(spark, events=400, keys=100, batches=1, only=["polars", "wrong"])


class Counted(PolarsFrames):
    """Counts its batches."""

    batches: list[int]

    def run(self, batch: Path) -> Any:
        self.batches.append(pl.read_parquet(batch / "*.parquet").height)
        return super().run(batch)


@pytest.mark.spark
def test_a_slow_contender_takes_one_batch_for_warm_up_and_one_that_counts(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, list[int]] = {"fast": [], "slow": []}
    for name, batches in seen.items():
        one = type(name, (Counted,), {"name": name, "slow": name == "slow", "batches": batches})
        monkeypatch.setitem(CONTENDERS, name, one)
    plan = Plan(events=2000, keys=100, rounds=3, warm_up=2, small_rounds=2, small_warm_up=1)
    full, small = comparison.compare(spark, plan, only=list(seen), done=lambda what: None)
    assert seen == {"fast": [2000] * 5 + [1000] * 3, "slow": [2000] * 2 + [1000] * 3}
    assert {one.name: len(one.taken) for one in full} == {"fast": 3, "slow": 1}
    assert {one.name: len(one.taken) for one in small} == {"fast": 2, "slow": 2}


def rows_of(name: str, events: int, keys: int) -> list[list[Any]]:
    """What a Flink job must give."""
    workload = Workload(keys)
    if name == "pyflink":
        return [[k, a] for (k, a), n in workload.expected(events).outputs.items() for _ in range(n)]
    if name == "flink_sql_files":
        of_keys = workload.values_of(events).items()
        return [[k, at, at * v] for k, (n, v) in of_keys for at in range(1, n + 1)]
    total = name.startswith("flink_sql_totals")
    return [[k, n, n * v if total else v] for k, (n, v) in workload.values_of(events).items()]


@pytest.mark.parametrize("name", flink.NAMES)
def test_results_of_flink_are_compared(name: str) -> None:
    rows = rows_of(name, 100, 7)
    flink.check(name, rows, 100, 7)
    for wrong in (rows[1:], [*rows, rows[0]], [[*rows[0][:-1], -1.0], *rows[1:]]):
        with pytest.raises(UnequalResultsError, match=name):
            flink.check(name, wrong, 100, 7)


def test_flink_is_compared_before_it_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def wrong(peer: Any, what: str, events: int, keys: int) -> dict[str, Any]:
        asked.append(what)
        return {"rows": [], "seconds": events}

    monkeypatch.setattr(flink, "_run", wrong)
    with pytest.raises(UnequalResultsError):
        flink.measure("flink_sql", events=100, keys=10)
    assert asked == ["results"]


@pytest.mark.parametrize(("seconds", "rate"), [((2.0, 6.0), 100.0), ((6.0, 6.0), None)])
def test_the_rate_of_flink_is_that_between_two_runs(
    seconds: Sequence[float], rate: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = list(seconds)

    def run(peer: Any, what: str, events: int, keys: int) -> dict[str, Any]:
        if what == "results":
            return {"rows": rows_of("flink_sql", events, keys)}
        return {"seconds": left.pop(0)}

    monkeypatch.setattr(flink, "_run", run)
    if rate is None:
        with pytest.raises(FlinkError, match="no longer"):
            flink.measure("flink_sql", events=100, keys=10)
    else:
        assert flink.measure("flink_sql", events=100, keys=10).events_per_s == rate


def test_outputs_of_columns_stand_where_their_window_closed() -> None:
    """The row that fills a window is the one whose place the average takes."""
    state = pa.table(
        {"_key": [0, 1], "window": pa.nulls(2, pa.struct({"f0": pa.int64(), "f1": pa.float64()}))}
    )
    keys = [0, 1, 1, 0, 1, 0, 0]
    rows = pa.table({"k": keys, "v": [1.0] * 7, "_row": list(range(7)), "_key": keys})
    result = CountWindowAverageOverColumns().process_batch(rows, state, None)
    assert sorted(zip(result.outputs["_row"].to_pylist(), result.outputs["k"].to_pylist(), strict=True)) == [
        (4, 1), (5, 0)]  # fmt: skip
