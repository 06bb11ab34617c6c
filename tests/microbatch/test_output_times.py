"""Outputs with an event time of their own, and operators that hold their watermark back: chains of two windows.

The first window takes late rows for a while, and so holds the watermark back: none of its results is late for the
second one, whatever fires its timers, however batches are cut, and at any parallelism. Against a plain loop.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine import (
    DataStream,
    FileSource,
    KeyedProcessFunction,
    MapStateDescriptor,
    OutputTag,
    RuntimeContext,
    StatefulJob,
    Timestamped,
    ValueStateDescriptor,
)
from state_engine.core.errors import ConfigurationError
from state_engine.core.types.timestamps import MIN_TIMESTAMP
from state_engine.testing import CollectSink, KeyedHarness, MemoryRun, run_in_memory
from tests.support.limits import NOTHING_BY_DRIVER, SetLimits
from tests.support.pipelines import Pipeline

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ROW, COUNTED = "n bigint, k string, at timestamp", "k string, start bigint, rows bigint"
NOWHERE = FileSource("/nowhere", schema=ROW)
INNER, OUTER, BOUND, MINUTE_MS = 10, 40, 5, 60_000
LATE = OutputTag("late", COUNTED)
Row = tuple[int, str, datetime]
MORE = pytest.mark.more


class Window(KeyedProcessFunction):
    """Counts the rows of a key in windows; a window takes rows until the watermark is ``lateness`` behind its end."""

    def __init__(self, size: int, lateness: int = 0, *, holds_back: bool = True) -> None:
        self._size, self._lateness = size, lateness
        self.holds_back_ms = lateness if holds_back else None

    def open(self, runtime_context: RuntimeContext) -> None:
        self.windows = runtime_context.get_map_state(MapStateDescriptor("windows", int, int))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        at = ctx.timestamp()
        assert at is not None
        start, rows = at - at % self._size, getattr(value, "rows", 1)
        due = start + self._size - 1 + self._lateness
        if due <= ctx.timer_service().current_watermark():
            yield LATE, (value.k, start, rows)
            return
        self.windows.put(start, (self.windows.get(start) or 0) + rows)
        ctx.timer_service().register_event_time_timer(due)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        end = timestamp - self._lateness + 1
        start = end - self._size
        rows = self.windows.get(start)
        self.windows.remove(start)
        yield Timestamped((ctx.get_current_key(), start, rows), end - 1)


def build(
    job: StatefulJob, lateness: int, *, holds_back: bool = True, source: Any = NOWHERE, **time: Any
) -> Mapping[str, DataStream]:
    rows = job.source(
        "rows", source, order_by=["n"], event_time="at", max_out_of_orderness=f"{BOUND} ms", **time
    )
    first = Window(INNER, lateness, holds_back=holds_back)
    inner = rows.key_by("k").process(first, uid="inner", output_type=COUNTED)
    outer = inner.key_by("k").process(Window(OUTER), uid="outer", output_type=COUNTED)
    return {"outer": outer, "late": outer.get_side_output(LATE), "too_late": inner.get_side_output(LATE)}


def job_of(lateness: int, *, parallelism: int = 1, holds_back: bool = True, **time: Any) -> StatefulJob:
    job = StatefulJob("chain", parallelism=parallelism)
    for name, stream in build(job, lateness, holds_back=holds_back, **time).items():
        stream.sink(name, CollectSink())
    return job


def rows_of(seed: int, count: int = 80) -> list[Row]:
    """Some displaced by exactly the out-of-orderness, some far behind."""
    rng, newest, made = random.Random(seed), 100, []
    for n in range(count):
        newest += rng.choice([0, 1, 3, 12])
        behind = rng.choice([0, 0, 1, BOUND, BOUND + 1, 12, 35])
        made.append((n, rng.choice("abc"), EPOCH + timedelta(milliseconds=newest - behind)))
    return made


def ms(at: datetime) -> int:
    return (at - EPOCH) // timedelta(milliseconds=1)


@dataclass
class Expected:
    """What a plain loop makes of rows: the outer windows of all rows that an inner window could take."""

    outer: Counter[tuple[str, int]]
    too_late: int

    @classmethod
    def of(cls, rows: Iterable[Row], lateness: int) -> Expected:
        watermark, outer, too_late = -(2**63), Counter[tuple[str, int]](), 0
        for _, k, when in rows:
            at = ms(when)
            if at - at % INNER + INNER - 1 + lateness <= watermark:
                too_late += 1
            else:
                outer[k, at - at % OUTER] += 1
            watermark = max(watermark, at - BOUND - 1)
        return cls(outer, too_late)


def outer_of(outputs: Iterable[Any]) -> Counter[tuple[str, int]]:
    rows = Counter[tuple[str, int]]()
    for k, start, number in outputs:
        assert (k, start) not in rows, "an outer window came twice"
        rows[k, start] = number
    return rows


def cuts(seed: int, count: int) -> list[int]:
    rng = random.Random(seed)
    return [0, *sorted(rng.sample(range(1, count), rng.choice([0, 1, 5, 20]))), count]


def check(run: MemoryRun, expected: Expected) -> None:
    assert outer_of(run.sink("outer")) == expected.outer
    assert len(run.sink("too_late")) == expected.too_late
    assert run.sink("late") == []  # all that the first window yields is in time for the second one


@pytest.mark.parametrize("lateness", [15, pytest.param(0, marks=MORE), pytest.param(60, marks=MORE)])
@pytest.mark.parametrize("parallelism", [3, pytest.param(1, marks=MORE)])
def test_no_result_of_a_window_is_late_for_the_next_one(lateness: int, parallelism: int) -> None:
    for seed in range(3):
        rows = rows_of(seed)
        with run_in_memory(job_of(lateness, parallelism=parallelism)) as run:
            for start, end in zip((at := cuts(seed, len(rows))), at[1:], strict=False):
                run.process({"rows": rows[start:end]})
            run.process(drain=True)
            check(run, Expected.of(rows, lateness))


def test_without_holding_back_results_are_late_for_the_next_window() -> None:
    with run_in_memory(job_of(60, holds_back=False)) as run:
        run.process({"rows": rows_of(1)})
        run.process(drain=True)
        assert run.sink("late") != []


def test_the_watermark_that_a_chained_operator_has_reached_is_recorded_and_never_goes_back() -> None:
    rows = rows_of(2)
    with run_in_memory(job_of(0)) as run:
        run.process({"rows": rows[:40]})
        before = run.checkpoints()[-1].operator_watermarks_ms
        assert before == {"outer": run.checkpoints()[-1].watermark_ms}
        run.restart(job_of(60))
        run.process({"rows": rows[40:42]})
        assert run.checkpoints()[-1].operator_watermarks_ms == before


# -- what fires timers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lateness", [0, 15])
def test_the_clock_closes_both_windows(lateness: int) -> None:
    rows = rows_of(3)
    with run_in_memory(job_of(lateness, watermark="clock", clock_delay="10 ms")) as run:
        run.process({"rows": rows}, clock=0)
        run.process(clock=ms(rows[-1][2]) + 300)
        check(run, Expected.of(rows, lateness))


@pytest.mark.parametrize("lateness", [0, 15])
def test_a_source_that_falls_idle_closes_windows_in_time(lateness: int) -> None:
    job = StatefulJob("idle", parallelism=2)
    streams = []
    for name in ("left", "right"):
        rows = job.source(name, NOWHERE, order_by=["at"], event_time="at", idle_after="5 min")
        streams.append(rows)
    inner = streams[0].union(streams[1]).key_by("k").process(
        Window(INNER, lateness), uid="inner", output_type=COUNTED
    )  # fmt: skip
    outer = inner.key_by("k").process(Window(OUTER), uid="outer", output_type=COUNTED)
    outer.sink("outer", CollectSink())
    outer.get_side_output(LATE).sink("late", CollectSink())
    left = [(n, "abc"[n % 3], EPOCH + timedelta(milliseconds=7 * n)) for n in range(40)]
    right = [(n, "a", EPOCH + timedelta(milliseconds=n)) for n in range(26)]
    with run_in_memory(job) as run:
        run.process({"left": left[:20], "right": right}, clock=0)
        assert run.state("inner", "windows") != {} != run.state("outer", "windows")
        run.process({"left": left[20:]}, clock=MINUTE_MS)
        assert run.sink("outer") == []  # the other source holds time back
        run.process({"left": [(99, "z", EPOCH + timedelta(milliseconds=10_000))]}, clock=6 * MINUTE_MS)
        assert [s.idle for s in run.checkpoints()[-1].sources] == [False, True]
        assert outer_of(run.sink("outer")) == Counter(
            (k, ms(at) - ms(at) % OUTER) for _, k, at in left + right
        )
        assert run.sink("late") == []


# -- merged streams ----------------------------------------------------------------------------------------------------


def in_time_order(*, seed: int, count: int = 60) -> list[Row]:
    rng, at, made = random.Random(seed), 0, []
    for n in range(count):
        at += rng.choice([0, 1, 4, 9])
        made.append((n, rng.choice("abc"), EPOCH + timedelta(milliseconds=at)))
    return made


def merged_job(lateness: int, *, with_source: bool) -> StatefulJob:
    """Results of an inner window, with those of another one of another source, or with the rows of its own source."""
    job, parts = StatefulJob("merged", parallelism=2), []
    for name in ("left", "right"):
        rows = job.source(name, NOWHERE, order_by=["at"], event_time="at")
        inner = rows.key_by("k").process(Window(INNER, lateness), uid=f"inner-{name}", output_type=COUNTED)
        parts.append(inner)
        if with_source:
            parts.append(rows.map(lambda row: (row.k, 0, 1), output_type=COUNTED, uid=f"rows-{name}"))
    outer = parts[0].union(*parts[1:]).key_by("k").process(Window(OUTER), uid="outer", output_type=COUNTED)
    outer.sink("outer", CollectSink())
    outer.get_side_output(LATE).sink("late", CollectSink())
    return job


@pytest.mark.parametrize("with_source", [False, True], ids=["windows", "windows and rows"])
@pytest.mark.parametrize("lateness", [15, pytest.param(0, marks=MORE)])
def test_what_one_window_holds_back_it_holds_back_for_all_that_is_merged_with_it(
    lateness: int, with_source: bool
) -> None:
    given = {"left": in_time_order(seed=1), "right": in_time_order(seed=2)}
    expected = Counter((k, ms(at) - ms(at) % OUTER) for rows in given.values() for _, k, at in rows)
    for seed in range(2):
        with run_in_memory(merged_job(lateness, with_source=with_source)) as run:
            for start, end in zip((at := cuts(seed, 60)), at[1:], strict=False):
                run.process({name: rows[start:end] for name, rows in given.items()})
            run.process(drain=True)
            assert run.sink("late") == []
            twice = 1 + with_source  # each row is counted by its window, and once more by itself
            assert outer_of(run.sink("outer")) == Counter({one: n * twice for one, n in expected.items()})


class Holding(KeyedProcessFunction):
    """Passes each row on, and holds the watermark back."""

    def __init__(self, holds_back_ms: int) -> None:
        self.holds_back_ms = holds_back_ms

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        yield value


class Seen(KeyedProcessFunction):
    """The watermark before each row."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        yield value.n, ctx.timer_service().current_watermark()


def seen_job(shape: str) -> StatefulJob:
    job = StatefulJob("seen", parallelism=2)
    rows = job.source("rows", NOWHERE, order_by=["at"], event_time="at")

    def holding(stream: DataStream, by_ms: int) -> DataStream:
        return stream.key_by("k").process(Holding(by_ms), uid=f"hold-{by_ms}", output_type=ROW)

    held = holding(rows, 5)
    if shape == "chain":
        held = holding(holding(held, 0), 7)
    elif shape == "beside the source":
        held = held.union(rows)
    elif shape == "diamond":
        held = held.union(holding(holding(rows, 3), 4))
    held.key_by("k").process(Seen(), uid="seen", output_type="n bigint, watermark bigint").sink(
        "seen", CollectSink()
    )
    return job


@pytest.mark.parametrize(
    ("shape", "held", "copies"),
    [("one", 5, 1), ("chain", 12, 1), ("beside the source", 5, 2), ("diamond", 7, 2)],
)
def test_each_operator_sees_what_those_before_it_hold_back_together(
    shape: str, held: int, copies: int
) -> None:
    rows = [(n, "abc"[n % 3], EPOCH + timedelta(milliseconds=10 * n)) for n in range(30)]
    for seed in range(3):
        with run_in_memory(seen_job(shape)) as run:
            for start, end in zip((at := cuts(seed, len(rows))), at[1:], strict=False):
                run.process({"rows": rows[start:end]})
            seen = run.sink("seen")
            assert len(seen) == copies * len(rows)
            # before a row that a source gives twice stands the other copy of it
            assert {mark for n, mark in seen if n == 0} <= {MIN_TIMESTAMP, -1 - held}
            steps = {(n, mark + 1 + held - 10 * n) for n, mark in seen if n}
            assert {by for _, by in steps} <= {-10, 0}
            assert {(n, -10) for n in range(1, 30)} <= steps


# -- on Spark ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_driver", [True, False], ids=["driver", "tasks"])
@pytest.mark.parametrize("lateness", [0, 15])
def test_the_same_on_spark(
    spark: SparkSession, tmp_path: Path, limits: SetLimits, by_driver: bool, lateness: int
) -> None:
    if not by_driver:
        limits(**NOTHING_BY_DRIVER)
    rows = rows_of(4)
    _write(tmp_path, rows[:50])
    source = FileSource(str(tmp_path / "in"), format="json", schema=ROW)
    pipeline = Pipeline(tmp_path, spark, lambda job: build(job, lateness, source=source), parallelism=2)
    pipeline.run()
    _write(tmp_path, rows[50:])
    pipeline.run()
    pipeline.run(drain=True)
    outputs, expected = pipeline.outputs(), Expected.of(rows, lateness)
    assert outer_of(outputs["outer"]) == expected.outer
    assert len(outputs.get("too_late", [])) == expected.too_late
    assert "late" not in outputs


def _write(directory: Path, rows: Sequence[Row]) -> None:
    (directory / "in").mkdir(exist_ok=True)
    lines = [f'{{"n": {n}, "k": "{k}", "at": "{at.isoformat()}"}}' for n, k, at in rows]
    (directory / "in" / f"{rows[0][0]}.json").write_text("\n".join(lines))


# -- outputs with marks, in the harness --------------------------------------------------------------------------------


class Marks(KeyedProcessFunction):
    """Yields an output with each mark; refuses odd numbers once it has yielded."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", int))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        self.seen.update(value)
        yield value
        yield Timestamped(value + 1, 5)
        yield LATE_NUMBER, Timestamped(value + 2, 7)
        yield LATE_NUMBER, value + 3
        if value % 2:
            raise ValueError("odd")


LATE_NUMBER = OutputTag("number", int)


def harness(**options: Any) -> KeyedHarness:
    return KeyedHarness(
        Marks(), key_by=lambda value: value, timestamp_of=lambda value: 100 + value, **options
    )


def test_outputs_have_their_own_event_time_or_that_of_their_element() -> None:
    marked = harness()
    assert marked.process([0, 10]) == [0, 1, 10, 11]
    assert marked.output_timestamps == [100, 5, 110, 5]
    assert marked.side_output(LATE_NUMBER) == [2, 3, 12, 13]


def test_what_a_refused_element_yielded_has_no_time_any_more() -> None:
    marked = harness(on_error="dead_letter")
    assert marked.process([1, 10]) == [10, 11]
    assert marked.output_timestamps == [110, 5]
    assert marked.side_output(LATE_NUMBER) == [12, 13]


def test_an_own_event_time_needs_a_stream_with_event_time() -> None:
    with pytest.raises(ConfigurationError, match="has no event time: give the source an event_time"):
        KeyedHarness(Marks(), key_by=lambda value: value).process([0])
