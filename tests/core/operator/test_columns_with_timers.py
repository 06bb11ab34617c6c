"""Functions over columns with maps, timers, side outputs, kinds and event times: what the same per element is.

``Hours`` sums values by key and hour of ten milliseconds, emits an hour when the watermark has passed it, and takes the
sum before back in changes while it goes on. Batches go through either form, on the same state.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from state_engine import (
    FileSource,
    KeyedProcessFunction,
    MapStateDescriptor,
    OutputTag,
    RowKind,
    SortedMapStateDescriptor,
    StatefulJob,
    Timestamped,
    ValueStateDescriptor,
    VectorizedKeyedFunction,
    VectorizedResult,
)
from state_engine.testing import CollectSink, KeyedHarness, run_in_memory

ROW = "k string, v bigint, at timestamp"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
OUT = "k string, hour bigint, total bigint"
LATE = OutputTag("late", ROW)
OPTIONS: dict[str, Any] = {
    "key_by": lambda row: row[0],
    "timestamp_of": lambda row: (row[2] - EPOCH) // timedelta(milliseconds=1),
    "max_out_of_orderness_ms": 20,
    "key_type": str,
    "input_type": ROW,
    "output_type": OUT,
}


class Hours(KeyedProcessFunction):
    """Per element."""

    emits_changes = True

    def open(self, runtime_context: Any) -> None:
        self.hours = runtime_context.get_sorted_map_state(SortedMapStateDescriptor("hours", int, int))
        self.values = runtime_context.get_map_state(MapStateDescriptor("values", int, int))
        self.rows = runtime_context.get_state(ValueStateDescriptor("rows", int, default=0))

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        hour = ctx.timestamp() // 10 * 10
        if hour + 9 <= ctx.timer_service().current_watermark():
            yield LATE, value
            return
        self.rows.update(self.rows.value() + 1)
        self.values.put(value[1], (self.values.get(value[1]) or 0) + 1)
        if value[1] == 0:
            self.values.remove(value[1])
        before = self.hours.get(hour)
        self.hours.put(hour, (before or 0) + value[1])
        ctx.timer_service().register_event_time_timer(hour + 9)
        if value[1] == 7:
            ctx.timer_service().delete_event_time_timer(hour + 9)  # this hour is never emitted
        if before is not None:
            yield RowKind.UPDATE_BEFORE, (value[0], hour, before)
            yield RowKind.UPDATE_AFTER, (value[0], hour, before + value[1])

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        hour = timestamp - 9
        yield Timestamped((ctx.get_current_key(), hour, self.hours.get(hour)), hour)
        self.hours.remove(hour)


class HoursOverColumns(VectorizedKeyedFunction):
    """By tables."""

    emits_changes = True
    uses_timers = True

    def open(self, runtime_context: Any) -> None:
        Hours.open(self, runtime_context)  # type: ignore[arg-type]

    def process_batch(self, rows: pa.Table, state: pa.Table, ctx: Any) -> VectorizedResult:
        hours, values = dict[Any, int](), dict[Any, int]()
        timers, deleted = set[Any](), set[Any]()
        counts: dict[int, int] = {}
        for name, of_map in (("hours", hours), ("values", values)):
            for entry in ctx.maps[name].to_pylist():
                of_map[entry["_key"], entry["map_key"]] = entry["value"]
        stored = {(of["_key"], of["time"]) for of in ctx.due.to_pylist()}
        before_hours, before_values = set(hours), set(values)
        outputs, late = list[Any](), list[Any]()
        times, marks = ctx.timestamps, ctx.watermarks
        for row in rows.to_pylist():
            key, at = row["_key"], times[row["_row"]].as_py()
            mark, hour = marks[row["_row"]].as_py(), at // 10 * 10
            self._fire(key, mark, stored | timers, hours, state, outputs)
            if hour + 9 <= mark:
                late.append({name: row[name] for name in ("k", "v", "at", "_row")})
                continue
            counts[key] = counts.get(key, 0) + 1
            values[key, row["v"]] = values.get((key, row["v"]), 0) + 1
            if row["v"] == 0:
                del values[key, 0]
            before = hours.get((key, hour))
            hours[key, hour] = (before or 0) + row["v"]
            timers.add((key, hour + 9))
            deleted.discard((key, hour + 9))
            if row["v"] == 7:
                timers.discard((key, hour + 9))
                stored.discard((key, hour + 9))
                deleted.add((key, hour + 9))
            if before is not None:
                of_row = {"k": row["k"], "hour": hour, "_row": row["_row"]}
                outputs.append(of_row | {"total": before, "_kind": "-U"})
                outputs.append(of_row | {"total": before + row["v"], "_kind": "+U"})
        for key in range(state.num_rows):
            self._fire(key, ctx.end_watermark_ms, stored | timers, hours, state, outputs)
        left = [{"_key": k, "time": t, "deleted": False} for k, t in timers if t > ctx.end_watermark_ms]
        left += [{"_key": k, "time": t, "deleted": True} for k, t in deleted]
        schema = pa.schema([
            ("k", pa.string()), ("hour", pa.int64()), ("total", pa.int64()), ("_row", pa.int64()),
            ("_key", pa.int64()), ("_timer", pa.int64()), ("_event_time", pa.int64()), ("_kind", pa.string()),
        ])  # fmt: skip
        rows_of = [{"_key": k, "rows": state["rows"][k].as_py() + n} for k, n in counts.items()]
        return VectorizedResult(
            outputs=pa.Table.from_pylist([{"_kind": "+I"} | one for one in outputs], schema),
            state=pa.Table.from_pylist(rows_of) if rows_of else None,
            maps={"hours": _changes(hours, before_hours), "values": _changes(values, before_values)},
            timers=pa.Table.from_pylist(left) if left else None,
            side={LATE: pa.Table.from_pylist(late)} if late else {},
        )

    @staticmethod
    def _fire(key: int, mark: int, timers: Any, hours: Any, state: pa.Table, outputs: list[Any]) -> None:
        for _, at in sorted((k, t) for k, t in timers if k == key and t <= mark):
            if (key, at - 9) in hours:
                one = {"k": state["key" if "key" in state.column_names else "k"][key].as_py(), "hour": at - 9}
                one |= {"total": hours.pop((key, at - 9)), "_key": key, "_timer": at, "_event_time": at - 9}
                outputs.append(one)


def _changes(entries: dict[Any, int], before: set[Any]) -> pa.Table:
    made = [{"_key": k, "map_key": m, "value": v} for (k, m), v in entries.items()]
    made += [{"_key": k, "map_key": m, "value": None} for k, m in before - set(entries)]
    return pa.Table.from_pylist(
        made, pa.schema([("_key", pa.int64()), ("map_key", pa.int64()), ("value", pa.int64())])
    )


def stream(seed: int, count: int = 40) -> list[tuple[str, int, datetime]]:
    rng, newest, rows = random.Random(seed), (-50, 0, 10**6)[seed % 3], []
    for _ in range(count):
        newest += rng.choice([0, 1, 4, 15])
        at = EPOCH + timedelta(milliseconds=newest - rng.choice([0, 0, 2, 3, 4, 30]))
        rows.append((rng.choice("abcd"), rng.choice([0, 1, 5, 7]), at))
    return rows


def kept(harness: KeyedHarness) -> dict[str, Any]:
    """All state, that of timers too; maps without the order of their entries."""
    entries = harness.snapshot().keyed.entries
    return {name: {k: v for k, v in of.items() if v != {}} for name, of in entries.items()}


@pytest.mark.parametrize("seed", range(12))
def test_either_form_goes_on_from_the_state_of_the_other(seed: int) -> None:
    rng, rows, at = random.Random(seed), stream(seed), 0
    elements, mixed = KeyedHarness(Hours(), **OPTIONS), KeyedHarness(HoursOverColumns(), **OPTIONS)
    while at <= len(rows):
        size, last = rng.choice([1, 5, 20]), at + 20 > len(rows)
        batch, at = rows[at : at + size], at + size
        drain = last and at > len(rows)
        if rng.random() < 0.3:  # time goes on without rows: timers are overdue when the batch begins
            ahead_ms = mixed._stored.watermark_ms + 25
            for harness in (mixed, elements):
                harness.set_watermark(max(ahead_ms, -100))
        assert mixed.process(batch, drain=drain) == elements.process(batch, drain=drain)
        assert mixed.output_timestamps == elements.output_timestamps
        assert kept(mixed) == kept(elements)
        assert mixed.side_output(LATE) == elements.side_output(LATE)
        late = mixed.side_output(LATE)
        form = rng.choice([Hours, HoursOverColumns])
        mixed = KeyedHarness.restored(form(), mixed.snapshot(), parallelism=rng.choice([1, 3]), **OPTIONS)
        mixed._side[LATE.tag_id] = late


def job(function: Any, parallelism: int) -> StatefulJob:
    made = StatefulJob("hours", parallelism=parallelism)
    source = FileSource("/nowhere", schema=ROW)
    rows = made.source("rows", source, event_time="at", max_out_of_orderness="20 ms")
    hours = rows.key_by("k").process(function, OUT, uid="hours")
    hours.sink("hours", CollectSink())
    hours.get_side_output(LATE).sink("late", CollectSink())
    again = hours.key_by("k").process(Echo(), "k string, at bigint, mark bigint, total bigint", uid="echo")
    again.sink("echo", CollectSink())
    return made


class Echo(KeyedProcessFunction):
    """Shows where outputs stand: their times and the watermark before each, in one order."""

    accepts_changes = True

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        yield value.k, ctx.timestamp(), ctx.timer_service().current_watermark(), value.total


def by_key(rows: list[Any]) -> dict[str, list[Any]]:
    return {key: [row for row in rows if row.k == key] for key in {row.k for row in rows}}


@pytest.mark.parametrize("seed", range(4))
def test_a_job_has_the_same_outputs_order_and_state_with_either_form(seed: int) -> None:
    rng, rows, at = random.Random(seed), stream(seed, 60), 0
    parallelism = 1 + seed % 3
    with (
        run_in_memory(job(Hours(), parallelism)) as elements,
        run_in_memory(job(Hours(), parallelism)) as mixed,
    ):
        while at <= len(rows):
            mixed.restart(job(rng.choice([Hours, HoursOverColumns])(), parallelism))
            size = rng.choice([1, 5, 20])
            batch, at = rows[at : at + size], at + size
            drain = at > len(rows)
            outputs = [run.process({"rows": batch}, drain=drain) for run in (mixed, elements)]
            for sink in ("hours", "late"):  # rows of a key stand in their order, keys beside each other
                assert by_key(outputs[0][sink]) == by_key(outputs[1][sink])
            assert outputs[0]["echo"] == outputs[1]["echo"]
            for state in ("hours", "values", "rows"):
                assert mixed.state("hours", state) == elements.state("hours", state)
            one, other = (run.checkpoints()[-1].operator("hours") for run in (mixed, elements))
            assert one is not None
            assert other is not None
            assert one.next_timers_ms == other.next_timers_ms
            assert one.entries == other.entries


@pytest.mark.parametrize("function", [Hours, HoursOverColumns])
def test_the_first_timer_may_be_one_of_a_key_that_no_row_touches(function: Any) -> None:
    with run_in_memory(job(function(), 1)) as run:
        for key, at_ms in (("b", 0), ("a", 11)):
            run.process({"rows": [(key, 1, EPOCH + timedelta(milliseconds=at_ms))]})
        operator = run.checkpoints()[-1].operator("hours")
        assert operator is not None
        assert operator.next_timers_ms == {"event": 9}
