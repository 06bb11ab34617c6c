"""Changes of a job, the plan of each, and the run that does what the plan said."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from state_engine import (
    CheckpointedFunction,
    DeltaStateTable,
    FileSource,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    RuntimeContext,
    Session,
    StatefulJob,
    StateTtlConfig,
    Time,
    Types,
    ValueStateDescriptor,
    count,
)
from state_engine.core.errors import StatelakeError
from state_engine.testing import CollectSink, run_in_memory
from tests.code_changes.planning import plan_in_memory, shown

INT = Types.INT()
SCHEMA = "k string, n int, v bigint, at timestamp"
AT = datetime(2024, 1, 1, tzinfo=UTC)
ROWS = [("a", 1, 1, AT), ("b", 2, 2, AT)]


class States(KeyedProcessFunction):
    """Writes what it declares."""

    def __init__(self, *descriptors: ValueStateDescriptor, value: Any = 1, shape: str | None = None) -> None:
        self.descriptors, self.value, self.shape = descriptors, value, shape

    def open(self, runtime_context: RuntimeContext) -> None:
        self.states = [runtime_context.get_state(one) for one in self.descriptors]

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        for state in self.states:
            state.update(self.value)
        yield (value.v,)


class Wakes(States):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        ctx.timer_service().register_processing_time_timer(10_000)
        return super().process_element(value, ctx)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        yield (0,)


class Listed(CheckpointedFunction, MapFunction):
    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.seen = store.get_list_state(ListStateDescriptor("seen", self.kind))

    def snapshot_state(self, context: Any) -> None: ...

    def map(self, value: Any) -> Any:
        self.seen.add(value.n)
        return (value.v,)


@dataclass(frozen=True)
class Visit:
    minutes: int = 0


@dataclass(frozen=True)
class Longer:
    minutes: int = 0
    runway: str = "unknown"


@dataclass(frozen=True)
class Renamed:
    length: int = field(default=0, metadata={"alias": "minutes"})


class Named(NamedTuple):
    minutes: int


def visit(kind: Any, value: Any) -> States:
    return States(ValueStateDescriptor("visit", kind), value=value)


def number(name: str = "sum", kind: Any = INT, ttl_s: int = 0, former: str = "") -> States:
    one = ValueStateDescriptor(name, kind)
    if ttl_s:
        one.enable_time_to_live(StateTtlConfig.new_builder(Time.seconds(ttl_s)).build())
    return States(one.renamed_from(former) if former else one)


Change = Callable[[Any], Any]


def job(
    function: Any = None,
    *,
    key: Any = "k",
    then: Change = lambda stream: stream,
    uid: str = "f",
    schema: str = SCHEMA,
    more: Callable[[Any, Any], Any] = lambda rows, keyed: None,
    sink: str = "out",
    source: str = "rows",
    lateness: str = "1 min",
    order: tuple[str, ...] = (),
    **options: Any,
) -> StatefulJob:
    made = StatefulJob("changed", **{"parallelism": 2, "max_parallelism": 128, **options})
    rows = made.source(
        source,
        FileSource("/rows", schema=schema),
        event_time="at",
        max_out_of_orderness=lateness,
        order_by=order,
    )
    keyed = rows.key_by(*(key if isinstance(key, tuple) else (key,))) if key else rows
    out = keyed.process(function or number(), uid=uid, output_type="v bigint") if key else keyed.map(
        function, "v bigint", uid=uid
    )  # fmt: skip
    then(out).sink(sink, CollectSink())
    more(rows, keyed)
    return made


def windows(gap: str) -> Callable[[Any, Any], Any]:
    def add(rows: Any, keyed: Any) -> None:
        keyed.window(Session(gap)).aggregate(n=count(), uid="sessions").sink("sessions", CollectSink())

    return add


def second(rows: Any, keyed: Any) -> None:
    keyed.process(number(), uid="second", output_type="v bigint").sink("second", CollectSink())


def windows_and_second(rows: Any, keyed: Any) -> None:
    windows("30 min")(rows, keyed)
    second(rows, keyed)


def table(place: str = "/t", state: str = "sum") -> Change:
    return lambda stream: stream.publish_state(state, DeltaStateTable(place), name="shown")


def above(least: int) -> StatefulJob:
    def add(rows: Any, keyed: Any) -> None:
        rows.filter(lambda row: row.v > least, uid="above").sink("above", CollectSink())

    return job(more=add)


OTHER = "its function changed"
EMPTY = "new: it starts empty"

CHANGES: dict[str, tuple[StatefulJob, StatefulJob, dict[str, tuple[str, str]]]] = {
    "nothing": (job(), job(), {}),
    "a state is added": (
        job(), job(States(ValueStateDescriptor("sum", Types.INT()), ValueStateDescriptor("last", int))),
        {"operator f": ("replay", OTHER), "state f.last": ("continues", EMPTY)}),
    "a state is renamed": (
        job(), job(number("total", former="sum")),
        {"operator f": ("replay", OTHER), "state f.total": ("continues", "state 'sum' is renamed to 'total'")}),
    "a state is dropped": (
        job(), job(number("total"), then=lambda s: s.drop_states("sum")),
        {"operator f": ("replay", OTHER), "state f.total": ("continues", EMPTY),
         "state f.sum": ("continues", "it is dropped with the next micro-batch in which the operator runs")}),
    "a state is kept for later": (
        job(), job(number("total"), then=lambda s: s.keep_states("sum")),
        {"operator f": ("replay", OTHER), "state f.total": ("continues", EMPTY)}),
    "a state is no longer declared": (
        job(), job(States()), {"operator f": ("replay", OTHER), "state f.sum": ("refused", "holds 2 entries")}),
    "a field is added to a record": (
        job(visit(Visit, Visit(3))), job(visit(Longer, Longer(3))),
        {"operator f": ("replay", OTHER),
         "state f.visit": ("continues", "'runway' is added, as \"unknown\" in what is stored")}),
    "a field is dropped": (
        job(visit(Longer, Longer(3))), job(visit(Visit, Visit(3))),
        {"operator f": ("replay", OTHER), "state f.visit": ("continues", "'runway' is dropped")}),
    "a field is renamed": (
        job(visit(Visit, Visit(3))), job(visit(Renamed, Renamed(3))),
        {"operator f": ("replay", OTHER), "state f.visit": ("continues", "'minutes' is renamed to 'length'")}),
    "the class of a record": (
        job(visit(Visit, Visit(3))), job(visit(Named, Named(3))), {"operator f": ("replay", OTHER)}),
    "a wider number": (
        job(), job(number(kind=Types.LONG())),
        {"operator f": ("replay", OTHER), "state f.sum": ("continues", "'value' is widened from int to bigint")}),
    "a narrower number": (
        job(number(kind=Types.LONG())), job(),
        {"operator f": ("replay", OTHER), "state f.sum": ("refused", "bigint cannot become int")}),
    "a narrower number in operator state": (
        job(Listed(Types.LONG()), key=None), job(Listed(Types.INT()), key=None),
        {"operator f": ("replay", OTHER), "state f.seen": ("refused", "bigint cannot become int")}),
    "a wider number in operator state": (
        job(Listed(Types.INT()), key=None), job(Listed(Types.LONG()), key=None),
        {"operator f": ("replay", OTHER), "state f.seen": ("continues", "'value' is widened from int to bigint")}),
    "time to live is switched on": (
        job(), job(number(ttl_s=60)),
        {"operator f": ("replay", OTHER),
         "state f.sum": ("continues", "its time to live is 60000 ms now, and counts for what is written from now on")}),
    "time to live is switched off": (
        job(number(ttl_s=60)), job(),
        {"operator f": ("replay", OTHER),
         "state f.sum": ("continues", "its time to live is switched off: nothing expires from now on")}),
    "another time to live": (
        job(number(ttl_s=60)), job(number(ttl_s=90)),
        {"operator f": ("replay", OTHER),
         "state f.sum": ("continues", "its time to live was 60000 ms, and is 90000 ms, from the stored times")}),
    "the key becomes wider": (
        job(key="n"), job(key="n", schema=SCHEMA.replace("n int", "n bigint")),
        {"source rows": ("replay", "columns: struct<.*`n`: int.* → struct<.*`n`: bigint")}),
    "another key": (job(), job(key=("k", "n")), {"operator f": ("refused", "is stored by .'k'., the job keys by")}),
    "another type of key": (
        job(key="n"), job(key="n", schema=SCHEMA.replace("n int", "n string")),
        {"source rows": ("replay", "columns: "), "operator f": ("refused", "change_key_type")}),
    "a stream without key": (
        job(), job(Listed(int), key=None), {"operator f": ("refused", "gives it a stream without key"),
         "state f.sum": ("refused", "they would be left behind"), "state f.seen": ("continues", EMPTY)}),
    "parallelism": (
        job(), job(parallelism=5),
        {"job changed": ("continues", "operator f runs in 5 subtasks instead of 2 from the next micro-batch on")}),
    "max parallelism": (
        job(), job(max_parallelism=64), {"operator f": ("refused", "has 128 key groups, the job declares")}),
    "another gap of sessions": (
        job(more=windows("30 min")), job(more=windows("40 min")),
        {"operator sessions": ("refused", "was written by 'session 1800000 .* would misread it")}),
    "an operator is added": (
        job(), job(more=second),
        {"operator second": ("continues", "new: it begins empty"), "sink second": ("continues", "new: it gets what")}),
    "an operator beside a ready-made one": (
        job(more=windows("30 min")), job(more=windows_and_second),
        {"operator second": ("continues", "new: it begins empty"), "sink second": ("continues", "new: it gets what")}),
    "an operator is dropped": (
        job(more=second), job(),
        {"operator second": ("refused", "holds state of operators .'second'., which the job does not have"),
         "sink second": ("continues", "gone: it no longer gets rows")}),
    "another uid": (
        job(), job(uid="g"),
        {"operator f": ("refused", "holds state of operators .'f'."), "operator g": ("continues", "new: it begins"),
         "sink out": ("replay", "input: f → g")}),
    "another sink": (
        job(), job(sink="other"), {"sink out": ("continues", "gone"), "sink other": ("continues", "new")}),
    "another name of a source": (
        job(), job(source="clicks"),
        {"source rows": ("refused", "holds state of operators .'rows'."), "source clicks": ("continues", "new"),
         "operator f": ("replay", "input: rows → clicks")}),
    "another lateness": (
        job(), job(lateness="2 min"),
        {"source rows": ("replay", "out-of-orderness in ms: 60000 → 120000")}),
    "another order": (
        job(), job(order=("v",)), {"source rows": ("replay", "order: none → v")}),
    "timers without on_timer": (
        job(Wakes(ValueStateDescriptor("sum", Types.INT()))), job(),
        {"operator f": ("refused", "holds timers, and States has no on_timer")}),
    "data that a function was made with": (above(0), above(1), {"operator above": ("replay", OTHER)}),
    "a published table": (
        job(), job(then=table()), {"table shown": ("continues", "new: it shows the whole state")}),
    "another place of a published table": (
        job(then=table()), job(then=table("/other")),
        {"table shown": ("continues", "/t was its place, and stays as it is; .*/other shows the whole state")}),
    "a field more in a published table": (
        job(visit(Visit, Visit(3)), then=table(state="visit")),
        job(visit(Longer, Longer(3)), then=table(state="visit")),
        {"operator f": ("replay", "its function changed"), "state f.visit": ("continues", "'runway' is added"),
         "table shown": ("continues", "columns: runway: none → string; the next publish gives the table these")}),
    "a published table of an unknown state": (
        job(), job(then=table(state="nothing")), {"table shown": ("refused", "operator 'f' has no state 'nothing'")}),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_a_run_does_what_the_plan_said(what: str) -> None:
    before, after, expected = CHANGES[what]
    with run_in_memory(before) as run:
        source = "clicks" if "clicks" in before.sources else "rows"
        run.process({source: ROWS}, clock=1_000)
        plan = plan_in_memory(run, after, clock=1_000)
        assert shown(plan).keys() == expected.keys(), shown(plan)
        for part, (verdict, text) in expected.items():
            is_verdict, is_text = shown(plan)[part]
            assert is_verdict == verdict
            assert re.search(text, is_text), is_text
        verdicts = {verdict for verdict, _ in expected.values()}
        assert plan.exit_code == (3 if "refused" in verdicts else 2 if "replay" in verdicts else 0)
        number_of = str if "n string" in str(after.sources.get("rows")) else int
        given = {name: [(k, number_of(n), v, at) for k, n, v, at in ROWS] for name in run._made.given}
        if refusals := [text for one in plan.of("refused") for text in one.texts]:
            with pytest.raises(StatelakeError) as refused:
                run.process(given, clock=2_000)
            assert str(refused.value) in refusals
            assert len(run.checkpoints()) == 1
        else:
            run.process(given, clock=2_000)
            assert len(run.checkpoints()) == 2
            assert shown(plan_in_memory(run, after, clock=2_000)) == {}


def test_each_row_of_the_guide_is_planned() -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/evolution.md").read_text()
    table = guide.partition("## What may change")[2].partition("\n\nChanges of records")[0]
    rows = re.findall(r"^\| ([^|]*) \|", table, re.MULTILINE)[1:]
    assert {
        row: OF_GUIDE.get(row) for row in rows if not set(OF_GUIDE.get(row, ("",))) <= CHANGES.keys()
    } == {}
    assert len(rows) == len(OF_GUIDE)


OF_GUIDE: dict[str, tuple[str, ...]] = {
    "a state is added": ("a state is added",),
    "a state is no longer declared": ("a state is no longer declared", "a state is kept for later"),
    "a state is dropped: `.drop_states(\"seen\")`": ("a state is dropped",),
    "a state is renamed: `ValueStateDescriptor(\"total\", int).renamed_from(\"sum\")`": ("a state is renamed",),
    "a field is added to a record": ("a field is added to a record",),
    "a field is dropped": ("a field is dropped",),
    "a field that was dropped is added again": ("a field is added to a record", "a field is dropped"),
    "a field is renamed: `minutes: int = field(metadata={\"alias\": \"delay\"})`": ("a field is renamed",),
    "`tinyint → smallint → int → bigint`, `float → double`, `decimal(9,2) → decimal(12,2)`": (
        "a wider number", "a narrower number", "a wider number in operator state"),
    "order of fields, class of a record (tuple, `Row`, NamedTuple, dataclass)": ("the class of a record",),
    "time to live: on, off, another length": (
        "time to live is switched on", "time to live is switched off", "another time to live"),
    "the key becomes wider: `int` to `bigint`, `float` to `double`, a wider decimal": ("the key becomes wider",),
    "the key gets another type, by `change_key_type`": ("another type of key",),
    "parallelism; max parallelism by `rescale`": ("parallelism", "max parallelism"),
}  # fmt: skip
"""By row of the guide, the changes above."""
