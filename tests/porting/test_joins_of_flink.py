"""``interval_join`` by Flink's names: bounds, late elements, functions, and a program in Flink's style."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from state_engine import (
    FileSource,
    OutputTag,
    ProcessJoinFunction,
    StatefulJob,
    Time,
    Types,
    WatermarkStrategy,
)
from state_engine.core.errors import ConfigurationError
from state_engine.testing import CollectSink, run_in_memory

ROW = Types.ROW_NAMED(["key", "at"], [Types.STRING(), Types.LONG()])
LATE, LATE_RIGHT = OutputTag("late", ROW), OutputTag("late_right", ROW)
TRACE = OutputTag("trace", Types.STRING())
PAIR = Types.TUPLE([Types.LONG(), Types.LONG(), Types.LONG(), Types.STRING()])


class Pairs(ProcessJoinFunction):
    """Both times as the context has them, the later one, and the mark that ``open`` makes."""

    def open(self, runtime_context: Any) -> None:
        self.mark = f"{runtime_context.get_index_of_this_subtask()}"

    def process_element(self, left: Any, right: Any, ctx: ProcessJoinFunction.Context) -> Iterable[Any]:
        assert (left.at, right.at) == (ctx.get_left_timestamp(), ctx.get_right_timestamp())
        yield ctx.get_left_timestamp(), ctx.get_right_timestamp(), ctx.get_timestamp(), self.mark
        yield TRACE, f"{left.key} {left.at}/{right.at}"


def streams() -> tuple[StatefulJob, Any, Any]:
    job = StatefulJob("by_names")
    times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row.at)
    made = [
        job.source(name, FileSource(f"/nowhere/{name}", schema="key string, at bigint"))
        .assign_timestamps_and_watermarks(times)
        .key_by(lambda row: row.key, key_type=Types.STRING())
        for name in ("orange", "green")
    ]
    return job, made[0], made[1]


@pytest.mark.parametrize(
    ("bounded", "expected"),
    [
        (lambda join: join, [(1, 1), (2, 1), (2, 2), (3, 2), (3, 3), (4, 3), (4, 4), (3, 1), (4, 2)]),
        (lambda join: join.lower_bound_exclusive(), [(1, 1), (2, 1), (2, 2), (3, 2), (3, 3), (4, 3), (4, 4)]),
        (lambda join: join.upper_bound_exclusive(), [(2, 1), (3, 2), (4, 3), (3, 1), (4, 2)]),
        (lambda join: join.lower_bound_exclusive().upper_bound_exclusive(), [(2, 1), (3, 2), (4, 3)]),
    ],
    ids=["both", "without the lower bound", "without the upper bound", "without both"],
)
def test_bounds_and_what_a_function_sees(
    bounded: Callable[[Any], Any], expected: list[tuple[int, int]]
) -> None:
    job, orange, green = streams()
    join = orange.interval_join(green).in_event_time().between(Time.milliseconds(-2), Time.milliseconds(0))
    pairs = bounded(join).process(Pairs(), PAIR, uid="join")
    pairs.sink("pairs", CollectSink())
    pairs.get_side_output(TRACE).sink("trace", CollectSink())
    with run_in_memory(job) as run:
        for at in range(1, 5):
            run.process({"orange": [("a", at)]})
            run.process({"green": [("a", at)]})
        shown = [tuple(row) for row in run.sink("pairs")]
        assert sorted(row[:2] for row in shown) == sorted(expected)
        assert all(row[2] == max(row[:2]) and row[3] == "0" for row in shown)
        assert sorted(run.sink("trace")) == sorted(f"a {left}/{right}" for left, right in expected)


def test_late_elements_go_to_side_outputs() -> None:
    job, orange, green = streams()
    join = orange.interval_join(green).between(Time.milliseconds(-2), Time.milliseconds(2))
    join = join.side_output_left_late_data(LATE).side_output_right_late_data(LATE_RIGHT)
    pairs = join.process(Pairs(), PAIR, uid="join")
    for tag in (LATE, LATE_RIGHT, TRACE):
        pairs.get_side_output(tag).sink(tag.tag_id, CollectSink())
    with run_in_memory(job) as run:
        run.process({"orange": [("a", 10)]})
        run.process({"green": [("a", 10), ("a", 3)]})
        run.process({"orange": [("a", 4)]})
        assert (run.sink("late"), run.sink("late_right")) == ([("a", 4)], [("a", 3)])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda join: join.process(lambda one, other: [one], PAIR), "takes a ProcessJoinFunction.*without a function"),
        (lambda join: join.process(Pairs()), "output_type is missing"),
        (lambda join: join.between(5, 1), "put the smaller bound first"),
        (lambda join: join.between(0, 0).lower_bound_exclusive(), "put the smaller bound first"),
        (lambda join: join.side_output_left_late_data("late").process(Pairs(), PAIR), "must be an OutputTag"),
    ],
)  # fmt: skip
def test_what_is_no_interval_join_is_refused(build: Callable[[Any], Any], message: str) -> None:
    _, orange, green = streams()
    with pytest.raises(ConfigurationError, match=message):
        build(orange.interval_join(green))
