"""For tests of jobs, without Spark and Java.

    OperatorHarness, KeyedHarness   one function: lists of elements go in, outputs and state come out
    KeyHarness                      one key of an operator of a job, from a state on
    run_in_memory                   a whole job, as it would run: rows for its sources, what each sink gets, state
    subtasks_in_process             a job on the engine, with real tables and sinks, and without Spark tasks

The harness plays the part of Flink's ``OneInputStreamOperatorTestHarness``, ``run_in_memory`` that of its
``MiniCluster``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from state_engine.testing.harness import KeyedHarness, OperatorHarness

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from state_engine.core.harness.key_run import KeyElement
    from state_engine.core.state.ttl import Stamped
    from state_engine.job.job import StatefulJob
    from state_engine.testing.collect_sink import CollectSink
    from state_engine.testing.key_harness import KeyHarness
    from state_engine.testing.memory_run import MemoryRun

__all__ = [
    "CollectSink",
    "KeyElement",
    "KeyHarness",
    "KeyedHarness",
    "MemoryRun",
    "OperatorHarness",
    "Stamped",
    "run_in_memory",
    "subtasks_in_process",
]

_LATER = {
    "CollectSink": "collect_sink", "KeyElement": "key_harness", "KeyHarness": "key_harness",
    "MemoryRun": "memory_run", "Stamped": "key_harness",
}  # fmt: skip
"""Classes that need PySpark's package, which a test of one function does not."""


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@contextmanager
def subtasks_in_process(spark: SparkSession) -> Iterator[None]:
    """Inside, engines with a session run subtasks of a few rows in this process, one after the other.

    For tests of jobs with real tables and sinks: a small micro-batch takes half of the time, a debugger stops in
    functions, and what they print is seen. ``TaskContext.get()`` is None there. Compactions and savepoints write
    their files here, too. Subtasks of many rows run in Spark tasks as ever, and so do those of engines with another
    session.

    Args:
        spark: the session that the engines are given, or that they start; ``local_session()`` gives it.

    Example::

        spark = local_session()
        with subtasks_in_process(spark), StateEngine(root, spark) as engine:
            engine.run(job)
    """
    from state_engine.spark.placement import limits_of

    before = limits_of(spark)
    vars(spark)["limits"] = replace(before, in_process=True)
    try:
        yield
    finally:
        vars(spark)["limits"] = before


def run_in_memory(
    job: StatefulJob,
    *,
    types: Mapping[str, Any] | None = None,
    transforms: Mapping[Any, Callable[[pa.Table], pa.Table]] | None = None,
    clock: int = 0,
    parameters: Mapping[str, str] | None = None,
) -> MemoryRun:
    """Run a job wholly in memory, in a ``with`` statement: tens of milliseconds a micro-batch, and no Java.

    The job is the one that would run on an engine: chained, keyed, connected and broadcast operators, side outputs,
    timers, event time, TTL, dead letters. The test hands rows to its sources, micro-batch by micro-batch, and sees what
    each sink gets, state, and errors as the engine raises them; it can go back to an earlier micro-batch, and go on
    with changed code. Rules are not written twice: the engine itself plans, routes, runs and commits, see
    ``MemoryRun``, so results are those of an engine.

    It is about what operators compute. These take no part: Spark (for DataFrame code see ``transforms``), the job's own
    sources and sinks (files, tables, databases, their errors), Delta Kernel and its logs, locks, compaction, SQL on
    state, other processes. Time partitions are not cut: a ``process`` is a micro-batch.

    Args:
        job: as it would run on an engine. It is copied, and left alone.
        types: of the rows of sources that do not declare theirs, by the name of the source. A source that holds its
            rows itself (``from_collection``, a ``SourceFunction``) is given rows instead where it is named here.
        transforms: code over a ``pyarrow.Table`` that stands for DataFrame code, by the function that ``transform`` was
            given (of a ``partial`` the function inside). It keeps the columns that begin with ``_statelake_``. With
            ``lambda table: table`` the rows are given as they are behind it; then ``types`` says which these are.
        clock: processing time of the first micro-batch, in milliseconds.
        parameters: for ``RuntimeContext.get_job_parameter``.

    Raises:
        ConfigurationError: there is DataFrame code for which nothing stands, or ``types`` names no source of the job.

    Example:
        >>> from state_engine import FileSource, KeyedProcessFunction, StatefulJob, ValueStateDescriptor
        >>> from state_engine.testing import CollectSink, run_in_memory
        >>> class Total(KeyedProcessFunction):
        ...     def open(self, runtime_context):
        ...         self.sum = runtime_context.get_state(ValueStateDescriptor("sum", int, default=0))
        ...     def process_element(self, value, ctx):
        ...         self.sum.update(self.sum.value() + value.n)
        ...         yield value.user, self.sum.value()
        >>> job = StatefulJob("clicks", parallelism=2)
        >>> clicks = job.source("clicks", FileSource("/data/clicks", schema="user string, n bigint"))
        >>> totals = clicks.key_by("user").process(Total(), uid="total", output_type="user string, total bigint")
        >>> _ = totals.sink("totals", CollectSink())
        >>> with run_in_memory(job) as run:
        ...     run.process({"clicks": [("ada", 3), ("bob", 1)]})
        ...     run.process({"clicks": [("ada", 4)]})
        ...     run.state("total", "sum") == {"ada": 7, "bob": 1}
        ...     _ = run.restore(1)
        ...     run.sink("totals")
        {'totals': [Row(user='ada', total=3), Row(user='bob', total=1)]}
        {'totals': [Row(user='ada', total=7)]}
        True
        [Row(user='ada', total=3), Row(user='bob', total=1)]
    """
    from state_engine.testing.memory_run import MemoryRun

    return MemoryRun(
        job, types=types or {}, transforms=transforms or {}, clock=clock, parameters=parameters or {}
    )
