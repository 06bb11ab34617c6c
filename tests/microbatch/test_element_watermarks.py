"""The watermark before rows that Spark routes: by the steps of all tasks."""

from __future__ import annotations

import pyarrow as pa

from state_engine.microbatch.routing.element_watermarks import joined_steps, steps_in, watermarks_by_steps
from state_engine.microbatch.routing.origins import Origins
from state_engine.microbatch.routing.routed import INPUT
from state_engine.sources.frames import EVENT_TIME, ORIGIN, SOURCE, WATERMARK, order_name


def test_rows_that_move_nothing_are_judged_by_the_watermark_before_the_batch() -> None:
    """Rows without an origin, as dead letters are, and rows of a source of which none has an event time."""
    order, origins = [order_name(0)], Origins(("events",), (5,), {0: 0})
    nothing = pa.nulls(2, pa.int64())
    for origin, times in ((None, pa.array([2, 9])), ("events", nothing)):
        rows = pa.table(
            {
                order_name(0): pa.array([1, 2]),
                EVENT_TIME: times,
                WATERMARK: nothing,
                ORIGIN: pa.array([origin] * 2, pa.string()),
                SOURCE: pa.array([origin] * 2, pa.string()),
                INPUT: pa.array([0, 0], pa.int32()),
            }
        )
        of_task = steps_in(rows, order, origins, broadcast=None)
        steps = joined_steps(of_task["steps"].to_pylist(), order, origins)
        assert steps is not None
        assert steps.num_rows == 0
        own = pa.table([rows[order_name(0)]], names=order)
        assert watermarks_by_steps(own, order, steps, start_ms=5, broadcast=None).to_pylist() == [5, 5]
