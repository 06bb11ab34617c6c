"""The job of the schedules, and its Spark jobs done in this process: the same files, by the same writers.

Numbers 1, 2, 3, … are keyed by their remainder. Per key there is the sum so far, put anew for every number, and the
list of the numbers, appended to; every number is an output, with its key and the sum. What a micro-batch writes follows
from the state that it read, so a batch that read a wrong state gives wrong outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from state_engine import (
    DeltaSink,
    FileSink,
    KeyedProcessFunction,
    ListStateDescriptor,
    RuntimeContext,
    StatefulJob,
    ValueStateDescriptor,
)
from state_engine.core.checkpoints.checkpoint import CheckpointRow, DataFile
from state_engine.core.keys.canonical import key_hash
from state_engine.core.keys.key_groups import KeyGroupRange, subtask_for_key_group
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.state.evolution import recorded_schema
from state_engine.core.state.state_table import APPEND, PUT, Change
from state_engine.core.types.ddl import parse_ddl
from state_engine.microbatch.attempt_outputs import AttemptSinks
from state_engine.microbatch.batch import BatchContext
from state_engine.microbatch.batch_result import Execution
from state_engine.microbatch.executor import GraphExecutor
from state_engine.microbatch.subtask.subtask_outputs import write_sink_file
from state_engine.microbatch.subtask.subtask_spec import SubtaskReport
from state_engine.operations.compaction import WrittenBase
from state_engine.storage.layout import JobLayout, file_name, partition_path
from state_engine.storage.state.base import BaseSpec, write_base_files
from state_engine.storage.state.changelog import StateFiles, TouchedState
from state_engine.storage.state.changelog_write import changelog_table
from state_engine.storage.state.listed_files import AllKeys, KeyGroups
from state_engine.storage.state.located_files import state_files
from state_engine.storage.stores.files import join, local_path, write_parquet
from tests.protocol.interleaving import step
from tests.protocol.task_attempts import reported, written

JOB, UID, SOURCE = "model", "sums", "numbers"
KEYS, MAX_PARALLELISM = 3, 8
TOTAL, SEEN = ValueStateDescriptor("total", int), ListStateDescriptor("seen", int)
KEY = KeySchema(("k",), (pa.int64(),))
OUTPUT = pa.schema([("x", pa.int64()), ("k", pa.int64()), ("total", pa.int64())])

State = dict[int, tuple[int, list[int]]]
"""By key: the sum, and the numbers in order."""
Output = tuple[int, int, int]

slices: dict[str, tuple[int, int]] = {}
"""By attempt: how many numbers were read before it, and after."""


class Sums(KeyedProcessFunction):
    """The work of ``execute`` as a function, for runs on Spark."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.total, self.seen = runtime_context.get_state(TOTAL), runtime_context.get_list_state(SEEN)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        total = (self.total.value() or 0) + value.x
        self.total.update(total)
        self.seen.add(value.x)
        yield value.x, value.k, total


def build(directory: Path, *, numbers: int, at_once: int, parallelism: int, files: bool) -> StatefulJob:
    """The job; ``files`` adds a sink that is a directory of files."""
    job = StatefulJob(JOB, parallelism=parallelism, max_parallelism=MAX_PARALLELISM)
    rows = [(x, x % KEYS) for x in range(1, numbers + 1)]
    source = job.from_collection(rows, "x bigint, k bigint", name=SOURCE, max_rows_per_batch=at_once)
    sums = source.key_by("k").process(Sums(), uid=UID, output_type="x bigint, k bigint, total bigint")
    sums.sink("out", DeltaSink(str(directory / "out")))
    if files:
        sums.sink("out_files", FileSink(str(directory / "out_files")))
    return job


def fold(numbers: Iterable[int]) -> tuple[State, list[Output]]:
    """The state and outputs after these numbers, computed from the numbers alone."""
    state: State = {}
    outputs = []
    for x in numbers:
        before, seen = state.get(x % KEYS, (0, []))
        state[x % KEYS] = (before + x, [*seen, x])
        outputs.append((x, x % KEYS, before + x))
    return state, outputs


def stored_state(layout: JobLayout, path: Sequence[CheckpointRow]) -> State:
    """The state at the end of a path, from the files that its rows list."""
    files = [f.listed for f in state_files(layout, path, UID)]
    stored = StateFiles(files, AllKeys(), KEY)
    totals, seen = (_folded(stored, one) for one in (TOTAL, SEEN))
    assert totals.keys() == seen.keys()
    return {key: (totals[key], seen[key]) for key in totals}


def _folded(stored: StateFiles, descriptor: Any) -> dict[Any, Any]:
    table = stored.table(descriptor)
    return {} if table is None else stored.fold(descriptor, table)


# -- in place of Spark jobs --------------------------------------------------------------------------------------------


def execute(self: GraphExecutor, batch: BatchContext, outputs: AttemptSinks) -> Execution:
    """In place of ``GraphExecutor.execute``: read the state of the touched keys, and write every subtask's files."""
    step("before execute")
    start, end = batch.slices[SOURCE].detail
    slices[batch.write_id] = (start, end)
    numbers = range(start + 1, end + 1)
    done, parallelism = Execution(outputs), batch.parallelism[UID]
    for sink in self._job.sinks.values():
        outputs.prepare(sink, OUTPUT)
    done.key_schemas[UID] = KEY
    reports = []
    for subtask in range(parallelism):
        own = [x for x in numbers if _subtask_of(x % KEYS, parallelism) == subtask]
        work = partial(_run_subtask, self._layout, batch, subtask, own, done)
        reports.append(reported(f"task {subtask}", work) if own else work(0))
    done.add(UID, reports)
    step("after execute")
    return done


def _subtask_of(key: int, parallelism: int) -> int:
    return subtask_for_key_group(MAX_PARALLELISM, parallelism, key_hash(key) % MAX_PARALLELISM)


def _run_subtask(
    layout: JobLayout, batch: BatchContext, subtask: int, numbers: list[int], done: Execution, attempt: int
) -> SubtaskReport:
    report = SubtaskReport(
        subtask,
        rows_in=len(numbers),
        rows_by_source={SOURCE: len(numbers)},
        states=[recorded_schema(TOTAL), recorded_schema(SEEN)],
    )
    if not numbers:
        return report
    keys = sorted({x % KEYS for x in numbers})
    hashes = np.array([key_hash(k) for k in keys], np.int64)
    files = [f.listed for f in state_files(layout, batch.path, UID)]
    totals = TouchedState(files, hashes, KEY).load(TOTAL)
    outputs = []
    for x in numbers:
        totals[x % KEYS] = totals.get(x % KEYS, 0) + x
        outputs.append({"x": x, "k": x % KEYS, "total": totals[x % KEYS]})
    put = [Change(k, PUT, totals[k]) for k in keys]
    appended = [Change(k, APPEND, [x for x in numbers if x % KEYS == k]) for k in keys]
    table = changelog_table(
        [(TOTAL, put), (SEEN, appended)],
        key_type=KEY.storage,
        index_of={k: i for i, k in enumerate(keys)},
        keys=pa.StructArray.from_arrays([pa.array(keys, pa.int64())], fields=list(KEY.storage)),
        hashes=hashes,
        max_parallelism=MAX_PARALLELISM,
    )
    assert table is not None
    name = file_name(batch.write_id, subtask, attempt)
    report.changelog = [_write_changes(layout, table, partition_path(batch.write_id, name), subtask)]
    rows = pa.Table.from_pylist(outputs, OUTPUT)
    report.rows_out = rows.num_rows
    for sink, target in done.outputs.targets.items():
        staged = target.file_name(batch.write_id, subtask, attempt)
        file = local_path(join(target.directory, staged))
        report.sinks[sink] = [written(file, partial(write_sink_file, rows, target, staged, subtask))]
    return report


def _write_changes(layout: JobLayout, table: pa.Table, path: str, subtask: int) -> DataFile:
    groups, hashes = table["key_group"].to_pylist(), table["key_hash"].to_pylist()
    uri = join(layout.changelog(UID), path)
    size = written(local_path(uri), partial(write_parquet, table, uri)).bytes
    return DataFile(path, size, table.num_rows, subtask, min(groups), max(groups), min(hashes), max(hashes))


def fold_base(
    spark: Any,
    layout: JobLayout,
    path: Sequence[CheckpointRow],
    uid: str,
    *,
    base_id: str,
    max_parallelism: int | None = None,
    key_groups: Sequence[KeyGroupRange] = (),
    savepoint: str | None = None,
    listing: Sequence[str] = (),
) -> WrittenBase:
    """In place of ``compaction.write_base``: the same fold, without a Spark job around it."""
    step("before fold")
    operator = path[-1].operator(uid)
    assert operator is not None
    max_parallelism = max_parallelism or operator.max_parallelism
    spec = BaseSpec(
        uri=savepoint or layout.base(uid),
        base_id=base_id,
        key_type=parse_ddl(operator.key_schema).arrow,
        states=tuple(operator.states),
        max_parallelism=max_parallelism,
        clock_ms=path[-1].clock_ms,
        watermark_ms=path[-1].watermark_of(uid),
    )
    files = [f.listed for f in state_files(layout, path, uid)]
    groups = KeyGroups(max_parallelism, tuple(key_groups or [KeyGroupRange(0, max_parallelism - 1)]))
    base_files = reported(
        "fold", lambda attempt: write_base_files(spec, files, groups, task=0, attempt=attempt)[0]
    )
    step("after fold")
    return WrittenBase(base_files, [])


def numbers_read(path: Sequence[CheckpointRow]) -> Iterator[int]:
    """The numbers that a path's micro-batches read, in order; every slice begins where the one before it ended."""
    at = 0
    for row in path:
        if row.kind == "checkpoint":
            start, end = slices[row.write_id]
            assert start == at, f"checkpoint {row.checkpoint_id} starts at {start}, its path ended at {at}"
            yield from range(start + 1, end + 1)
            at = end
