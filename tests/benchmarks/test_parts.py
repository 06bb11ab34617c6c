"""Parts of ``make bench-all`` on a real Spark over small sizes: they refuse wrong results, and count what they say."""

from __future__ import annotations

import doctest
import json
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from typer import Typer
from typer.testing import CliRunner

from benchmarks import sampling, small_files, start, unequal
from benchmarks.all.parts import PARTS
from benchmarks.bootstrap import STEPS, check, one_round
from benchmarks.large_state import app, changed_entries
from benchmarks.memory import peaks
from benchmarks.parts import catch_up, new_keys, operations, reference, running_aggregate
from benchmarks.parts.reference import NO_FLINK
from benchmarks.published_table import MERGE_WITHOUT, NAMES, OURS, World, compare
from benchmarks.row_walk import walk
from benchmarks.sampling import RECORDING, Sampler, flame_graph, own_seconds, read_stacks, stack_of
from benchmarks.sized_jobs import Counting, Mapped, SizedJob
from benchmarks.started import STATELAKE, TRANSFORM_WITH_STATE, WORK
from benchmarks.unequal import UnequalResultsError
from benchmarks.workload import WINDOW, Feed, Results, Workload
from state_engine import StateEngine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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


def test_every_work_of_a_process_is_known_by_its_engine() -> None:
    assert [name.split()[0] for name in WORK] == [STATELAKE, STATELAKE, *[TRANSFORM_WITH_STATE] * 2]


def test_a_process_that_fails_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="statelake failed"):
        start.started(STATELAKE, start.Path("nowhere"))


@pytest.mark.parametrize("engine", ["statelake", "transform_with_state"])
def test_a_process_loads_no_library_of_another_engine(engine: str) -> None:
    code = f"import benchmarks.contenders.{engine}, sys; print(sorted({{'polars', 'deltalake'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


@pytest.mark.spark
@pytest.mark.long
def test_three_tables_get_the_same_changes(tmp_path: Path, spark: SparkSession) -> None:
    shown: list[str] = []
    done = compare(spark, 3_000, 40, tmp_path, rounds=1, warm_up=1, on_step=shown.append)
    assert [len(done.rounds[name]) for name in NAMES] == [1, 1, 1]
    assert [text.split(", ")[1].split(":")[0] for text in shown] == list(NAMES) * 2
    assert all(done.rounds[name][0].bytes_written > 0 for name in NAMES)
    assert 0 < done.share(OURS) < 1


@pytest.mark.spark
@pytest.mark.long
def test_a_row_that_differs_is_an_error(tmp_path: Path, spark: SparkSession) -> None:
    world = World(spark, 500, 10, tmp_path)
    world.round()
    world.check()
    spark.sql(f"UPDATE delta.`{tmp_path / MERGE_WITHOUT}` SET note = 'other' WHERE k = 7")
    with pytest.raises(UnequalResultsError, match=f"{MERGE_WITHOUT} and {OURS} differ in 2 rows"):
        world.check()
    world.close()


def test_examples() -> None:
    assert doctest.testmod(sampling).failed == 0


def test_samples_are_taken_while_a_profile_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "_PACKAGE", __name__.split(".")[0])
    monkeypatch.setattr(sampling, "stack_of", lambda frame: stack_of(frame).replace("?", __name__))
    sampler = Sampler(tmp_path, "own")
    sampler.start()
    time.sleep(0.3)
    assert not list(tmp_path.iterdir())
    (tmp_path / RECORDING).touch()
    _until(lambda: list(tmp_path.glob("own-*.folded")))
    (tmp_path / RECORDING).unlink()
    sampler.stop()
    stacks = read_stacks(tmp_path.glob("own-*.folded"))
    assert any(f"{__name__}._until" in stack for stack in stacks)
    assert sum(own for _, own, _ in own_seconds(stacks)) > 0


def _until(done: Any) -> None:
    deadline = time.monotonic() + 60
    while not done() and time.monotonic() < deadline:
        time.sleep(0.01)


def test_stacks_name_modules_and_functions() -> None:
    assert stack_of(sys._getframe()).endswith("test_parts.test_stacks_name_modules_and_functions")
    assert stack_of(None) == ""


def test_boxes_stand_under_their_caller_side_by_side() -> None:
    drawn = flame_graph({"a;b": 250_000, "a;c": 750_000}, "seconds")
    boxes = re.findall(r'<title>(\w+): .*?x="([\d.]+)" y="(\d+)" width="([\d.]+)"', drawn)
    assert boxes == [
        ("seconds", "0.0", "0", "1400.0"),
        ("a", "0.0", "17", "1400.0"),
        ("b", "0.0", "34", "350.0"),
        ("c", "350.0", "34", "1050.0"),
    ]


@pytest.mark.long
@pytest.mark.spark
def test_both_engines_go_on_from_the_same_state(tmp_path: Path, spark: SparkSession) -> None:
    shown: list[str] = []
    timing = one_round(spark, 1000, tmp_path, on_step=shown.append)
    assert tuple(timing.seconds) == STEPS
    assert [t.split(": ", 1)[0] for t in shown] == [f"1,000 keys, {step}".split(": ", 1)[0] for step in STEPS]
    assert timing.ratio > 0


def windows(changed: dict[int, tuple[int, float]]) -> pa.Table:
    """State of five keys after their first event, with some that are otherwise, in no order."""
    state = Workload(5).expected(5).state | changed
    rows = sorted(state.items(), reverse=True)
    return pa.table(
        {"k": [k for k, _ in rows], "count": [w[0] for _, w in rows], "total": [w[1] for _, w in rows]}
    )


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (windows({3: (2, 4.0)}), "the state of 1 keys is wrong"),
        (windows({3: (1, 99.0)}), "the state of 1 keys is wrong"),
        (windows({7: (1, 1.0)}), "6 keys have state"),
        (windows({}).slice(1), "4 keys have state"),
    ],
    ids=["count", "total", "too_many", "missing"],
)
def test_any_difference_is_an_error(result: pa.Table, message: str) -> None:
    check("same", windows({}), Workload(5), 5)
    with pytest.raises(UnequalResultsError, match=message):
        check("other", result, Workload(5), 5)


def small_files_app() -> Typer:
    one = Typer()
    one.command()(small_files.run)
    return one


def test_an_unknown_format_is_refused() -> None:
    done = CliRunner().invoke(small_files_app(), ["--format", "xml"])
    assert done.exit_code == 2
    assert "no format ['xml']; there are json, csv, parquet" in done.output


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_it_compares_the_rows_first_and_prints_a_ratio(
    kept: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = CliRunner().invoke(small_files_app(), ["--files", "5", "--rounds", "1", "--format", "csv"])
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[-1].startswith("ratio to spark = ")

    read = small_files._read_plainly

    def twice(*arguments: Any) -> None:
        read(*arguments)
        read(*arguments)

    monkeypatch.setattr(small_files, "_read_plainly", twice)
    with pytest.raises(UnequalResultsError, match="spark: 0 rows are missing, 5 are wrong or too many"):
        small_files.measure(5, rounds=1, warm_up=0)


@pytest.mark.spark
def test_of_a_map_what_changed_is_written(tmp_path: Path, spark: SparkSession) -> None:
    """A hundred entries a key: changing one of them writes one, and bytes for one."""
    job = SizedJob(spark, tmp_path, Mapped(), 300, entries=100)
    one, every = changed_entries(job, 300, 1), changed_entries(job, 300, 100)
    assert (one.changed_entries, every.changed_entries) == (300, 30_000)
    # thirty thousand numbers compress better than three hundred, so a hundredth is not reached
    assert one.changelog_bytes * 5 < every.changelog_bytes
    again = changed_entries(job, 300, 1)
    assert again.changelog_bytes < 1.2 * one.changelog_bytes
    job.close()


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize(
    "arguments",
    [
        ["timers", "--pending", "400", "--base", "100", "--due", "7", "--events", "20"],
        ["keys", "--size", "400", "--base", "100", "--events", "20"],
        ["maps", "--size", "40", "--entries", "5", "--events", "20"],
    ],
    ids=lambda a: a[0],
)
def test_each_benchmark_prints_its_ratio(
    arguments: list[str], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(spark), "stop", lambda session: None)  # that of all tests
    done = CliRunner().invoke(app, [*arguments, "--rounds", "2", "--warm-up", "1"])
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[-1].startswith("ratio ")


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
def test_any_difference_from_the_reference_is_an_error(results: Results, message: str) -> None:
    expected = Results(Counter({(1, 2.0): 2}), {1: (1, 2.0)})
    unequal.check("same", expected, expected)
    with pytest.raises(UnequalResultsError, match=message):
        unequal.check("other", results, expected)


# -- the walk of a row ------------------------------------------------------------------------------------------------

MOST_FILES, MOST_CLIMBS = 30, 10


@pytest.mark.spark
def test_a_row_passes_few_modules_and_the_executor_calls_down(tmp_path: Path, spark: SparkSession) -> None:
    """Bounds from above: a module more on the way, or a callback more, is a decision and no accident."""
    seen = walk(tmp_path, spark)
    assert len(seen.passed) <= MOST_FILES, sorted(seen.passed)
    assert len(seen.climbs) <= MOST_CLIMBS, sorted(seen.climbs)
    # it really looks from end to end: where the row is read, where it is handled, and where it is written
    ends = {"sources/file.py", "core/operator/stream_operator.py", "storage/stores/files.py"}
    assert ends <= seen.passed.keys()


# -- telemetry --------------------------------------------------------------------------------------------------------

PROJECT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.spark
def test_pairs_with_and_without_are_compared() -> None:
    small = ["--pairs", "2", "--warm-up", "1", "--events", "50", "--keys", "100"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.telemetry", *small],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=280,
        check=True,
    )
    assert re.fullmatch(r"ratio with to without = \d+\.\d{3}", done.stdout.splitlines()[-1])
