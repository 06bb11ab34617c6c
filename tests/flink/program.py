# mypy: disable-error-code="import-not-found"
"""Windows of Flink over the rows of a file, printed as JSON; run by the Python of ``.venv-flink``.

It must import nothing else of this project. The watermark moves behind every row: Flink's table runtime emits one as
soon as it has grown by more than the interval, which is none, and Python takes one row at a time.

Usage: program.py streams|sql ROWS BOUND_MS LATENESS_MS
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

from pyflink.common import Configuration, Time, Types
from pyflink.datastream import OutputTag, ProcessWindowFunction, StreamExecutionEnvironment
from pyflink.datastream.window import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from pyflink.table import StreamTableEnvironment

OPTIONS = {
    "parallelism.default": "1",
    "pipeline.auto-watermark-interval": "0 ms",
    "python.fn-execution.bundle.size": "1",
    "table.local-time-zone": "UTC",
    "table.optimizer.agg-phase-strategy": "ONE_PHASE",
    "taskmanager.memory.process.size": "2g",
}
WINDOWS = {
    "tumbling": TumblingEventTimeWindows.of(Time.milliseconds(7)),
    "sliding": SlidingEventTimeWindows.of(Time.milliseconds(12), Time.milliseconds(4)),
    "session": EventTimeSessionWindows.with_gap(Time.milliseconds(6)),
}
TABLES = {
    "tumbling": "TUMBLE(TABLE clicks, DESCRIPTOR(t), INTERVAL '0.007' SECOND)",
    "sliding": "HOP(TABLE clicks, DESCRIPTOR(t), INTERVAL '0.004' SECOND, INTERVAL '0.012' SECOND)",
    "cumulating": "CUMULATE(TABLE clicks, DESCRIPTOR(t), INTERVAL '0.004' SECOND, INTERVAL '0.012' SECOND)",
    "session": "SESSION(TABLE clicks PARTITION BY k, DESCRIPTOR(t), INTERVAL '0.006' SECOND)",
}
LATE = -1
"""Stands for the number of rows of a window where a row is a late one."""


class Sums(ProcessWindowFunction):
    """Number and sum of the rows, at each firing."""

    def __init__(self, name: str) -> None:
        self.name = name

    def process(self, key: str, context: Any, elements: Any) -> Iterator[tuple[Any, ...]]:
        values = [row[2] for row in elements]
        yield self.name, key, context.window().start, context.window().end, len(values), sum(values)

    def clear(self, context: Any) -> None:
        """Nothing is kept."""


def result_type() -> Any:
    """A new one for each use: one that was used cannot be pickled."""
    return Types.TUPLE([Types.STRING(), Types.STRING(), *[Types.LONG() for _ in range(4)]])


def streams(tables: Any, lateness_ms: int) -> list[Any]:
    """Windows of the DataStream API."""
    rows = tables.to_data_stream(tables.from_path("clicks"))
    every = None
    for name, windows in WINDOWS.items():
        named = rows.map(
            lambda row, name=name: (name, row[0], row[1], row[2], 0, 0), output_type=result_type()
        )
        late = OutputTag(f"late {name}", result_type())
        fired = (
            named.key_by(lambda row: row[1], key_type=Types.STRING())
            .window(windows)
            .allowed_lateness(lateness_ms)
            .side_output_late_data(late)
            .process(Sums(name), result_type())
        )
        too_late = fired.get_side_output(late).map(
            lambda row: (row[0], row[1], row[3], row[2], LATE, 0), output_type=result_type()
        )
        both = fired.union(too_late)
        every = both if every is None else every.union(both)
    assert every is not None
    with every.execute_and_collect() as results:
        return [list(result) for result in results]


def sql(tables: Any) -> list[Any]:
    """Windows of SQL."""
    columns = "k, CAST(window_start AS STRING), CAST(window_end AS STRING), COUNT(*), SUM(v)"
    query = " UNION ALL ".join(
        f"SELECT '{name}', {columns} FROM TABLE({table}) GROUP BY k, window_start, window_end"
        for name, table in TABLES.items()
    )
    with tables.execute_sql(query).collect() as results:
        return [list(result) for result in results]


def main(api: str, rows: str, bound_ms: str, lateness_ms: str) -> None:
    configuration = Configuration()
    for name, value in OPTIONS.items():
        configuration.set_string(name, value)
    environment = StreamExecutionEnvironment.get_execution_environment(configuration)
    environment.set_parallelism(1)
    tables = StreamTableEnvironment.create(environment)
    # Flink's DDL takes one millisecond less than its class of bounded out-of-orderness
    behind = (int(bound_ms) + 1) / 1000
    tables.execute_sql(
        "CREATE TABLE clicks (k STRING, v BIGINT, ms BIGINT, t AS TO_TIMESTAMP_LTZ(ms, 3), "
        f"WATERMARK FOR t AS t - INTERVAL '{behind:.3f}' SECOND) "
        f"WITH ('connector' = 'filesystem', 'path' = '{rows}', 'format' = 'csv')"
    )
    print(json.dumps(sql(tables) if api == "sql" else streams(tables, int(lateness_ms))))


if __name__ == "__main__":
    main(*sys.argv[1:])
