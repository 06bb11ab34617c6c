"""A whole job in memory: micro-batches, what sinks get, state, restores, changed code, errors; and no Java."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from state_engine import (
    ChangeFormat,
    CheckpointedFunction,
    DeltaSink,
    FileSource,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    OutputTag,
    Row,
    RuntimeContext,
    SourceFunction,
    StatefulJob,
    StateTtlConfig,
    Time,
    Types,
    ValueStateDescriptor,
    count,
)
from state_engine.core.errors import (
    ConfigurationError,
    DeadLetterLimitError,
    StateMigrationError,
    UserFunctionError,
    ValueTypeError,
)
from state_engine.testing import CollectSink, run_in_memory

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
CLICKS = "k string, n bigint"
LARGE = OutputTag("large", Types.LONG())


class Total(KeyedProcessFunction):
    """The sum by key; what is above ten goes to the side output, too."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", int, default=0))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        if value.n < 0:
            raise ValueError(f"{value.n} is negative")
        self.sum.update(self.sum.value() + value.n)
        yield value.k, self.sum.value()
        if value.n > 10:
            yield LARGE, value.n


def clicks_job(function: Any = None, **options: Any) -> StatefulJob:
    job = StatefulJob("clicks", **options)
    clicks = job.source("clicks", FileSource("/nowhere", schema=CLICKS))
    totals = clicks.key_by("k").process(function or Total(), uid="total", output_type=CLICKS)
    totals.sink("totals", DeltaSink("/nowhere/totals"))
    totals.get_side_output(LARGE).sink("large", CollectSink())
    return job


@pytest.mark.parametrize("parallelism", [1, 3])
def test_rows_go_in_and_each_sink_collects(parallelism: int) -> None:
    with run_in_memory(clicks_job(parallelism=parallelism)) as run:
        first = run.process({"clicks": [("a", 1), {"k": "b", "n": 20}, Row("k", "n")("a", 2)]})
        assert sorted(first["totals"]) == [("a", 1), ("a", 3), ("b", 20)]
        assert first["large"] == [20]
        assert run.process({"clicks": [("a", 30)]}) == {"totals": [("a", 33)], "large": [30]}
        assert sorted(run.sink("totals")) == [("a", 1), ("a", 3), ("a", 33), ("b", 20)]
        assert run.sink("large") == [20, 30]
        assert run.state("total", "sum") == {"a": 33, "b": 20}
        assert [row.rows_in for row in run.checkpoints()] == [3, 1]


def test_a_run_leaves_nothing_behind() -> None:
    with run_in_memory(clicks_job()) as run:
        run.process({"clicks": [("a", 1)]})
        directory = Path(run._directory.name)
        assert any(directory.iterdir())
    assert not directory.exists()


def test_nothing_new_is_no_micro_batch() -> None:
    with run_in_memory(clicks_job()) as run:
        assert run.process() == {}
        assert run.process({"clicks": []}) == {}
        assert run.checkpoints() == []
        assert run.sink("totals") == []


def test_a_restore_takes_back_state_and_outputs() -> None:
    with run_in_memory(clicks_job(parallelism=2)) as run:
        for n in (1, 2, 30):
            run.process({"clicks": [("a", n)]})
        report = run.restore(1)
        assert report.rows_withdrawn == {"totals": 2, "large": 1}
        assert run.sink("totals") == [("a", 1)]
        assert run.sink("large") == []
        assert run.state("total", "sum") == {"a": 1}
        assert run.process({"clicks": [("a", 5)]})["totals"] == [("a", 6)]
        run.restore(3)  # and forth again
        assert run.sink("totals") == [("a", 1), ("a", 3), ("a", 33)]
        assert run.state("total", "sum") == {"a": 33}


def test_a_micro_batch_that_fails_changes_nothing() -> None:
    with run_in_memory(clicks_job(parallelism=2)) as run:
        run.process({"clicks": [("a", 1)]})
        with pytest.raises(UserFunctionError, match=r"job 'clicks', operator 'total'.*-7 is") as error:
            run.process({"clicks": [("a", 2), ("b", -7)]})
        assert "given rows, row 2" in str(error.value)
        assert run.state("total", "sum") == {"a": 1}
        assert run.process() == {}  # the rows are not given again
        assert run.process({"clicks": [("a", 2)]})["totals"] == [("a", 3)]


def test_refused_rows_become_dead_letters() -> None:
    job = clicks_job(on_error="dead_letter", max_dead_letters=1)
    with run_in_memory(job) as run:
        run.process({"clicks": [("a", 1), ("a", -1), ("b", 2)]})
        [letter] = run.dead_letters()
        assert letter["operator"] == "total"
        assert "-1 is negative" in letter["error"]
        assert letter["row"] == '{"k": "a", "n": -1}'
        assert run.state("total", "sum") == {"a": 1, "b": 2}
        with pytest.raises(DeadLetterLimitError):
            run.process({"clicks": [("a", -1), ("a", -2)]})
        run.process({"clicks": [("a", -1)]})
        assert len(run.dead_letters()) == 2
        run.restore(1)
        assert len(run.dead_letters()) == 1


class Mean(Total):
    """Later code: it keeps the sum as another type."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", str, default="0"))


class Renamed(Total):
    """Later code: the sum has another name."""

    def open(self, runtime_context: RuntimeContext) -> None:
        total = ValueStateDescriptor("total", int, default=0).renamed_from("sum")
        self.sum = runtime_context.get_state(total)


def test_changed_code_goes_on_with_the_state() -> None:
    with run_in_memory(clicks_job(parallelism=2)) as run:
        run.process({"clicks": [("a", 1), ("b", 2)]})
        run.restart(clicks_job(Mean()))
        with pytest.raises(StateMigrationError, match="state 'sum'"):
            run.process({"clicks": [("a", 1)]})
        run.restart(clicks_job(Renamed(), parallelism=3))
        assert run.process({"clicks": [("a", 1)]})["totals"] == [("a", 2)]
        assert run.state("total", "total") == {"a": 2, "b": 2}
        with pytest.raises(ConfigurationError, match="cannot go on as 'other'"):
            run.restart(StatefulJob("other"))


class Wakes(KeyedProcessFunction):
    """Wakes by event time five seconds after an element, and by processing time a second after it."""

    def open(self, runtime_context: RuntimeContext) -> None:
        lives = StateTtlConfig.new_builder(Time.seconds(2)).build()
        last = ValueStateDescriptor("last", int)
        last.enable_time_to_live(lives)
        self.last = runtime_context.get_state(last)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        timers = ctx.timer_service()
        at = ctx.timestamp()
        assert at is not None
        timers.register_event_time_timer(at + 5_000)
        timers.register_processing_time_timer(timers.current_processing_time() + 1_000)
        self.last.update(value.n)
        yield value.k, f"came at {at}", timers.current_watermark()

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        yield str(ctx.get_current_key()), f"{ctx.time_domain().name} {self.last.value()}", timestamp


def test_timers_watermarks_clock_and_time_to_live() -> None:
    job = StatefulJob("wakes", parallelism=2)
    source = FileSource("/nowhere", schema="k string, n bigint, at timestamp")
    events = job.source("events", source, order_by=["at"], event_time="at")
    woken = events.key_by("k").process(Wakes(), uid="wakes", output_type="k string, what string, at bigint")
    woken.sink("woken", CollectSink())

    def at(seconds: int) -> datetime:
        return EPOCH + timedelta(seconds=seconds)

    with run_in_memory(job, clock=10) as run:
        came = run.process({"events": [("a", 1, at(0)), ("a", 2, at(3))]})["woken"]
        assert came == [("a", "came at 0", -(2**63)), ("a", "came at 3000", -1)]
        assert run.checkpoints()[-1].watermark_ms == 2_999
        assert run.process({"events": [("b", 3, at(6))]})["woken"] == [
            ("b", "came at 6000", 2_999),
            ("a", "EVENT_TIME 2", 5_000),
        ]
        assert run.process(clock=1_009) == {}
        woke = [("a", "PROCESSING_TIME 2", 1_010), ("b", "PROCESSING_TIME 3", 1_010)]
        assert sorted(run.process(clock=1_010)["woken"]) == woke
        assert run.state("wakes", "last") == {"a": 2, "b": 3}
        rest = [("a", "EVENT_TIME None", 8_000), ("b", "EVENT_TIME None", 11_000)]
        assert sorted(run.process(clock=5_000, drain=True)["woken"]) == rest
        assert run.state("wakes", "last") == {}  # it has expired by the clock
        assert run.process(drain=True) == {}


class Numbers(SourceFunction):
    """Counts up, from where it stopped."""

    def open(self, runtime_context: Any) -> None:
        self.next = 0

    def initialize_state(self, context: Any) -> None: ...

    def run(self, ctx: Any) -> None:
        for n in range(5):
            ctx.collect(n)

    def cancel(self) -> None: ...


class Buffers(MapFunction, CheckpointedFunction):
    """Keeps in operator state what it saw."""

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.seen = store.get_list_state(ListStateDescriptor("seen", Types.LONG()))

    def snapshot_state(self, context: Any) -> None: ...

    def map(self, value: int) -> int:
        self.seen.add(value)
        return value * 10


def test_sources_that_hold_their_rows_give_them() -> None:
    job = StatefulJob("held")
    listed = job.from_collection(range(5), int, name="listed", max_rows_per_batch=2)
    listed.map(Buffers(), int, uid="buffers").sink("tens", CollectSink())
    job.source("counted", Numbers(), output_type=int, max_rows_per_batch=10).sink("counted", CollectSink())
    with run_in_memory(job) as run:
        assert run.process() == {"tens": [0, 10], "counted": [0, 1, 2, 3, 4]}
        assert run.state("buffers", "seen") == [[0, 1]]
        assert len(run.run().batches) == 2
        assert run.sink("tens") == [0, 10, 20, 30, 40]
        with pytest.raises(ConfigurationError, match=r"\['listed'\] cannot be given rows"):
            run.process({"listed": [1]})
    with run_in_memory(job, types={"listed": int}) as run:  # rows in place of its own
        assert run.process({"listed": [7]})["tens"] == [70]


def add_size(rows: Any) -> Any:
    raise AssertionError("there is no Spark")


def test_code_over_tables_stands_for_dataframe_code() -> None:
    job = StatefulJob("sized", parallelism=2)
    words = job.source("words", FileSource("/nowhere", schema="word string"), order_by=["word"])
    sized = words.transform(add_size)
    sized.key_by("size").process(Total(), uid="total", output_type=CLICKS).sink("totals", CollectSink())
    sized.project(1).sink("sizes", CollectSink())
    with pytest.raises(ConfigurationError, match="is DataFrame code, which only Spark runs"):
        run_in_memory(job)

    def with_size(rows: pa.Table) -> pa.Table:
        size = pc.utf8_length(rows["word"]).cast(pa.int64())
        kept = rows.append_column("size", size).append_column("n", size).append_column("k", rows["word"])
        return kept.filter(pc.greater(size, 1))

    with run_in_memory(job, transforms={add_size: with_size}) as run:
        got = run.process({"words": [("bb",), ("a",), ("aa",), ("ccc",)]})
        assert sorted(got["totals"]) == [("aa", 2), ("bb", 4), ("ccc", 3)]  # in the order of the words
        assert sorted(got["sizes"]) == [(2,), (2,), (3,)]
    with (
        run_in_memory(job, transforms={add_size: lambda rows: rows.select(["word"])}) as run,
        pytest.raises(ConfigurationError, match=r"dropped the columns .*_statelake_file"),
    ):
        run.process({"words": [("bb",)]})


def test_a_union_and_a_sink_on_a_source() -> None:
    job = StatefulJob("merged", parallelism=3)
    left, right = (job.source(n, FileSource("/nowhere", schema=CLICKS), order_by=["n"]) for n in ("l", "r"))
    left.sink("raw", CollectSink())
    both = left.union(right)
    both.sink("both", CollectSink())
    both.key_by("k").process(Total(), uid="total", output_type=CLICKS).sink("totals", CollectSink())
    with run_in_memory(job) as run:
        got = run.process({"l": [("a", 3), ("a", 1)], "r": [("a", 2), ("a", 1)]})
        assert got["totals"] == [("a", 1), ("a", 2), ("a", 4), ("a", 7)]
        assert got["raw"] == [("a", 3), ("a", 1)]
        assert sorted(got["both"]) == [("a", 1), ("a", 1), ("a", 2), ("a", 3)]
        assert run.process({"r": [("a", 1)]})["totals"] == [("a", 8)]


def test_columns_of_other_types_are_not_united() -> None:
    job = StatefulJob("mixed")
    left = job.source("l", FileSource("/nowhere", schema="k string, n bigint"))
    right = job.source("r", FileSource("/nowhere", schema="k string, n int"))
    left.union(right).sink("both", CollectSink())
    with run_in_memory(job) as run:
        assert run.process({"l": [("a", 1)]})["both"] == [("a", 1)]
        with pytest.raises(ConfigurationError, match="declare the same types"):
            run.process({"l": [("a", 1)], "r": [("a", 1)]})


def test_what_is_asked_for_wrongly_is_named() -> None:
    job = clicks_job()
    with run_in_memory(job) as run:
        with pytest.raises(ConfigurationError, match=r"\['click'\] cannot be given rows.*\['clicks'\]"):
            run.process({"click": []})
        with pytest.raises(ValueTypeError, match="source 'clicks'"):
            run.process({"clicks": [("a", "many")]})
        with pytest.raises(ConfigurationError, match="no sink 'total'; its sinks"):
            run.sink("total")
        with pytest.raises(ConfigurationError, match="no operator 'totals'; its operators"):
            run.state("totals", "sum")
        with pytest.raises(ConfigurationError, match="there is no state 'sums' yet"):
            run.state("total", "sums")
    with pytest.raises(ConfigurationError, match=r"no source \['visits'\]"):
        run_in_memory(job, types={"visits": int})
    untyped = StatefulJob("untyped")
    untyped.source("files", FileSource("/nowhere")).sink("rows", CollectSink())
    with run_in_memory(untyped) as run, pytest.raises(ConfigurationError, match=r"types=\{'files'"):
        run.process({"files": [(1,)]})
    with run_in_memory(untyped, types={"files": "n int"}) as run:
        assert run.process({"files": [(1,)]}) == {"rows": [(1,)]}


def test_maps_and_keys_of_several_columns_come_as_functions_see_them() -> None:
    class Counts(KeyedProcessFunction):
        def open(self, runtime_context: RuntimeContext) -> None:
            self.by_day = runtime_context.get_map_state(MapStateDescriptor("by_day", Types.SQL_DATE(), int))

        def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
            self.by_day.put(value.day, (self.by_day.get(value.day) or 0) + 1)

    job = StatefulJob("days")
    source = FileSource("/nowhere", schema="k string, n int, day date")
    job.source("visits", source).key_by("k", "n").process(Counts(), uid="counts", output_type=int)
    with run_in_memory(job) as run:
        run.process({"visits": [("a", 1, EPOCH.date()), ("a", 1, EPOCH.date()), ("b", 2, EPOCH.date())]})
        assert run.state("counts", "by_day") == {("a", 1): {EPOCH.date(): 2}, ("b", 2): {EPOCH.date(): 1}}


_WITHOUT_JAVA = """
import subprocess, sys
from pyspark import SparkContext, java_gateway

def refused(*_, **__):
    raise AssertionError("Java was launched")

java_gateway.launch_gateway = refused
sys.modules["pyspark.core.context"].launch_gateway = refused
subprocess.Popen = refused
from tests.testing.test_memory_run import test_rows_go_in_and_each_sink_collects as run
run(2)
assert SparkContext._active_spark_context is None
print("ran")
"""


def test_no_java_is_started() -> None:
    environment = os.environ | {"JAVA_HOME": "/nowhere", "PATH": "/nowhere"}
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_JAVA], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "ran\n", done.stderr


ROW = "k string, v bigint, s bigint"
VERSIONS = {
    1: {"valid_to": 2, "is_current": False, "v": 5},
    2: {"valid_to": None, "is_current": True, "v": 3},
}
OPERATORS: dict[str, tuple[Any, dict[str, Any]]] = {
    "scd2": (lambda keyed: keyed.scd2(valid_from="s", uid="it"), {"versions": VERSIONS, "unshown": {}}),
    "top_n": (lambda keyed: keyed.top_n(1, by="v", uid="it"), {"top": {1: {"v": 5, "s": 1}}}),
    "aggregate": (lambda keyed: keyed.aggregate(n=count(), uid="it"), {"aggregates": (2,)}),
    "keyed sink": (
        lambda keyed: keyed.sink("it", DeltaSink("/data/it", key=["k"])),
        {"row": {"v": 3, "s": 2}},
    ),
    "sum": (lambda keyed: keyed.sum("v", uid="it"), {"rolling": {"k": "a", "v": 8, "s": 1}}),
    "min_by": (lambda keyed: keyed.min_by("v", uid="it"), {"rolling": {"k": "a", "v": 3, "s": 2}}),
    "reduce": (
        lambda keyed: keyed.reduce(lambda a, b: b, uid="it"),
        {"reduced": {"k": "a", "v": 3, "s": 2}},
    ),
}
FOR_INSERTS_ONLY = ("sum", "min_by", "reduce")


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("declared", ["schema of files", "types", "format"])
def test_states_of_built_in_operators_are_shown(operator: str, declared: str) -> None:
    """Their types are those of the rows, which a source may not declare in the code."""
    if declared == "format" and operator in FOR_INSERTS_ONLY:
        pytest.skip("takes no feed of changes")
    build, states = OPERATORS[operator]
    job, kind = StatefulJob("shown"), ROW
    rows: list[tuple[Any, ...]] = [("a", 5, 1), ("a", 3, 2)]
    format_ = ChangeFormat.columns(op="op", insert=["I"])
    if declared == "format":
        kind, rows = f"op string, {ROW}", [("I", *row) for row in rows]
    source = FileSource("/data/rows", schema=None if declared == "types" else kind)
    stream = job.source("rows", source, format=format_ if declared == "format" else None)
    made = build(stream.key_by("k"))
    if operator not in ("scd2", "top_n", "keyed sink"):
        made.sink("out", CollectSink())
    with run_in_memory(job, types={"rows": kind} if declared == "types" else {}) as run:
        run.process({"rows": rows})
        uid = "sink_it" if operator == "keyed sink" else "it"
        for name, expected in states.items():
            (shown,) = run.state(uid, name).values() or [{}]
            assert _as_dicts(shown) == expected


def _as_dicts(value: Any) -> Any:
    if isinstance(value, Row):
        return value.as_dict()
    return {key: _as_dicts(item) for key, item in value.items()} if isinstance(value, dict) else value
