"""The watermark of a micro-batch is computed once: timers see the one that the row records. Without Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from state_engine import KeyedProcessFunction, StatefulJob
from state_engine.core.types.timestamps import MIN_TIMESTAMP
from state_engine.microbatch.attempt import Listed, Spent
from state_engine.microbatch.attempt_outputs import AttemptSinks
from state_engine.microbatch.batch import BatchContext
from state_engine.microbatch.batch_result import Execution
from state_engine.microbatch.checkpoint_builder import build_row
from state_engine.microbatch.operator_watermarks import Watermarks, reached_ms
from tests.core.checkpoints.rows import checkpoint

AT = "k string, at timestamp"


def three_sources() -> StatefulJob:
    """Two with event time, one without."""
    job = StatefulJob("job")
    fast = job.from_collection([], AT, name="fast", event_time="at")
    slow = job.from_collection([], AT, name="slow", event_time="at", max_out_of_orderness=10)
    other = job.from_collection([], AT, name="other")
    fast.union(slow, other).key_by("k").process(KeyedProcessFunction(), uid="x", output_type="k string")
    return job


@pytest.mark.parametrize(
    ("before", "newest", "after", "row"),
    [
        ({}, {}, {"fast": None, "slow": None}, None),
        ({}, {"fast": 100}, {"fast": 99, "slow": None}, None),
        ({}, {"fast": 100, "slow": 100}, {"fast": 99, "slow": 89}, 89),
        ({"fast": 50, "slow": 95}, {"slow": 100}, {"fast": 50, "slow": 95}, 50),
        ({"fast": 120, "slow": 95}, {"fast": 100, "slow": 200}, {"fast": 120, "slow": 189}, 120),
        ({"fast": 1, "slow": 2}, {"other": 500}, {"fast": 1, "slow": 2}, 1),
    ],
)
def test_timers_see_what_the_row_records(
    before: dict[str, int], newest: dict[str, int], after: dict[str, int | None], row: int | None
) -> None:
    job = three_sources()
    batch = BatchContext(
        write_id="w",
        path=[checkpoint(1)],
        slices={},
        clock_ms=0,
        watermarks_ms={name: before.get(name) for name in ("fast", "slow")},
        parameters={},
        checkpoint_id=2,
        parallelism={"x": 1},
    )
    timed = {name: node for name, node in job.sources.items() if node.timed}
    of_job: Any = None
    outputs = AttemptSinks(of_job, "w")
    done = Execution(outputs, max_event_ms=newest, watermarks_ms=reached_ms(timed, batch, newest))
    assert done.watermarks_ms == after
    built = build_row(
        job,
        Listed(batch, dict.fromkeys(job.sources, ""), outputs, Spent(), done, [], {}),
        created_at=datetime(2013, 1, 1, tzinfo=UTC),
        requested_by="",
    )
    assert {s.name: s.watermark_ms for s in built.sources} == {**after, "other": None}
    assert built.watermark_ms == row
    seen = Watermarks(job.operators["x"], batch, newest).end()
    assert seen == (MIN_TIMESTAMP if row is None else row)
