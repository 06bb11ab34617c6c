"""Processes of Spark that die: the error names the process, what is kept and the remedy; the next process goes on."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors.exceptions.captured import PythonException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from state_engine import DeltaSink, DeltaSource, FileSource, KeyedProcessFunction, StateEngine, StatefulJob
from state_engine.core.errors import (
    CommitFailedError,
    ConfigurationError,
    SetupError,
    SparkLostError,
    StatelakeError,
    SubtaskLostError,
    UserFunctionError,
)
from state_engine.spark.failures import failed_frame_code, lost_process, outside, unresolved_host
from tests.support.tiny import Site

pytestmark = pytest.mark.spark_tasks

REPOSITORY = Path(__file__).parents[2]


class Killing(KeyedProcessFunction):
    """Kills a process at the first sight of a marker file."""

    def __init__(self, marker: str, victim: int | None) -> None:
        self.marker, self.victim = marker, victim

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        if os.path.exists(self.marker):
            os.remove(self.marker)
            os.kill(os.getpid() if self.victim is None else self.victim, signal.SIGKILL)
        return [(value.k, value.v)]


def job(directory: Path, victim: int | None = None) -> StatefulJob:
    dying = StatefulJob("dying")
    rows = dying.source("events", FileSource(str(directory / "feed")))
    summed = rows.key_by("k").process(
        Killing(str(directory / "marker"), victim), uid="kills", output_type="k string, v bigint"
    )
    summed.sink("out", DeltaSink(str(directory / "sink")))
    return dying


class Process:
    """A process that ended, or did not."""

    def __init__(self, code: int | None) -> None:
        self.code = code
        self.waited: list[float] = []

    def wait(self, timeout: float) -> int:
        self.waited.append(timeout)
        if self.code is None:
            raise subprocess.TimeoutExpired("java", timeout)
        return self.code


def session(code: int | None) -> Any:
    return SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace(proc=Process(code))))


def raised(*errors: Exception) -> Exception:
    """The last error, raised while the one before it was handled."""
    for before, error in pairwise(errors):
        error.__context__ = before
    return errors[-1]


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (Py4JNetworkError("Answer from Java side is empty"), -9, "by signal 9"),
        (raised(ConnectionResetError(104, "reset"), Py4JError("o1.collect")), 1, "with exit code 1"),
        (ConnectionRefusedError(111, "refused"), -9, "by signal 9"),
        (Py4JNetworkError("Answer from Java side is empty"), None, "it hung up"),
    ],
)
def test_the_death_of_the_jvm_is_known_by_its_process(
    error: Exception, code: int | None, message: str
) -> None:
    lost = lost_process(error, session=session(code), job="j")
    assert isinstance(lost, SparkLostError)
    assert "job 'j'" in str(lost)
    assert message in str(lost)


def test_other_errors_are_no_deaths() -> None:
    assert lost_process(ConnectionRefusedError(111, "a database"), session=session(None), job="j") is None
    assert lost_process(Py4JError("no such method"), session=session(None), job="j") is None
    assert lost_process(ValueError("a bad row"), session=session(-9), job="j") is None
    assert lost_process(Py4JNetworkError("gone"), session=None, job="j") is None


def java_error(text: str) -> Py4JJavaError:
    """What Java answers in place of a result."""

    def send_command(command: str) -> str:
        return f"ys{text}"

    java = SimpleNamespace(
        _target_id="o1",
        _gateway_client=SimpleNamespace(send_command=send_command, gateway_property=None),
        getMessage=lambda: text,
        getCause=lambda: None,
    )
    return Py4JJavaError("An error occurred while calling o1.collect.\n", java)


@pytest.mark.parametrize(
    ("errors", "waits"),
    [
        ([java_error("a bad row")], False),
        ([java_error("Job 7 cancelled because SparkContext was shut down")], True),
        ([java_error("a bad row"), Py4JNetworkError("Answer from Java side is empty")], True),
    ],
)
def test_nobody_waits_for_the_end_of_a_jvm_that_goes_on(errors: list[Exception], waits: bool) -> None:
    asked = session(None)
    lost_process(raised(*errors), session=asked, job="j")
    [waited] = asked.sparkContext._gateway.proc.waited
    assert (waited > 0) is waits


@pytest.mark.parametrize(
    "text",
    [
        "java.lang.IllegalArgumentException: java.net.UnknownHostException: no.such.host",
        'UnknownHostException: Invalid host name: local host is: (unknown); destination host is: "no.such.host":9000',
        'could not translate host name "no.such.host" to address: Name or service not known',
        "curlCode: 6, Couldn't resolve host name: no.such.host",
        "failed to resolve host 'no.such.host': [Errno -2] Name or service not known",
    ],
)
def test_a_host_that_is_not_there_is_named(text: str) -> None:
    for error in (OSError(text), raised(OSError(text), RuntimeError("o1.load"))):
        assert "job 'j': the host name 'no.such.host' does not resolve" in str(
            unresolved_host(error, job="j")
        )
    assert unresolved_host(OSError("disk full"), job="j") is None
    assert unresolved_host(socket.gaierror(-2, "Name or service not known"), job="j") is not None


@pytest.mark.spark
def test_a_host_that_does_not_resolve_ends_in_one_message(tmp_path: Path, spark: SparkSession) -> None:
    lost = StatefulJob("lost")
    lost.source("events", DeltaSource("hdfs://no.such.host.invalid:9000/events")).sink(
        "out", DeltaSink(str(tmp_path / "sink"))
    )
    with pytest.raises(SetupError, match=r"job .lost.: the host name .no\.such\.host\.invalid. does not"):
        StateEngine(tmp_path / "root", spark).run(lost)


@pytest.mark.spark
def test_a_killed_worker_leaves_nothing_that_refuses_the_second_try(
    tmp_path: Path, spark: SparkSession
) -> None:
    site = Site(tmp_path, spark).put({"k": ["a", "b"], "v": [1, 2]})
    (tmp_path / "marker").touch()
    with pytest.raises(SubtaskLostError, match="job 'dying', operator 'kills': the process of a subtask"):
        site.engine().run(job(tmp_path))
    assert site.engine().checkpoints("dying") == []
    site.engine().run(job(tmp_path))
    assert site.outputs() == [("a", 1), ("b", 2)]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_killed_jvm_is_reported_and_the_next_process_goes_on(tmp_path: Path, spark: SparkSession) -> None:
    (tmp_path / "feed").mkdir()
    pq.write_table(pa.table({"k": ["a", "b"], "v": [1, 2]}), tmp_path / "feed" / "0.parquet")
    (tmp_path / "marker").touch()
    died = subprocess.run(
        [sys.executable, "-m", "tests.spark.test_failures", str(tmp_path)],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert died.stdout.startswith("SparkLostError: job 'dying': the Java process of Spark"), died.stderr[
        -3000:
    ]
    assert "by signal 9" in died.stdout
    engine = StateEngine(tmp_path / "root", spark)
    assert engine.checkpoints("dying") == []
    engine.run(job(tmp_path))
    assert Site(tmp_path, spark).outputs() == [("a", 1), ("b", 2)]


def _main(directory: Path) -> None:
    engine = StateEngine(directory / "root")
    gateway: Any = engine.spark.sparkContext._gateway
    try:
        engine.run(job(directory, victim=gateway.proc.pid))
    except StatelakeError as error:
        print(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    _main(Path(sys.argv[1]))


def test_an_error_of_ours_in_a_task_is_that_error(spark: SparkSession) -> None:
    def fails(batches: Any) -> Any:
        from state_engine.core.errors import CommitFailedError

        raise CommitFailedError("a file that one operator hands to another is gone; run again")

    for action in (
        spark.range(1).mapInArrow(fails, "id long").collect,
        spark.sparkContext.parallelize([1], 1).mapPartitions(fails).collect,
    ):
        with pytest.raises(Exception, match="is gone") as failed:
            action()
        assert not isinstance(failed.value, StatelakeError)
        error = outside(failed.value, spark, "totals")
        assert type(error) is CommitFailedError
        assert str(error).startswith(
            "job 'totals': a file that one operator hands to another is gone; run again"
        )


def _by_column(rows: Any) -> Any:
    return F.pandas_udf(lambda ks: ks.map({}.__getitem__), "int")(rows["k"])  # type: ignore[call-overload]


def _by_row(rows: Any) -> Any:
    return F.udf(lambda k: {}[k], "int")(rows["k"])


FRAME_CODE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a cast": (lambda d: d["k"].cast("int"), r"CAST_INVALID_INPUT.*'a'.*try_cast"),
    "a sum": (lambda d: d["v"] + F.lit(2**63 - 1), "ARITHMETIC_OVERFLOW"),
    "a division": (lambda d: d["v"] / F.lit(0), r"DIVIDE_BY_ZERO.*try_divide"),
    "an error that it raises": (
        lambda d: F.when(F.col("v") > 0, F.raise_error(F.lit("too large"))).otherwise(F.lit(1)),
        "too large",
    ),
    "a condition": (lambda d: F.when(F.assert_true(F.col("v") > 1).isNull(), F.lit(1)), "is not true"),
    "a pattern of times": (lambda d: F.to_date("k", "yyyy"), "CANNOT_PARSE_TIMESTAMP"),
    "a udf": (_by_row, "KeyError: 'a'"),
    "a pandas_udf": (_by_column, "KeyError: 'a'"),
}


@pytest.mark.parametrize("what", FRAME_CODE)
def test_what_code_of_a_transform_cannot_take_is_no_defect(
    what: str, tmp_path: Path, spark: SparkSession
) -> None:
    code, message = FRAME_CODE[what]
    pq.write_table(pa.table({"k": ["a"], "v": [1]}), tmp_path / "1.parquet")
    refusing = StatefulJob("refusing")
    rows = refusing.source("events", FileSource(str(tmp_path / "1.parquet"), schema="k string, v bigint"))
    made = rows.transform(lambda d: d.select(code(d).alias("x")))
    made.sink("out", DeltaSink(str(tmp_path / "sink")))
    engine = StateEngine(tmp_path / "root", spark)
    with pytest.raises(
        UserFunctionError,
        match=rf"(?s)job 'refusing', operator 'transform': .*{message}.*Fix the function and run again",
    ) as caught:
        engine.run(refusing)
    assert "ansi" not in str(caught.value)
    assert engine.checkpoints(refusing) == []


@pytest.mark.parametrize("column", ["NULL", "raise_error('x')"])
def test_a_column_of_nulls_only_is_named(column: str, tmp_path: Path, spark: SparkSession) -> None:
    pq.write_table(pa.table({"k": ["a"]}), tmp_path / "1.parquet")
    job = StatefulJob("nulls")
    rows = job.source("events", FileSource(str(tmp_path / "1.parquet"), schema="k string"))
    rows.transform(lambda d: d.withColumn("x", F.expr(column))).sink("out", DeltaSink(str(tmp_path / "sink")))
    with StateEngine(tmp_path / "root", spark) as engine:
        with pytest.raises(ConfigurationError, match=r"column 'x': .*only nulls.*cast\('string'\)"):
            engine.run(job)
        assert engine.checkpoints(job) == []


def test_a_traceback_of_the_engine_is_none_of_a_transform(spark: SparkSession) -> None:
    def failed(file: str) -> UserFunctionError | None:
        text = f'Traceback (most recent call last):\n  File "/state_engine/spark/{file}", line 1, in run\nKeyError: 1'
        return failed_frame_code(PythonException(text, stackTrace=""), job="j")

    assert failed("tasks.py") is None
    assert failed("frame_code.py") is not None
