"""Timers of one subtask from batch to batch, through files and without Spark."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from state_engine import KeyedProcessFunction, RuntimeContext, ValueStateDescriptor
from state_engine.core.checkpoints.checkpoint import FirstTimers
from state_engine.core.keys.canonical import key_hash
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.state.descriptors import TIMERS
from state_engine.core.time.timers import EVENT
from state_engine.core.types.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from state_engine.core.types.type_parsing import to_type
from state_engine.microbatch.routing.routed import HASH, SUBTASK, InputLayout, RoutedLayout
from state_engine.microbatch.routing.routing import nothing_new
from state_engine.microbatch.subtask.subtask import Subtask
from state_engine.microbatch.subtask.subtask_outputs import read_exchange
from state_engine.microbatch.subtask.subtask_spec import (
    BatchClocks,
    OutputSpec,
    RestoredOperatorState,
    StateFile,
    SubtaskReport,
    SubtaskSpec,
)
from state_engine.sources.frames import EVENT_TIME, WATERMARK, order_name
from state_engine.sources.output_type import OutputType
from state_engine.storage.layout import JobLayout
from state_engine.storage.state.listed_files import KeyHashes, ListedFile
from state_engine.storage.state.stored_timers import StoredTimers
from state_engine.storage.stores.files import join

KEY = KeySchema(("k",), (pa.string(),))
ORDER = (order_name(0), order_name(1))
LAYOUT = RoutedLayout(
    inputs=(InputLayout(("k",), ("k",), scalar=False),), order=ORDER, named=1, timed_order=True, positioned=True,
    keys=("k",), key_schema=KEY, event_time=True, key_refusals=False, refused=False, sources=False,
)  # fmt: skip
NOTHING: Any = nothing_new(1, event_time=True)


class Alarm(KeyedProcessFunction):
    """Emits a key again after ten milliseconds, and the watermark before every element."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        ctx.timer_service().register_event_time_timer((ctx.timestamp() or 0) + 10)
        yield value.k, ctx.current_watermark()

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        yield f"{ctx.get_current_key()}!", timestamp


class Snooze(Alarm):
    """Moves the timer of a key behind its last element."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.at = runtime_context.get_state(ValueStateDescriptor("at", int))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> list[Any]:
        if (before := self.at.value()) is not None:
            ctx.timer_service().delete_event_time_timer(before)
        self.at.update((ctx.timestamp() or 0) + 10)
        ctx.timer_service().register_event_time_timer((ctx.timestamp() or 0) + 10)
        return []


class Silent(KeyedProcessFunction):
    """Does nothing, and has no ``on_timer``."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        pass


class Site:
    """Runs batches of one subtask, each continuing from the files of those before."""

    def __init__(self, directory: Path, function: KeyedProcessFunction | None = None) -> None:
        self.function = function or Alarm()
        self.layout = JobLayout(f"file://{directory}", "job")
        self.files: list[StateFile] = []
        self.states: dict[str, Any] = {}
        self.first_timers: tuple[FirstTimers, ...] = ()
        self.batches = 0

    def run(self, rows: pa.Table | None, clocks: BatchClocks) -> list[tuple[Any, ...]]:
        """Outputs of a batch in their order."""
        table, routed = (NOTHING.rows.tables[0], NOTHING.layout) if rows is None else (rows, LAYOUT)
        self.batches += 1
        kind = OutputType.of(to_type("who string, at bigint", parameter="output"))
        spec = SubtaskSpec(
            layout=self.layout, write_id=f"w{self.batches}", uid="alarm", parallelism=1, max_parallelism=128,
            function=self.function, routed=routed, keyed=True, key_schema=KEY,
            outputs=[OutputSpec(None, kind, [], exchange=True)], state_files=self.files,
            recorded_states=self.states, operator_state=RestoredOperatorState(None, []), dead_letters=False,
            clocks=clocks, checkpoint_id=self.batches, parent_id=None,
            earlier_states={s.column_name: [s] for s in self.states.values()}, first_timers=self.first_timers,
        )  # fmt: skip
        report = Subtask(spec, 0, 0).run(table)
        self._keep(report)
        if "" not in report.exchange:
            return []
        exchanged = read_exchange(report.exchange[""])
        in_order = [(WATERMARK, "ascending"), ("_statelake_rank", "ascending"), (order_name(0), "ascending")]
        return [(r["who"], r["at"]) for r in exchanged.sort_by(in_order).to_pylist()]

    def know(self, *first_timers: FirstTimers) -> None:
        """Have the next batch know these first timers."""
        self.first_timers = first_timers

    def _keep(self, report: SubtaskReport) -> None:
        self.states |= {s.name: s for s in report.states}
        self.first_timers = (FirstTimers(0, 127, report.next_timers_ms),)
        for file in report.changelog:
            uri = join(self.layout.changelog("alarm"), file.path)
            assert file.key_group_min is not None
            assert file.key_group_max is not None
            listed = ListedFile.recorded(uri, file, of="alarm", max_parallelism=128)
            self.files.append(StateFile(listed, file.key_group_min, file.key_group_max, self.batches))


def events(*given: tuple[str, int], watermarks: list[int]) -> pa.Table:
    keys, times = [k for k, _ in given], [at for _, at in given]
    return pa.table(
        {
            "k": keys, ORDER[0]: times, ORDER[1]: list(range(len(times))), EVENT_TIME: times,
            HASH: [key_hash(k) for k in keys], SUBTASK: pa.array([0] * len(keys), pa.int32()), WATERMARK: watermarks,
        }
    )  # fmt: skip


def test_a_timer_is_stored_and_fires_in_a_batch_without_rows(tmp_path: Path) -> None:
    site = Site(tmp_path)
    rows = events(("a", 0), ("b", 5), ("a", 12), watermarks=[MIN_TIMESTAMP, -1, 4])
    first = site.run(rows, BatchClocks(0, MIN_TIMESTAMP, 11))
    assert first == [("a", MIN_TIMESTAMP), ("b", -1), ("a", 4), ("a!", 10)]
    assert TIMERS in site.states
    assert site.run(None, BatchClocks(0, 15, 15)) == [("b!", 15)]
    drained = BatchClocks(0, 15, 15, drain=True)
    assert site.run(None, drained) == [("a!", 22)]
    assert site.run(None, drained) == []


class Decoded:
    """Counts the stored keys that are decoded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keys, original = 0, KeySchema.decode_struct

        def watched(schema: KeySchema, keys: pa.Array) -> list[Any]:
            self.keys += len(keys)
            return original(schema, keys)

        monkeypatch.setattr(KeySchema, "decode_struct", watched)


@pytest.mark.more
def test_of_many_timers_only_keys_with_due_ones_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, pending = Site(tmp_path), 100_000
    rows = events(*((f"k{n}", n) for n in range(pending)), watermarks=[MIN_TIMESTAMP] * pending)
    site.run(rows, BatchClocks(0, MIN_TIMESTAMP, -1))
    decoded = Decoded(monkeypatch)
    assert site.run(None, BatchClocks(0, -1, 9)) == []
    assert decoded.keys == 0

    due = [(f"k{n}!", n + 10) for n in range(100)]
    assert site.run(None, BatchClocks(0, 9, 109)) == due
    assert decoded.keys <= 2 * len(due)  # once to know them, once with their timers
    assert site.first_timers[0].times_ms == {EVENT: 110}

    decoded.keys = 0
    row = events(("k50000", 100), watermarks=[109])
    assert site.run(row, BatchClocks(0, 109, 109)) == [("k50000", 109)]
    assert decoded.keys == 1
    assert site.first_timers[0].times_ms == {EVENT: 110}


def test_the_next_first_timer_is_looked_for_behind_those_that_fire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the millisecond after the watermark on: not from the first one, whose keys are touched, and not later."""
    searched, original = list[int](), StoredTimers.first

    def first(stored: StoredTimers, domain: str, since_ms: int, *, without: KeyHashes) -> int | None:
        searched.append(since_ms)
        return original(stored, domain, since_ms, without=without)

    monkeypatch.setattr(StoredTimers, "first", first)
    site = Site(tmp_path)
    rows = events(("a", 0), ("b", 5), ("c", 6), watermarks=[MIN_TIMESTAMP] * 3)
    site.run(rows, BatchClocks(0, MIN_TIMESTAMP, -1))
    assert site.run(None, BatchClocks(0, -1, 14)) == [("a!", 10)]
    assert site.first_timers == (FirstTimers(0, 127, {EVENT: 15}),)
    assert searched == [15]
    drained = BatchClocks(0, 14, 14, drain=True)
    assert site.run(None, drained) == [("b!", 15), ("c!", 16)]
    assert site.first_timers == (FirstTimers(0, 127, {}),)
    assert searched == [15, MAX_TIMESTAMP]


def test_without_functions_of_timers_it_is_looked_for_from_the_first_one_on(tmp_path: Path) -> None:
    """Nobody touches the keys whose timers are due."""
    site = Site(tmp_path)
    rows = events(("a", 0), ("b", 0), watermarks=[MIN_TIMESTAMP] * 2)
    site.run(rows, BatchClocks(0, MIN_TIMESTAMP, -1))
    site.function = Silent()
    site.know()
    site.run(events(("a", 20), watermarks=[-1]), BatchClocks(0, -1, 20))
    assert site.first_timers == (FirstTimers(0, 127, {EVENT: 10}),)


def test_an_older_row_that_knows_no_first_timers_loses_none(tmp_path: Path) -> None:
    site = Site(tmp_path)
    rows = events(("a", 0), ("b", 5), ("c", 7), watermarks=[MIN_TIMESTAMP, -1, 4])
    site.run(rows, BatchClocks(0, MIN_TIMESTAMP, 6))
    assert site.first_timers == (FirstTimers(0, 127, {EVENT: 10}),)
    for unknown in ((), (FirstTimers(0, 63, {EVENT: 10**9}), FirstTimers(64, 127, {}))):
        site.know(*unknown)  # nothing, or those of another parallelism
        site.run(None, BatchClocks(0, 6, 9))
        assert site.first_timers == (FirstTimers(0, 127, {EVENT: 10}),)
    site.know()
    assert site.run(None, BatchClocks(0, 9, 15)) == [("a!", 10), ("b!", 15)]
    assert site.first_timers == (FirstTimers(0, 127, {EVENT: 17}),)


def test_a_timer_that_was_moved_fires_where_it_is_now(tmp_path: Path) -> None:
    """What a newer file deletes, or puts, counts against what an older one holds."""
    site = Site(tmp_path, Snooze())
    site.run(events(("a", 0), ("b", 0), watermarks=[MIN_TIMESTAMP] * 2), BatchClocks(0, MIN_TIMESTAMP, 1))
    site.run(events(("a", 5), watermarks=[1]), BatchClocks(0, 1, 4))
    assert site.first_timers == (FirstTimers(0, 127, {EVENT: 10}),)
    assert site.run(None, BatchClocks(0, 4, 12)) == [("b!", 10)]
    assert site.first_timers == (FirstTimers(0, 127, {EVENT: 15}),)
    assert site.run(None, BatchClocks(0, 12, 20)) == [("a!", 15)]
    assert site.first_timers == (FirstTimers(0, 127, {}),)


def test_timers_stay_while_the_function_takes_none(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.run(events(("a", 0), watermarks=[MIN_TIMESTAMP]), BatchClocks(0, MIN_TIMESTAMP, 1))
    site.function = Silent()
    site.run(events(("a", 20), watermarks=[1]), BatchClocks(0, 1, 20))
    assert site.first_timers == (FirstTimers(0, 127, {EVENT: 10}),)
    site.function = Alarm()
    assert site.run(None, BatchClocks(0, 20, 20)) == [("a!", 10)]
