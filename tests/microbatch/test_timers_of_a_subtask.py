"""Timers of one subtask from batch to batch, through files and without Spark."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from state_engine import KeyedProcessFunction
from state_engine.core.checkpoints.checkpoint import FirstTimers
from state_engine.core.keys.canonical import key_hash
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.time.timers import TIMERS
from state_engine.core.time.watermarks import MIN_TIMESTAMP
from state_engine.core.types.type_parsing import to_type
from state_engine.microbatch.routing.routed import HASH, SUBTASK, InputLayout, RoutedLayout
from state_engine.microbatch.routing.routing import nothing_new
from state_engine.microbatch.subtask.output_files import read_exchange
from state_engine.microbatch.subtask.subtask import Subtask
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
from state_engine.storage.files import join
from state_engine.storage.layout import JobLayout
from state_engine.storage.state.changelog import ListedFile

KEY = KeySchema(("k",), (pa.string(),))
ORDER = (order_name(0), order_name(1))
LAYOUT = RoutedLayout(
    inputs=(InputLayout(("k",), ("k",), scalar=False),), order=ORDER, named=1, timed_order=True, positioned=True,
    keys=("k",), key_schema=KEY, event_time=True, key_refusals=False, refused=False, sources=False,
)  # fmt: skip


class Alarm(KeyedProcessFunction):
    """Emits a key again after ten milliseconds, and the watermark before every element."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        ctx.timer_service().register_event_time_timer((ctx.timestamp() or 0) + 10)
        yield value.k, ctx.current_watermark()

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        yield f"{ctx.get_current_key()}!", timestamp


class Site:
    """Runs batches of one subtask, each continuing from the files of those before."""

    def __init__(self, directory: Path) -> None:
        self.layout = JobLayout(f"file://{directory}", "job")
        self.files: list[StateFile] = []
        self.states: dict[str, Any] = {}
        self.first_timers: tuple[FirstTimers, ...] = ()
        self.batches = 0

    def run(self, table: pa.Table, routed: RoutedLayout, clocks: BatchClocks) -> list[tuple[Any, ...]]:
        """Outputs of a batch in their order."""
        self.batches += 1
        kind = OutputType.of(to_type("who string, at bigint", parameter="output"))
        spec = SubtaskSpec(
            layout=self.layout, write_id=f"w{self.batches}", uid="alarm", parallelism=1, max_parallelism=128,
            function=Alarm(), routed=routed, keyed=True, key_schema=KEY,
            outputs=[OutputSpec(None, kind, [], exchange=True)], state_files=self.files,
            recorded_states=self.states, operator_state=RestoredOperatorState(None, []), dead_letters=False,
            clocks=clocks, checkpoint_id=self.batches, parent_id=None,
            earlier_states={s.column_name: [s] for s in self.states.values()}, first_timers=self.first_timers,
        )  # fmt: skip
        report = Subtask(spec, 0, 0).run(table)
        assert report.error is None
        self._keep(report)
        if "" not in report.exchange:
            return []
        exchanged = read_exchange(report.exchange[""])
        in_order = [(WATERMARK, "ascending"), ("_statelake_rank", "ascending"), (order_name(0), "ascending")]
        return [(r["who"], r["at"]) for r in exchanged.sort_by(in_order).to_pylist()]

    def _keep(self, report: SubtaskReport) -> None:
        self.states |= {s.name: s for s in report.states}
        self.first_timers = (FirstTimers(0, 127, report.next_timers_ms),)
        for file in report.changelog:
            uri = join(self.layout.changelog("alarm"), file.path)
            assert file.key_group_min is not None
            assert file.key_group_max is not None
            listed = ListedFile.recorded(uri, file, of="alarm")
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
    first = site.run(rows, LAYOUT, BatchClocks(0, MIN_TIMESTAMP, 11))
    assert first == [("a", MIN_TIMESTAMP), ("b", -1), ("a", 4), ("a!", 10)]
    assert TIMERS in site.states
    empty = nothing_new(1, event_time=True)
    assert isinstance(empty.rows, list)
    assert site.run(empty.rows[0], empty.layout, BatchClocks(0, 15, 15)) == [("b!", 15)]
    drained = BatchClocks(0, 15, 15, drain=True)
    assert site.run(empty.rows[0], empty.layout, drained) == [("a!", 22)]
    assert site.run(empty.rows[0], empty.layout, drained) == []
