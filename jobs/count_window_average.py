"""The first example of Flink's documentation of state: the average of every two values of a key.

A poor man's counting window. Per key, a value state holds how many values came and their sum; the second
value emits the average of both and clears the state, so the next value starts a new window. The values are
whole numbers, and so is the average: (1, 3) (1, 5) (1, 7) (1, 4) (1, 2) gives (1, 4) (1, 5), and the last
value waits in the state.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from state_engine import (
    DeltaSink,
    FileSource,
    KeyedProcessFunction,
    RuntimeContext,
    Settings,
    StatefulJob,
    ValueStateDescriptor,
)
from state_engine.expectations import Expectation, OfSink, OfState, Suite
from state_engine.registry import JobParameters, RegisteredJob, beside, data_directory, nothing

WINDOW = 2
PAIRS = [(1, 3), (1, 5), (1, 7), (1, 4), (1, 2)]


EXPECTATIONS = (
    Suite(
        name="averages",
        of=OfSink("averages"),
        expectations=(
            Expectation(
                name="key_is_there",
                type="expect_column_values_to_not_be_null",
                arguments={"column": "key"},
                about="Every average is that of a key.",
            ),
            Expectation(
                name="average_is_there",
                type="expect_column_values_to_not_be_null",
                arguments={"column": "average"},
            ),
        ),
        identified_by=("key", "average"),
    ),
    Suite(
        name="windows",
        of=OfState("count_window_average", "window"),
        expectations=(
            Expectation(
                name="window_is_open",
                type="expect_column_values_to_be_between",
                arguments={"column": "value_size", "min_value": 1, "max_value": WINDOW - 1},
                about="A full window is given and cleared.",
            ),
        ),
        identified_by=("key", "value_size", "value_total"),
    ),
)


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


class Parameters(JobParameters):
    """Section `[jobs.parameters.count_window_average]` of the settings."""

    feed: Path | None = None
    sink: str | None = None
    max_rows_per_batch: int | None = 2
    parallelism: int = 2


def jobs(settings: Settings) -> list[RegisteredJob]:
    """Return the job over the five pairs of the example, two to a micro-batch."""
    given = Parameters.of(settings, "count_window_average")
    feed = given.feed or data_directory(settings) / "pairs"
    source = FileSource(
        str(feed), schema="key bigint, value bigint", max_rows_per_batch=given.max_rows_per_batch
    )
    sink = DeltaSink(given.sink or beside(settings, "sinks", "count_window_average"))
    job = build(source, sink, parallelism=given.parallelism)
    prepare = partial(_write_pairs, feed) if given.feed is None else nothing
    return [RegisteredJob(job=job, prepare=prepare, description=__doc__ or "", expectations=EXPECTATIONS)]


def _write_pairs(feed: Path) -> None:
    """Write the example into the feed, once and in one step."""
    file = feed / "pairs.parquet"
    if not file.exists():
        feed.mkdir(parents=True, exist_ok=True)
        keys, values = zip(*PAIRS, strict=True)
        aside = feed / f".{uuid4().hex}"
        pq.write_table(pa.table({"key": keys, "value": values}), aside)
        os.replace(aside, file)
