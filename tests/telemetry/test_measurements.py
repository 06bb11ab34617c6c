"""What rows of ``checkpoints`` say in numbers, against sums and spreads that are worked out here group by group."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from state_engine.core.checkpoints.checkpoint import (
    BaseRange,
    CheckpointRow,
    DataFile,
    ExpectationCount,
    OperatorCheckpoint,
    SourceProgress,
    StagedSink,
)
from state_engine.core.names import stored_name
from state_engine.core.state.descriptors import TIMERS
from state_engine.core.state.state_schema import StateSchema
from state_engine.core.types.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from state_engine.telemetry import metrics as m
from state_engine.telemetry.measurements import measurements, state_size
from state_engine.telemetry.metrics import Metric, Point
from tests.core.checkpoints.rows import changes, checkpoint, in_base, operator, tree

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
NOW_MS = int((BEGIN + timedelta(hours=1)).timestamp() * 1000)


def values(points: list[Point], metric: Metric) -> dict[tuple[str, ...], float]:
    return {tuple(one.attributes.values()): one.value for one in points if one.metric is metric}


def source(name: str, rows: int, late: int = 0, watermark_ms: int | None = None) -> SourceProgress:
    return SourceProgress(name, "a", "b", rows, watermark_ms, behind_watermark=late)


def sink(name: str, *rows: int) -> StagedSink:
    return StagedSink(name, "delta", "/p", "i", "", [DataFile("f", 1, n, 0) for n in rows])


def a_row(i: int, rng: random.Random) -> CheckpointRow:
    uid = "per.day"
    files = [changes(n, (64 * n, 64 * n + 63), rows=rng.randrange(9)) for n in range(2)]
    return checkpoint(
        i,
        i - 1 or None,
        created_at=BEGIN + timedelta(minutes=i),
        rows_in=rng.randrange(100),
        rows_refused=rng.randrange(5),
        late_rows=rng.randrange(3),
        sources=[source("a", rng.randrange(50), rng.randrange(4)), source('b "x"', rng.randrange(50))],
        sinks=[sink("out", rng.randrange(9), rng.randrange(9))],
        operators=[replace(operator(*files), uid=uid, entries={"v_total": 10 * i})],
        durations_ms={"execute": rng.randrange(1000), "commit_files": rng.randrange(1000)},
        expectations=[ExpectationCount("positive", "v > 0", "drop", 10 * i, i)],
        metrics={f"{stored_name(uid)}.too_late": float(rng.randrange(9)), "per.too_late": 99.0},
    )


def test_counters_add_up_all_micro_batches_of_main_and_nothing_else() -> None:
    rng = random.Random(5)
    rows = [a_row(i, rng) for i in range(1, 8)]
    rows[4] = replace(rows[4], kind="compaction", sources=[], sinks=[])  # type: ignore[arg-type]
    rows[6] = replace(rows[6], branch="again")
    restored = checkpoint(8, 2, kind="restore", replaced_id=6, created_at=BEGIN)
    points = measurements(tree([*rows, restored]), now_ms=NOW_MS)
    counted = [rows[i] for i in (0, 1, 2, 3, 5)]  # those that the restore left, too
    assert values(points, m.CHECKPOINTS) == {(): 5}
    assert values(points, m.ROWS_REFUSED) == {(): sum(row.rows_refused for row in counted)}
    assert values(points, m.ROWS_AFTER_PARTITION) == {(): sum(row.late_rows for row in counted)}
    assert values(points, m.ROWS_IN) == {
        (name,): sum(row.sources[n].rows for row in counted) for n, name in enumerate(("a", 'b "x"'))
    }
    assert values(points, m.ROWS_LATE)[("a",)] == sum(row.sources[0].behind_watermark for row in counted)
    assert values(points, m.ROWS_OUT) == {
        ("out",): sum(f.rows for row in counted for f in row.sinks[0].files)
    }
    assert values(points, m.ROWS_JUDGED) == {("positive", "drop"): 10 * (1 + 2 + 3 + 4 + 6)}
    assert values(points, m.ROWS_BROKEN) == {("positive", "drop"): 1 + 2 + 3 + 4 + 6}
    assert values(points, m.STATE_WRITTEN) == {("per.day",): 20 * 5}
    too_late = f"{stored_name('per.day')}.too_late"
    assert values(points, m.ROWS_TOO_LATE) == {("per.day",): sum(row.metrics[too_late] for row in counted)}
    for step in ("execute", "commit_files"):
        spent = sum(row.durations_ms[step] for row in counted) / 1000
        assert values(points, m.STEP_TIME)[step,] == pytest.approx(spent)


def test_gauges_are_those_of_the_path_of_the_head() -> None:
    rng = random.Random(6)
    rows = [a_row(i, rng) for i in range(1, 4)]
    head = checkpoint(4, 3, kind="compaction", created_at=BEGIN + timedelta(minutes=30))
    points = measurements(tree([*rows, head]), now_ms=NOW_MS)
    assert values(points, m.HEAD_ID) == {(): 4}
    assert values(points, m.HEAD_AGE) == {(): 30 * 60}
    assert values(points, m.HEAD_TIME) == {(): BEGIN.timestamp() + 30 * 60}
    assert values(points, m.BATCH_ID) == {(): 3}
    assert values(points, m.BATCH_AGE) == {(): 57 * 60}
    assert values(points, m.BATCH_ROWS_IN) == {(): rows[2].rows_in}
    assert values(points, m.BATCH_ROWS_REFUSED) == {(): rows[2].rows_refused}
    assert values(points, m.BATCH_DURATION) == {(k,): v / 1000 for k, v in rows[2].durations_ms.items()}
    assert values(points, m.FUNCTION) == {(k,): v for k, v in rows[2].metrics.items()}, "as they are"


@pytest.mark.parametrize("watermark_ms", [None, MIN_TIMESTAMP, MAX_TIMESTAMP])
def test_before_the_first_and_after_the_last_row_there_is_no_event_time(watermark_ms: int | None) -> None:
    at_ms = NOW_MS - 90_000
    row = checkpoint(
        1, sources=[source("a", 1, watermark_ms=at_ms), source("b", 1, watermark_ms=watermark_ms)]
    )
    points = measurements(tree([row]), now_ms=NOW_MS)
    assert values(points, m.WATERMARK_AGE) == {("a",): 90}
    assert values(points, m.WATERMARK_TIME) == {("a",): at_ms / 1000}


def test_a_job_without_a_row_has_no_numbers() -> None:
    assert measurements(tree([]), now_ms=NOW_MS) == []


def test_state_is_counted_by_operator_and_state_and_timers_apart() -> None:
    states = [StateSchema(name, "value", "bigint") for name in ("total", TIMERS)]
    held = replace(
        operator(changes(0, (0, 63), rows=3), changes(1, (64, 127), rows=5)),
        states=states,
        entries={one.column_name: n for one, n in zip(states, (7, 4), strict=True)},
        next_timers_ms={"event": 5_000, "processing": MAX_TIMESTAMP},
    )
    points = measurements(tree([checkpoint(1, operators=[held])]), now_ms=NOW_MS)
    assert values(points, m.STATE_ENTRIES) == {("counter", "total"): 7}
    assert values(points, m.TIMERS_PENDING) == {("counter",): 4}
    assert values(points, m.TIMERS_NEXT) == {("counter", "event"): 5.0}
    assert values(points, m.STATE_SIZE) == {("counter",): 20}
    assert values(points, m.STATE_FILES) == {("counter", "base"): 0, ("counter", "changelog"): 2}


def _spread(files: list[DataFile], held: OperatorCheckpoint) -> float:
    """The skew, key group by key group: each has its part of the rows of a file."""
    by_group = Counter[int]()
    for file in files:
        first, last = file.key_group_min or 0, file.key_group_max or 0
        for group in range(first, last + 1):
            by_group[group] += file.rows / (last - first + 1)  # type: ignore[assignment]
    by_subtask = Counter[int]()
    for group, rows in by_group.items():
        by_subtask[group * held.parallelism // held.max_parallelism] += rows
    return max(by_subtask.values()) / (sum(by_subtask.values()) / held.parallelism)


@pytest.mark.parametrize("seed", range(40))
def test_skew_is_the_fullest_subtask_by_the_mean_also_after_a_rescale(seed: int) -> None:
    rng = random.Random(seed)
    files = []
    for _ in range(rng.randrange(1, 12)):
        first, last = sorted((rng.randrange(128), rng.randrange(128)))
        files.append(changes(0, (first, last), rows=rng.randrange(1, 1000)))
    held = operator(*files, parallelism=rng.randrange(1, 17))
    size = state_size([checkpoint(1, operators=[held])], held)
    assert size.skew == pytest.approx(_spread(files, held))
    assert (size.changelog_files, size.changelog_rows) == (len(files), sum(one.rows for one in files))


def test_rows_of_bases_count_and_state_without_rows_has_no_skew() -> None:
    empty = operator()
    assert state_size([checkpoint(1, operators=[empty])], empty).skew is None
    based = replace(
        operator(changes(1, (64, 127), rows=10)),
        base_files=[in_base((3, 3), rows=30)],
        bases=[BaseRange(0, 63, "w1", 1)],
    )
    size = state_size([checkpoint(1, operators=[based])], based)
    assert (size.base_files, size.base_rows, size.changelog_rows, size.skew) == (1, 30, 10, 1.5)
