"""The watermark of operators behind filters of one source: as of the source, wherever batches are cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from state_engine import DataStream, KeyedProcessFunction, StatefulJob, WatermarkStrategy
from state_engine.microbatch.routing.element_watermarks import joined_steps, steps_in, watermarks_by_steps
from state_engine.microbatch.routing.origins import Origins
from state_engine.microbatch.routing.routed import INPUT
from state_engine.sources.frames import EVENT_TIME, ORIGIN, SOURCE, WATERMARK, order_name
from tests.support.pipelines import MemoryPipeline, Pipeline

EVENTS = [("a", 10), ("b", 50), ("a", 20), ("b", 30), ("a", 60), ("b", 70)]
TIMED = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("at", "s")
AT_THE_SOURCE = {("a", 10): None, ("b", 50): 9, ("a", 20): 49, ("b", 30): 49, ("a", 60): 49, ("b", 70): 59}
"""The watermark before each element, where the source makes it of all its elements, as in Flink."""
OF_ITS_OWN_SIDE = {
    ("a", 10): None,
    ("a", 20): 9,
    ("a", 60): 19,
    ("b", 50): None,
    ("b", 30): 49,
    ("b", 70): 49,
}
"""Where the operator counts the elements that reach it."""
Marks = dict[tuple[str, int], int | None]


class Mark(KeyedProcessFunction):
    """Gives every element with the watermark before it, in units of a second."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        now = ctx.timer_service().current_watermark()
        yield str(value.side), value.at, None if now == -(2**63) else now // 1000


Keep = Callable[[DataStream, str], DataStream]


def sides(keep: Keep, cut: int | None) -> Callable[[StatefulJob], Mapping[str, DataStream]]:
    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        rows = job.from_collection(EVENTS, "side string, at bigint", name="events", max_rows_per_batch=cut)
        timed = rows.assign_timestamps_and_watermarks(TIMED)
        return {
            side: keep(timed, side)
            .key_by("side")
            .process(Mark(), uid=side, output_type="k string, at bigint, w bigint")
            for side in ("a", "b")
        }

    return build


def marks(pipeline: Pipeline | MemoryPipeline) -> Marks:
    pipeline.run()
    return {(side, at): mark for rows in pipeline.outputs().values() for side, at, mark in rows}


def by_function(stream: DataStream, side: str) -> DataStream:
    return stream.filter(lambda row: row.side == side)


def by_frame(stream: DataStream, side: str) -> DataStream:
    return stream.transform(lambda frame: frame.where(frame.side == side))


@pytest.mark.parametrize("cut", [None, 2, 1])
def test_filters_pass_on_the_watermark_of_their_source(cut: int | None) -> None:
    with MemoryPipeline.of(sides(by_function, cut)) as pipeline:
        assert marks(pipeline) == AT_THE_SOURCE


@pytest.mark.spark
def test_filters_pass_on_the_watermark_of_their_source_on_spark(tmp_path: Path, spark: SparkSession) -> None:
    assert marks(Pipeline(tmp_path, spark, sides(by_function, 2))) == AT_THE_SOURCE


@pytest.mark.spark
@pytest.mark.parametrize(
    ("cut", "expected"), [(None, OF_ITS_OWN_SIDE), pytest.param(1, AT_THE_SOURCE, marks=pytest.mark.long)]
)
def test_frames_that_leave_rows_out_show_the_cut_where_operators_differ_in_them(
    tmp_path: Path, spark: SparkSession, cut: int | None, expected: Marks
) -> None:
    """In a batch each operator counts its own rows; after it the source has all that any of them read."""
    assert marks(Pipeline(tmp_path, spark, sides(by_frame, cut))) == expected


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
