"""Counted entries are those that there are, after any writes, restores and compactions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from state_engine import (
    EmbeddedRocksDBStateBackend,
    FileSink,
    FileSource,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    StateEngine,
    StatefulJob,
    ValueStateDescriptor,
)
from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.entry_counts import EntryCount, entry_counts
from state_engine.core.checkpoints.history import History
from state_engine.sinks.base import Sink
from state_engine.testing import CollectSink, MemoryRun, run_in_memory


class Writes(KeyedProcessFunction):
    """Does to the states of a key what the element says."""

    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last", int))
        self.all = runtime_context.get_list_state(ListStateDescriptor("all", int))
        self.by_name = runtime_context.get_map_state(MapStateDescriptor("by_name", str, int))

    def process_element(self, value: Any, ctx: Any) -> None:
        match value.what:
            case "put":
                self.last.update(1)
                self.all.add(1)
                self.by_name.put(value.name, 1)
            case "take":
                self.by_name.remove(value.name)
            case "empty":
                self.all.update([])
                self.by_name.clear()
            case "clear":
                for state in (self.last, self.all, self.by_name):
                    state.clear()


def build(rows: list[Any] | None = None, *, sink: Sink | None = None, **options: Any) -> StatefulJob:
    job = StatefulJob("counted", **options)
    kind = "k bigint, what string, name string"
    if rows is None:
        stream = job.source("rows", FileSource("/nowhere", schema=kind))
    else:
        stream = job.from_collection(rows, kind, max_rows_per_batch=4)
    out = stream.key_by("k").process(Writes(), uid="writes", output_type="bigint")
    out.sink("out", CollectSink() if sink is None else sink)
    return job


def counted(path: list[CheckpointRow]) -> dict[str, EntryCount]:
    return entry_counts(path, "writes")


def present(run: MemoryRun) -> dict[str, int]:
    last, lists, maps = (run.state("writes", name) for name in ("last", "all", "by_name"))
    return {"last": len(last), "all": len(lists), "by_name": sum(map(len, maps.values()))}


WHAT = st.sampled_from(["put", "take", "empty", "clear"])
ROWS = st.lists(st.tuples(st.integers(0, 3), WHAT, st.sampled_from("ab")), min_size=1, max_size=6)


@pytest.mark.more
@given(batches=st.lists(ROWS, min_size=1, max_size=4))
def test_increments_add_up_also_after_a_restore(batches: list[list[Any]]) -> None:
    with run_in_memory(build(parallelism=2)) as run:
        for number, rows in enumerate(batches, start=1):
            run.process({"rows": rows})
            path = History(run.checkpoints()).main_path
            assert counted(path) == {name: EntryCount(n, number) for name, n in present(run).items()}
        if len(batches) > 1:
            run.restore(1)
            run.process({"rows": batches[-1]})
            path = History(run.checkpoints()).main_path
            assert {n: c.entries for n, c in counted(path).items()} == present(run)


def test_a_compaction_counts_what_a_backend_writes_without_reading(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = [(1, "put", "a"), (2, "put", "a"), (1, "put", "b"), (2, "clear", "a"), (3, "put", "a")]
    held = {"last": EntryCount(2, 0), "all": EntryCount(2, 0), "by_name": EntryCount(3, 0)}

    def as_of(checkpoint_id: int) -> dict[str, EntryCount]:
        return {name: replace(count, checkpoint_id=checkpoint_id) for name, count in held.items()}

    for backend in (None, EmbeddedRocksDBStateBackend()):
        place = tmp_path / str(backend is None)
        job = build(rows, sink=FileSink(str(place / "out")), parallelism=2, state_backend=backend)
        with StateEngine(place / "root", spark) as engine:
            engine.run(job)
            before = counted(engine.checkpoints(job))
            assert before == (as_of(2) if backend is None else {})
            engine.compact(job)
            assert counted(engine.checkpoints(job)) == as_of(3)
            read = {name: engine.read_state(job, "writes", name).count() for name in held}
            assert read == {name: count.entries for name, count in held.items()}
