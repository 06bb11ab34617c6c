"""What a time to live does to a key depends on its own rows and the watermark: not on cuts, parallelism and backend.

With every setting of it, for states of all kinds. In the harness, in memory and, for columns, against elements.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from state_engine import (
    EmbeddedRocksDBStateBackend,
    FileSource,
    HashMapStateBackend,
    KeyedProcessFunction,
    StatefulJob,
    ValueStateDescriptor,
    VectorizedKeyedFunction,
    VectorizedResult,
)
from state_engine.state_backends.state_backend import StateBackend
from state_engine.testing import CollectSink, KeyedHarness, run_in_memory
from tests.core.state.steps import with_ttl
from tests.microbatch.ttl_jobs import EVENT, EVERY_SETTING, OPERATIONS, SEEN, Event, Keeps, TtlSettings
from tests.state_backends.backends import BACKENDS
from tests.support.pipelines import Pipeline

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DELAY_MS = 20
ANY_SETTING = st.sampled_from(EVERY_SETTING)
ANY_BACKEND = st.sampled_from(
    [*BACKENDS.values(), lambda: EmbeddedRocksDBStateBackend(compact_after_writes=3)]
)
Batch = tuple[int, list[Event]]
"""The clock of a micro-batch, and its rows."""


@st.composite
def histories(draw: st.DrawFn) -> list[Batch]:
    """Rows of three keys, out of order, under a clock that goes on."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    at_ms, clock_ms, batches = 0, 0, []
    for _ in range(rng.randrange(1, 5)):
        rows = []
        for _ in range(rng.randrange(1, 9)):
            at_ms += rng.choice((0, 1, 5, 10, 40))
            late_ms = rng.choice((0, 0, DELAY_MS - 1, 2 * DELAY_MS))
            rows.append(Event(at_ms - late_ms, rng.choice("abc"), rng.choice(OPERATIONS), rng.randrange(20)))
        batches.append((clock_ms, rows))
        clock_ms += rng.choice((0, 10, 29, 30, 60))
    return batches


def cut_finer(history: list[Batch], rng: random.Random) -> list[Batch]:
    """The same rows under the same clocks, in more micro-batches."""
    cut = []
    for clock_ms, rows in history:
        places = sorted(rng.sample(range(1, len(rows)), rng.randrange(len(rows))))
        cut += [(clock_ms, rows[a:b]) for a, b in pairwise([0, *places, len(rows)])]
    return cut


def by_key(outputs: Iterable[Any]) -> dict[str, list[str]]:
    of: dict[str, list[str]] = defaultdict(list)
    for key, seen in outputs:
        of[key].append(seen)
    return of


def in_harness(
    ttl: TtlSettings, history: list[Batch], *, parallelism: int = 1, backend: StateBackend | None = None
) -> dict[str, list[str]]:
    harness = KeyedHarness(
        Keeps(ttl), key_by=lambda e: e.k, parallelism=parallelism, backend=backend,
        timestamp_of=lambda e: e.at_ms, max_out_of_orderness_ms=DELAY_MS, on_error="dead_letter",
    )  # fmt: skip
    outputs: list[Any] = []
    for clock_ms, rows in history:
        harness.set_clock(clock_ms)
        outputs += harness.process(rows)
    return by_key(outputs)


def in_memory(
    ttl: TtlSettings, history: list[Batch], *, parallelism: int, backend: StateBackend
) -> dict[str, list[str]]:
    job = StatefulJob("job", parallelism=parallelism, state_backend=backend, on_error="dead_letter")
    source = job.source(
        "events", FileSource("/nowhere", schema=EVENT), event_time="at",
        max_out_of_orderness=timedelta(milliseconds=DELAY_MS),
    )  # fmt: skip
    seen = source.key_by("k").process(Keeps(ttl), uid="keeps", output_type=SEEN)
    seen.sink("seen", CollectSink())
    with run_in_memory(job) as run:
        for clock_ms, rows in history:
            given_rows = [(EPOCH + timedelta(milliseconds=e.at_ms), *e[1:]) for e in rows]
            run.process({"events": given_rows}, clock=clock_ms)
        return by_key(run.sink("seen"))


def one_by_one(history: list[Batch]) -> list[Batch]:
    return [(clock_ms, [row]) for clock_ms, rows in history for row in rows]


@pytest.mark.more
@settings(max_examples=100, deadline=None)
@given(ttl=ANY_SETTING, history=histories(), rng=st.randoms(use_true_random=False), backend=ANY_BACKEND)
def test_in_a_harness(ttl: TtlSettings, history: list[Batch], rng: random.Random, backend: Any) -> None:
    expected = in_harness(ttl, one_by_one(history))
    cut, parallelism = cut_finer(history, rng), rng.randrange(1, 5)
    assert in_harness(ttl, history) == expected
    assert in_harness(ttl, cut, parallelism=parallelism, backend=backend()) == expected


@pytest.mark.more
@settings(max_examples=15, deadline=None)
@given(ttl=ANY_SETTING, history=histories(), rng=st.randoms(use_true_random=False), backend=ANY_BACKEND)
def test_in_memory(ttl: TtlSettings, history: list[Batch], rng: random.Random, backend: Any) -> None:
    expected = in_harness(ttl, one_by_one(history))
    cut, parallelism = cut_finer(history, rng), rng.randrange(1, 5)
    assert in_memory(ttl, cut, parallelism=parallelism, backend=backend()) == expected


OUT_OF_ORDER = [Event(0, "a", "write", 1), Event(40, "b", "read", 2), Event(25, "a", "read", 3)]
WITH_A_TIMER = [Event(0, "a", "write", 1), Event(0, "a", "timer", 20), Event(70, "b", "read", 2)]


@pytest.mark.more
@pytest.mark.parametrize("ttl", EVERY_SETTING, ids=lambda ttl: "-".join(map(str, ttl)))
@pytest.mark.parametrize("rows", [OUT_OF_ORDER, WITH_A_TIMER], ids=["out of order", "a timer"])
def test_another_key_never_cleans_up_what_its_owner_would_see(ttl: TtlSettings, rows: list[Event]) -> None:
    seen = "1 [1] ([(1, 1)], [(1, 1)]) None None"
    for history in ([(0, rows)], one_by_one([(0, rows)])):
        for backend in (None, HashMapStateBackend(), EmbeddedRocksDBStateBackend(compact_after_writes=1)):
            outputs = in_harness(ttl, history, backend=backend)
            assert outputs["a"][0].partition(": ")[2] == seen


@pytest.mark.more
@pytest.mark.parametrize(
    "ttl", [t for t in EVERY_SETTING if t.shows_expired], ids=lambda ttl: "-".join(map(str, ttl))
)
def test_what_expired_is_shown_once_whoever_comes_first(ttl: TtlSettings) -> None:
    later = [Event(200, "b", "read", 2), Event(200, "a", "read", 3), Event(200, "a", "read", 4)]
    history = [(0, [Event(0, "a", "write", 1)]), (100, [Event(199, "c", "read", 0)]), (200, later)]
    for backend in (None, HashMapStateBackend(), EmbeddedRocksDBStateBackend(compact_after_writes=1)):
        first, second = in_harness(ttl, history, backend=backend)["a"]
        assert first == "read 3: 1 [1] ([(1, 1)], [(1, 1)]) None None"
        assert second == "read 4: None [] ([], []) None None"


@pytest.mark.spark
@pytest.mark.parametrize(("on_read", "shows_expired", "cleanup"), [
    (False, False, "default"), (True, False, "every record"), (True, True, "default"),
])  # fmt: skip
def test_on_spark(
    tmp_path: Path, spark: SparkSession, on_read: bool, shows_expired: bool, cleanup: str
) -> None:
    """In RocksDB, with a compaction in the middle."""
    ttl, rng = TtlSettings(on_read, shows_expired, True, cleanup), random.Random(7)
    at_ms, rows = 0, list[Event]()
    for _ in range(40):
        at_ms += rng.choice((0, 1, 5, 10, 40))
        late_ms = rng.choice((0, DELAY_MS - 1))
        rows.append(Event(at_ms - late_ms, rng.choice("abc"), rng.choice(OPERATIONS), rng.randrange(20)))

    def build(job: StatefulJob) -> dict[str, Any]:
        given_rows = [(EPOCH + timedelta(milliseconds=e.at_ms), *e[1:]) for e in rows]
        source = job.from_collection(
            given_rows, EVENT, name="events", event_time="at", max_rows_per_batch=16,
            max_out_of_orderness=timedelta(milliseconds=DELAY_MS),
        )  # fmt: skip
        return {"seen": source.key_by("k").process(Keeps(ttl), uid="keeps", output_type=SEEN)}

    backend = EmbeddedRocksDBStateBackend(compact_after_writes=3)
    pipeline = Pipeline(tmp_path, spark, build, parallelism=2, state_backend=backend, on_error="dead_letter")
    pipeline.run(clock=0, max_batches=2)
    with pipeline.engine() as engine:
        engine.compact("pipeline")
    pipeline.run(clock=0)
    assert by_key(pipeline.outputs()["seen"]) == in_harness(ttl, one_by_one([(0, rows)]))


class ShowsAndStores(KeyedProcessFunction):
    """Puts out the value of a key, then stores that of the row, where it has one."""

    def __init__(self, ttl: TtlSettings) -> None:
        self._ttl = ttl

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(
            with_ttl(ValueStateDescriptor("total", int), self._ttl.config())
        )

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        yield value[0], self.total.value()
        if value[1] is not None:
            self.total.update(value[1])


class InColumns(VectorizedKeyedFunction):
    """The same over columns."""

    def __init__(self, ttl: TtlSettings) -> None:
        self._ttl = ttl

    def open(self, runtime_context: Any) -> None:
        runtime_context.get_state(with_ttl(ValueStateDescriptor("total", int), self._ttl.config()))

    def process_batch(self, rows: pa.Table, state: pa.Table, ctx: Any) -> VectorizedResult:
        written = rows.filter(pc.is_valid(rows["n"]))
        return VectorizedResult(
            pa.table({"k": rows["k"], "total": state["total"].take(rows["_key"]), "_row": rows["_row"]}),
            state=pa.table({"_key": written["_key"], "total": written["n"]}),
        )


BY_CLOCK = st.sampled_from([ttl for ttl in EVERY_SETTING if not ttl.event_time])
ROWS = st.dictionaries(st.sampled_from("abcd"), st.none() | st.integers(0, 9), min_size=1)


@settings(max_examples=50, deadline=None)
@given(
    ttl=BY_CLOCK,
    batches=st.lists(st.tuples(st.sampled_from((0, 10, 29, 30)), ROWS)),
    parallelism=st.integers(1, 3),
)
def test_columns_see_what_elements_see(
    ttl: TtlSettings, batches: list[tuple[int, dict[str, int | None]]], parallelism: int
) -> None:
    """A row a key and micro-batch, for a function over columns sees the state once."""
    types: dict[str, Any] = {"input_type": "k string, n bigint", "output_type": "k string, total bigint"}
    key: dict[str, Any] = {"key_by": lambda e: e[0], "key_type": "string"}
    harnesses = [
        KeyedHarness(ShowsAndStores(ttl), **key, **types),
        KeyedHarness(InColumns(ttl), **key, **types, parallelism=parallelism),
    ]
    clock_ms = 0
    for wait_ms, rows in batches:
        clock_ms += wait_ms
        outputs = []
        for harness in harnesses:
            harness.set_clock(clock_ms)
            outputs.append(harness.process(list(rows.items())))
        assert outputs[0] == outputs[1]
