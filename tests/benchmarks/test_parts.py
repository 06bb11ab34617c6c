"""Parts of ``make bench-all`` on a real Spark over small sizes: they refuse wrong results, and count what they say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from benchmarks.all.parts import PARTS
from benchmarks.memory import peaks
from benchmarks.parts import catch_up, new_keys, operations, reference, running_aggregate
from benchmarks.parts.reference import NO_FLINK
from benchmarks.sized_jobs import Counting, SizedJob
from benchmarks.unequal import UnequalResultsError
from benchmarks.workload import Feed, Workload
from state_engine import StateEngine


@pytest.fixture
def kept(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """The session of all tests, which a part would stop."""
    monkeypatch.setattr(type(spark), "stop", lambda session: None)
    return spark


def quiet(what: str) -> None:
    """Show nothing."""


@pytest.mark.spark
def test_a_first_batch_is_that_of_new_keys_on_empty_state(kept: SparkSession) -> None:
    shown: list[str] = []
    names = ["statelake_columns", "polars"]
    sizes: dict[str, Any] = {"keys": 300, "warm_up_keys": 100, "rounds": 2, "warm_up": 1}
    figures = new_keys.measure(**sizes, only=names, done=shown.append)
    (full,) = figures.comparisons.values()
    assert {one.name: (len(one.seconds), one.events) for one in full.series} == dict.fromkeys(names, (2, 300))
    assert [line.split(":")[0] for line in shown] == [
        *["equal results? statelake_columns", "equal results? polars"],
        *[f"{name}, {kind}" for kind in ("warm-up", "round", "round") for name in names],
    ]


@pytest.mark.spark
@pytest.mark.spark_tasks
def test_running_totals_are_those_of_the_formula(tmp_path: Path, kept: SparkSession) -> None:
    figures = running_aggregate.measure(
        events=8000, keys=300, batches=2, rounds=1, verify_events=8000, verify_keys=70, flinks=(), done=quiet
    )
    assert figures.comparisons["full"].series[0].events == 8000
    assert 0 < figures.facts["memory_first"].value <= figures.facts["memory_last"].value
    feed = Feed(Workload(5), tmp_path / "feed")
    feed.events = 7
    rows = [(k, n, n * v) for k, (times, v) in Workload(5).values_of(7).items() for n in range(1, times + 1)]
    wrong = {
        "right": rows,
        "total": [*rows[1:], (rows[0][0], 1, 9.0)],
        "twice": [*rows, rows[0]],
        "missing": rows[:-1],
    }
    for name, of_name in wrong.items():
        table = tmp_path / name
        kept.createDataFrame(of_name, "k bigint, n bigint, total double").write.format("delta").save(
            str(table)
        )
        if name == "right":
            running_aggregate.check_totals(kept, table, feed)
        else:
            with pytest.raises(UnequalResultsError, match="the totals of 1 keys"):
                running_aggregate.check_totals(kept, table, feed)


@pytest.mark.spark
def test_operations_keep_all_state_and_a_rescale_writes_none(kept: SparkSession) -> None:
    figures = operations.measure(keys=300, events=40, rounds=2, done=quiet)
    (full,) = figures.comparisons.values()
    rounds = {one.name.split(":")[0]: len(one.seconds) for one in full.series}
    assert rounds == {
        "bootstrap": 1,
        "recovery": 2,
        "compaction": 2,
        "savepoint": 2,
        "rescale": 2,
        "restore": 2,
    }
    assert figures.facts["rescale_bytes"].value == 0
    assert figures.facts["savepoint_bytes"].value > 0


@pytest.mark.spark
def test_keyed_bytes_of_a_rescale_are_counted_and_lost_events_noticed(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = SizedJob(spark, tmp_path, Counting(), 50)
    job.run(20)
    job.check_counts()
    with pytest.raises(UnequalResultsError, match="70 events; expected are 50 keys and 71 events"):
        job.check_counts(events=21)
    rescale = StateEngine.rescale

    def writing(engine: StateEngine, *arguments: Any, **options: Any) -> Any:
        base = next((tmp_path / "root").rglob("*/base"))
        (base / "more.parquet").write_bytes(b"seven b")
        return rescale(engine, *arguments, **options)

    monkeypatch.setattr(StateEngine, "rescale", writing)
    assert operations._rescale(job, operations.Stopwatch(quiet)) == 7
    job.close()


def fake_version(outputs: dict[str, list[Any]], state: dict[str, list[Any]], *, batches: int = 2) -> Any:
    """A version that left these results."""

    def started(name: str, place: Path, directory: Path) -> dict[str, float]:
        assert len(list((directory / "waiting").iterdir())) == 2
        pq.write_table(pa.table(outputs), directory / "outputs.parquet")
        pq.write_table(pa.table(state), directory / "state.parquet")
        return {"seconds": 1.5 if name == catch_up.THIS else 6.0, "batches": batches}

    return started


def test_versions_that_catch_up_are_compared_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # nine events over five keys: two values each, of one key one
    expected = Workload(5).expected(9)
    state: dict[str, list[Any]] = {
        "k": list(expected.state),
        "count": [count for count, _ in expected.state.values()],
        "total": [total for _, total in expected.state.values()],
    }
    nothing: dict[str, list[Any]] = {"k": [], "a": []}
    sizes: dict[str, Any] = {"batches": 2, "events": 3, "keys": 5, "rounds": 2, "warm_up": 1, "done": quiet}
    monkeypatch.setattr(catch_up, "_started", fake_version(nothing, state))
    figures = catch_up.measure(**sizes, baseline=tmp_path)
    assert {s.name: s.seconds for s in figures.comparisons["full"].series} == {
        catch_up.THIS: [1.5, 1.5], catch_up.BASELINE: [6.0, 6.0]}  # fmt: skip
    assert catch_up.measure(**sizes).missing == [catch_up.NO_BASELINE]
    wrong = fake_version(nothing, state | {"count": [9, *state["count"][1:]]})
    for started, error in (
        (wrong, "state of 1 keys"),
        (fake_version(nothing, state, batches=1), "1 micro-batches"),
    ):
        monkeypatch.setattr(catch_up, "_started", started)
        with pytest.raises((UnequalResultsError, RuntimeError), match=error):
            catch_up.measure(**sizes)


def test_another_version_is_the_one_on_the_module_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The checkout comes before what is installed, and no directory of this project comes first."""
    program = tmp_path / "program.py"
    program.write_text("import json, state_engine, sys; print(json.dumps({'seconds': state_engine.VERSION}))")
    (tmp_path / "state_engine.py").write_text("VERSION = 1.0")
    (tmp_path / "other" / "state_engine").mkdir(parents=True)
    (tmp_path / "other" / "state_engine" / "__init__.py").write_text("VERSION = 7.0")
    monkeypatch.setattr(catch_up, "_PROGRAM", program)
    assert catch_up._started("other", tmp_path / "other", tmp_path) == {"seconds": 7.0}
    (tmp_path / "other" / "state_engine" / "__init__.py").write_text("raise ImportError('broken here')")
    with pytest.raises(RuntimeError, match=r"(?s)other failed.*broken here"):
        catch_up._started("other", tmp_path / "other", tmp_path)


def test_what_is_missing_without_flink_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference.flink, "available", lambda: False)
    assert reference.rates_of_flink(["pyflink"], 100, 10, quiet) == ([], [NO_FLINK])
    assert reference.rates_of_flink([], 100, 10, quiet) == ([], [])


def test_the_largest_memory_is_that_of_each_kind_of_process() -> None:
    before = peaks()["driver"]
    block = np.ones(300 << 17)  # 300 MB
    assert peaks()["driver"] > before + 200
    del block
    assert peaks()["driver"] > before + 200


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", PARTS)
def test_every_part_runs_over_small_sizes(part: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.all", "--quick", "--only", part, "--output", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    record = json.loads((tmp_path / f"{part}.json").read_text())
    assert record["figures"]["comparisons"] or record["figures"]["facts"]
    assert f"### {part}: " in (tmp_path / "benchmarks.md").read_text()
