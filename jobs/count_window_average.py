"""The first example of Flink's documentation of state: the average of every two values of a key.

A poor man's counting window. Per key, a value state holds how many values came and their sum; the second
value emits the average of both and clears the state, so the next value starts a new window. The values are
whole numbers, and so is the average: (1, 3) (1, 5) (1, 7) (1, 4) (1, 2) gives (1, 4) (1, 5), and the last
value waits in the state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from state_engine import (
    DeltaSink,
    FileSource,
    KeyedProcessFunction,
    RuntimeContext,
    StatefulJob,
    ValueStateDescriptor,
)

WINDOW = 2


class Window(NamedTuple):
    """The values of one key that no average has been given for yet."""

    size: int = 0
    total: int = 0


class CountWindowAverage(KeyedProcessFunction):
    """Emit (key, average) for every two values of a key.

    `column` is the name or position of the value in an element; the default fits the pairs of the example.
    """

    def __init__(self, column: str | int = 1) -> None:
        self.column = column

    def open(self, runtime_context: RuntimeContext) -> None:
        self.window = runtime_context.get_state(ValueStateDescriptor("window", Window))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[Any, int]]:
        before = self.window.value() or Window()
        window = Window(before.size + 1, before.total + value[self.column])
        if window.size < WINDOW:
            self.window.update(window)
        else:
            self.window.clear()
            yield ctx.get_current_key(), window.total // window.size


def build(
    source: FileSource,
    sink: DeltaSink,
    *,
    key: str = "key",
    value: str = "value",
    order_by: Sequence[str] = (),
    parallelism: int = 2,
    max_parallelism: int = 128,
) -> StatefulJob:
    """Return the job `count_window_average` from `source` into a sink of (`key` bigint, `average` bigint).

    `key` and `value` name two whole-number columns of the source. Its rows are taken in the order of the
    columns `order_by`, then of its files and their rows.
    """
    job = StatefulJob("count_window_average", parallelism=parallelism, max_parallelism=max_parallelism)
    averages = (
        job.source("pairs", source, order_by=list(order_by))
        .key_by(key)
        .process(
            CountWindowAverage(value), uid="count_window_average", output_type="key bigint, average bigint"
        )
    )
    averages.sink("averages", sink)
    return job
