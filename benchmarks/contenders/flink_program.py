# mypy: disable-error-code="import-not-found"
"""Runs one Flink job on the reference workload and prints the seconds that it took, or all of its results.

Needs PyFlink, which cannot share an environment with PySpark: ``benchmarks.contenders.flink`` starts this file with the
Python of ``.venv-flink``. It must import nothing else of this project.

Usage: flink_program.py pyflink|averages|totals hashmap|rocksdb time|results EVENTS KEYS WINDOW PARALLELISM
       flink_program.py files|hours|sessions hashmap|rocksdb time|results EVENTS KEYS WINDOW PARALLELISM DIRECTORY JARS
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
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


def configuration(backend: str, parallelism: int) -> Configuration:
    """Python in processes of its own, everything but the state backend as Flink comes."""
    configuration = Configuration()
    configuration.set_string("state.backend.type", backend)
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


class PyFlink:
    """A keyed process function in Python."""

    def __init__(self, backend: str, events: int, keys: int, window: int, parallelism: int) -> None:
        environment = StreamExecutionEnvironment.get_execution_environment(
            configuration(backend, parallelism)
        )
        environment.set_parallelism(parallelism)
        self.tables = StreamTableEnvironment.create(environment)
        create_source(self.tables, events)
        stream = self.tables.to_data_stream(self.tables.sql_query(events_query(keys)))
        self.averages = stream.key_by(lambda row: row[0], key_type=Types.LONG()).process(
            CountWindowAverage(window), output_type=Types.TUPLE([Types.LONG(), Types.DOUBLE()])
        )

    def run(self) -> None:
        """Run to the end, and keep nothing."""
        self.tables.execute_sql("CREATE TABLE nowhere (k BIGINT, a DOUBLE) WITH ('connector' = 'blackhole')")
        self.tables.from_data_stream(self.averages).execute_insert("nowhere").wait()

    def results(self) -> list[list[Any]]:
        """All outputs: key and average."""
        with self.averages.execute_and_collect() as rows:
            return [[row[0], row[1]] for row in rows]


class GroupAggregate:
    """A group aggregate in Java: the number of values of a key, and an aggregate of them, one update an event."""

    def __init__(
        self, aggregate: str, backend: str, events: int, keys: int, window: int, parallelism: int
    ) -> None:
        settings = EnvironmentSettings.new_instance().with_configuration(configuration(backend, parallelism))
        self.tables = TableEnvironment.create(settings.in_streaming_mode().build())
        create_source(self.tables, events)
        self.query = f"SELECT k, COUNT(*) AS n, {aggregate}(v) AS a FROM ({events_query(keys)}) GROUP BY k"

    def run(self) -> None:
        """Run to the end, and keep nothing."""
        columns = "(k BIGINT, n BIGINT, a DOUBLE)"
        self.tables.execute_sql(f"CREATE TABLE nowhere {columns} WITH ('connector' = 'blackhole')")
        self.tables.execute_sql(f"INSERT INTO nowhere {self.query}").wait()

    def results(self) -> list[list[Any]]:
        """The newest row of each key: key, number of values, aggregate."""
        newest = {}
        with self.tables.execute_sql(self.query).collect() as rows:
            for row in rows:
                newest[row[0]] = [row[0], row[1], row[2]]
        return list(newest.values())


class RunningTotals:
    """The number and the sum of the values of a key after each event, in Java: Parquet files in and out.

    Args:
        directory: events are in its ``input``; totals go to ``output``, checkpoints to ``checkpoints``.
        jars: of Parquet, as URIs with semicolons between them.
    """

    def __init__(
        self, backend: str, events: int, keys: int, window: int, parallelism: int, directory: str, jars: str
    ) -> None:
        options = configuration(backend, parallelism)
        options.set_string("pipeline.jars", jars)
        # files come out with checkpoints; as many as ours makes, about
        options.set_string("execution.checkpointing.interval", "2 s")
        options.set_string("execution.checkpointing.dir", f"file://{directory}/checkpoints")
        settings = EnvironmentSettings.new_instance().with_configuration(options)
        self.tables = TableEnvironment.create(settings.in_streaming_mode().build())
        for name, columns, place in (
            ("events", "k BIGINT, v DOUBLE, arrived AS PROCTIME()", "input"),
            ("totals", "k BIGINT, n BIGINT, total DOUBLE", "output"),
        ):
            self.tables.execute_sql(
                f"CREATE TABLE {name} ({columns}) WITH ('connector' = 'filesystem', 'format' = 'parquet', "
                f"'path' = 'file://{directory}/{place}')"
            )

    def run(self) -> None:
        """Run to the end of the files."""
        self.tables.execute_sql(
            "INSERT INTO totals SELECT k, COUNT(*) OVER so_far, SUM(v) OVER so_far FROM events WINDOW so_far AS "
            "(PARTITION BY k ORDER BY arrived RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"
        ).wait()

    def results(self) -> list[list[Any]]:
        """All rows that it wrote: key, number of values, sum."""
        self.run()
        with self.tables.execute_sql("SELECT * FROM totals").collect() as rows:
            return [[row[0], row[1], row[2]] for row in rows]


class Windows:
    """Count and sum of the events of each key and window, in Java: Parquet files in and out.

    Args:
        function: of the window, and its size: ``TUMBLE`` with a descriptor, ``SESSION`` with a partition, too.
        directory, jars: as of ``RunningTotals``.
    """

    def __init__(
        self,
        function: str,
        backend: str,
        events: int,
        keys: int,
        window: int,
        parallelism: int,
        directory: str,
        jars: str,
    ) -> None:
        options = configuration(backend, parallelism)
        for name, value in {
            "pipeline.jars": jars,
            "execution.checkpointing.interval": "2 s",
            "execution.checkpointing.dir": f"file://{directory}/checkpoints",
            "table.local-time-zone": "UTC",
        }.items():
            options.set_string(name, value)
        settings = EnvironmentSettings.new_instance().with_configuration(options)
        self.tables = TableEnvironment.create(settings.in_streaming_mode().build())
        files = "WITH ('connector' = 'filesystem', 'format' = 'parquet', 'path' = 'file://"
        self.tables.execute_sql(
            "CREATE TABLE events (k BIGINT, v BIGINT, ms BIGINT, t AS TO_TIMESTAMP_LTZ(ms, 3), "
            f"WATERMARK FOR t AS t - INTERVAL '1' DAY) {files}{directory}/input')"
        )
        self.tables.execute_sql(
            "CREATE TABLE results (k BIGINT, window_start TIMESTAMP(3), window_end TIMESTAMP(3), n BIGINT, "
            f"total BIGINT) {files}{directory}/results')"
        )
        self.query = (
            "INSERT INTO results SELECT k, window_start, window_end, COUNT(*), SUM(v) "
            f"FROM TABLE({function}) GROUP BY k, window_start, window_end"
        )

    def run(self) -> None:
        """Run to the end of the files."""
        self.tables.execute_sql(self.query).wait()


JOBS: dict[str, Callable[..., Any]] = {
    "hours": partial(Windows, "TUMBLE(TABLE events, DESCRIPTOR(t), INTERVAL '1' HOUR)"),
    "sessions": partial(Windows, "SESSION(TABLE events PARTITION BY k, DESCRIPTOR(t), INTERVAL '30' MINUTE)"),
    "pyflink": PyFlink,
    "averages": partial(GroupAggregate, "AVG"),
    "totals": partial(GroupAggregate, "SUM"),
    "files": RunningTotals,
}


if __name__ == "__main__":
    job = JOBS[sys.argv[1]](sys.argv[2], *map(int, sys.argv[4:8]), *sys.argv[8:])
    started = time.perf_counter()
    if sys.argv[3] == "results":
        print(json.dumps({"rows": job.results()}), flush=True)
    else:
        job.run()
        print(json.dumps({"seconds": time.perf_counter() - started}), flush=True)
