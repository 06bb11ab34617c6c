# mypy: disable-error-code="import-not-found"
"""Runs one Flink job on the reference workload and prints the seconds that it took.

Needs PyFlink, which cannot share an environment with PySpark: ``benchmarks.flink`` starts this file with the Python
of ``.venv-flink``. It must import nothing else of this project.

Usage: flink_program.py pyflink|flink_sql EVENTS KEYS WINDOW PARALLELISM
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from pyflink.common import Configuration, Types
from pyflink.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from pyflink.datastream.state import ValueStateDescriptor
from pyflink.table import EnvironmentSettings, StreamTableEnvironment, TableEnvironment


class CountWindowAverage(KeyedProcessFunction):
    """Emit (key, average) for every ``window`` values of a key."""

    def __init__(self, window: int) -> None:
        self.size = window

    def open(self, runtime_context: Any) -> None:
        kind = Types.TUPLE([Types.LONG(), Types.DOUBLE()])
        self.window = runtime_context.get_state(ValueStateDescriptor("window", kind))

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[int, float]]:
        count, total = self.window.value() or (0, 0.0)
        count += 1
        total += value[1]
        if count == self.size:
            self.window.clear()
            yield value[0], total / count
        else:
            self.window.update((count, total))


def configuration(parallelism: int) -> Configuration:
    """Heap state, Python in processes of its own, everything else as Flink comes."""
    configuration = Configuration()
    configuration.set_string("state.backend.type", "hashmap")
    configuration.set_string("python.execution-mode", "process")
    configuration.set_string("parallelism.default", str(parallelism))
    configuration.set_string("taskmanager.memory.process.size", "4g")
    return configuration


def create_source(tables: TableEnvironment, events: int) -> None:
    """A table of event numbers, made as fast as they are taken."""
    tables.execute_sql(
        "CREATE TABLE numbers (i BIGINT) WITH ('connector' = 'datagen', 'rows-per-second' = '100000000', "
        f"'fields.i.kind' = 'sequence', 'fields.i.start' = '0', 'fields.i.end' = '{events - 1}')"
    )


def events_query(keys: int) -> str:
    """The same events as ``benchmarks.workload`` makes."""
    return f"SELECT MOD(i * 7919, {keys}) AS k, CAST(MOD(MOD(i, {keys}), 1000) AS DOUBLE) AS v FROM numbers"


def pyflink(events: int, keys: int, window: int, parallelism: int) -> float:
    """A keyed process function in Python."""
    environment = StreamExecutionEnvironment.get_execution_environment(configuration(parallelism))
    environment.set_parallelism(parallelism)
    tables = StreamTableEnvironment.create(environment)
    create_source(tables, events)
    tables.execute_sql("CREATE TABLE nowhere (k BIGINT, a DOUBLE) WITH ('connector' = 'blackhole')")
    stream = tables.to_data_stream(tables.sql_query(events_query(keys)))
    averages = stream.key_by(lambda row: row[0], key_type=Types.LONG()).process(
        CountWindowAverage(window), output_type=Types.TUPLE([Types.LONG(), Types.DOUBLE()])
    )
    return timed(lambda: tables.from_data_stream(averages).execute_insert("nowhere").wait())


def flink_sql(events: int, keys: int, window: int, parallelism: int) -> float:
    """A group aggregate in Java: count and average of all values of a key, one update an event."""
    settings = EnvironmentSettings.new_instance().with_configuration(configuration(parallelism))
    tables = TableEnvironment.create(settings.in_streaming_mode().build())
    create_source(tables, events)
    tables.execute_sql("CREATE TABLE nowhere (k BIGINT, n BIGINT, a DOUBLE) WITH ('connector' = 'blackhole')")
    insert = f"INSERT INTO nowhere SELECT k, COUNT(*), AVG(v) FROM ({events_query(keys)}) GROUP BY k"
    return timed(lambda: tables.execute_sql(insert).wait())


def timed(action: Callable[[], Any]) -> float:
    """Seconds of an action."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


if __name__ == "__main__":
    job = {"pyflink": pyflink, "flink_sql": flink_sql}[sys.argv[1]]
    print(json.dumps({"seconds": job(*map(int, sys.argv[2:6]))}), flush=True)
