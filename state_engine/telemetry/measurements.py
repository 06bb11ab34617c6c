"""What the rows of ``checkpoints`` say in numbers: nothing else is read, and nothing is measured for it.

Counters add up all micro-batches that were committed on ``main``, also those that a restore left: they never go back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from state_engine.core.checkpoints.checkpoint import MAIN, CheckpointRow, OperatorCheckpoint
from state_engine.core.checkpoints.entry_counts import entry_counts
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.state_files import KeyedStateFiles, keyed_state_files
from state_engine.core.functions.metrics import metric_scope
from state_engine.core.keys.key_groups import key_group_range, subtask_for_key_group
from state_engine.core.state.descriptors import TIMERS
from state_engine.core.types.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from state_engine.telemetry import metrics as m
from state_engine.telemetry.metrics import Metric, Point

_TOO_LATE = "too_late"
"""The metric with which ready-made operators count such rows."""


def measurements(history: History, *, now_ms: int) -> list[Point]:
    """The numbers of a job by its rows; none where it never ran."""
    batches = [row for row in history.values() if row.branch == MAIN and row.kind.is_micro_batch]
    return [*totals(batches), *gauges(history, now_ms=now_ms)]


def gauges(history: History, *, now_ms: int) -> list[Point]:
    """The numbers that are those of the head of ``main`` and of its path."""
    head, path = history.head, history.main_path
    if head is None:
        return []
    batch = next((row for row in reversed(path) if row.kind.is_micro_batch), None)
    return [
        *_of_head(head, now_ms),
        *(of_batch(batch, now_ms=now_ms) if batch else ()),
        *(point for operator in head.operators for point in of_state(state_size(path, operator), operator)),
    ]


def totals(batches: Sequence[CheckpointRow]) -> Iterator[Point]:
    added: Counter[tuple[Metric, tuple[str, ...]]] = Counter()
    for row in batches:
        for point in _amounts(row):
            added[point.metric, tuple(point.attributes.values())] += point.value  # type: ignore[assignment]
    for (metric, values), value in added.items():
        yield metric.of(value, *values)


def _amounts(row: CheckpointRow) -> Iterator[Point]:
    yield m.CHECKPOINTS.of(1)
    yield m.ROWS_REFUSED.of(row.rows_refused)
    yield m.ROWS_AFTER_PARTITION.of(row.late_rows)
    for source in row.sources:
        yield m.ROWS_IN.of(source.rows, source.name)
        yield m.ROWS_LATE.of(source.behind_watermark, source.name)
    for rule in row.expectations:
        yield m.ROWS_JUDGED.of(rule.rows, rule.name, rule.otherwise)
        yield m.ROWS_BROKEN.of(rule.broken, rule.name, rule.otherwise)
    for sink in row.sinks:
        yield m.ROWS_OUT.of(sink.rows, sink.name)
    for operator in row.operators:
        yield m.STATE_WRITTEN.of(sum(file.bytes for file in operator.changelog), operator.uid)
        too_late = row.metrics.get(f"{metric_scope(operator.uid)}.{_TOO_LATE}")
        if too_late is not None:
            yield m.ROWS_TOO_LATE.of(too_late, operator.uid)
    for step, spent_ms in row.durations_ms.items():
        yield m.STEP_TIME.of(spent_ms / 1000, step)


def _of_head(head: CheckpointRow, now_ms: int) -> Iterator[Point]:
    began_s = head.created_at.timestamp()
    yield m.HEAD_ID.of(head.checkpoint_id)
    yield m.HEAD_TIME.of(began_s)
    yield m.HEAD_AGE.of(max(0.0, now_ms / 1000 - began_s))


def of_batch(row: CheckpointRow, *, now_ms: int) -> Iterator[Point]:
    """What a micro-batch says as the newest one."""
    began_s = row.created_at.timestamp()
    yield m.BATCH_ID.of(row.checkpoint_id)
    yield m.BATCH_TIME.of(began_s)
    yield m.BATCH_AGE.of(max(0.0, now_ms / 1000 - began_s))
    yield m.BATCH_ROWS_IN.of(row.rows_in)
    yield m.BATCH_ROWS_REFUSED.of(row.rows_refused)
    for step, spent_ms in row.durations_ms.items():
        yield m.BATCH_DURATION.of(spent_ms / 1000, step)
    for name, value in row.metrics.items():
        yield m.FUNCTION.of(value, name)
    for source in row.sources:
        # before the first row there is no event time, and after the last one no more of it
        if source.watermark_ms is not None and MIN_TIMESTAMP < source.watermark_ms < MAX_TIMESTAMP:
            yield m.WATERMARK_TIME.of(source.watermark_ms / 1000, source.name)
            yield m.WATERMARK_AGE.of((now_ms - source.watermark_ms) / 1000, source.name)


@dataclass(frozen=True)
class StateSize:
    """What an operator keeps at the end of a path.

    Attributes:
        entries: by state, as far as known: of the last row, or of its last compaction; without timers.
        timers: None where they are not counted, or there never were any.
        bytes: of all files that hold it.
        base_files, changelog_files: that reading it takes.
        base_rows, changelog_rows: rows in them.
        skew: stored rows of the fullest subtask, as a multiple of the mean: 1 to the parallelism; None without rows.
    """

    operator: str
    entries: Mapping[str, int]
    timers: int | None
    bytes: int
    base_files: int
    changelog_files: int
    base_rows: int
    changelog_rows: int
    skew: float | None


def state_size(path: Sequence[CheckpointRow], operator: OperatorCheckpoint) -> StateSize:
    files, counts = keyed_state_files(path, operator.uid), entry_counts(path, operator.uid)
    entries = {state: count.entries for state, count in counts.items()}
    rows = _rows_by_subtask(files, operator)
    return StateSize(
        operator.uid,
        {state: number for state, number in entries.items() if state != TIMERS},
        entries.get(TIMERS),
        sum(one.file.bytes for one in files),
        len(files.base),
        len(files.changelog),
        sum(one.file.rows for one in files.base),
        sum(one.file.rows for one in files.changelog),
        max(rows) * len(rows) / sum(rows) if sum(rows) else None,
    )


def of_state(size: StateSize, operator: OperatorCheckpoint) -> Iterator[Point]:
    uid = operator.uid
    for state, entries in size.entries.items():
        yield m.STATE_ENTRIES.of(entries, uid, state)
    yield m.STATE_SIZE.of(size.bytes, uid)
    yield m.STATE_FILES.of(size.base_files, uid, "base")
    yield m.STATE_FILES.of(size.changelog_files, uid, "changelog")
    if size.skew is not None:
        yield m.STATE_SKEW.of(size.skew, uid)
    if size.timers is not None:
        yield m.TIMERS_PENDING.of(size.timers, uid)
    for domain, at_ms in operator.next_timers_ms.items():
        if MIN_TIMESTAMP < at_ms < MAX_TIMESTAMP:
            yield m.TIMERS_NEXT.of(at_ms / 1000, uid, domain)


def _rows_by_subtask(files: KeyedStateFiles, operator: OperatorCheckpoint) -> list[float]:
    """Rows of state that each subtask has to read.

    What a file says of its rows is the span of their key groups: of a file that reaches over several subtasks, as after
    a change of parallelism, each has the part of its key groups.
    """
    rows = [0.0] * operator.parallelism
    for one in files:
        last = _subtask(one.groups.end, operator)
        for subtask in range(_subtask(one.groups.start, operator), last + 1):
            own = key_group_range(operator.max_parallelism, operator.parallelism, subtask)
            inside = min(own.end, one.groups.end) - max(own.start, one.groups.start) + 1
            rows[subtask] += one.file.rows * inside / len(one.groups)
    return rows


def _subtask(key_group: int, operator: OperatorCheckpoint) -> int:
    return subtask_for_key_group(operator.max_parallelism, operator.parallelism, key_group)
