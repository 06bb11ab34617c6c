"""The Spark session: starts a local one that fits the engine, and checks one that is given.

Guarantees: a session from here, or one that passed ``check_session``, is Spark Classic (py4j reaches the
JVM), has Delta's extension and catalog, and has Delta Kernel on its class path. Plays the part of Flink's
``StreamExecutionEnvironment.get_execution_environment``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pyspark
from py4j.java_gateway import JavaPackage, get_java_class
from pyspark import SparkContext
from pyspark.sql import SparkSession

from state_engine.core.errors import SessionError
from state_engine.machine.defects import guarded_function
from state_engine.machine.jars import (
    DELTA_VERSION,
    delta_jars,
    delta_package,
    jars_of,
    jars_that_are_there,
    kafka_jars,
    s3_jars,
)
from state_engine.machine.java import JavaHome, find_java_home
from state_engine.machine.settings import JobsSettings, Settings, SparkSettings, load_settings
from state_engine.machine.spark_versions import installed_spark, spark_version
from state_engine.spark.class_archive import archive_options
from state_engine.spark.java_log import java_is_starting
from state_engine.spark.kafka import RECORDS_JAR
from state_engine.spark.log_store import LOG_STORE_JAR
from state_engine.spark.shipping import is_in_process, ship_code
from state_engine.storage.delta.log_stores import spark_options
from state_engine.storage.java_gateway import has_gateway, java_class, java_context, jvm_of
from state_engine.storage.stores.parquet_reading import SPARK_VERIFIES

DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"

OLDEST_HADOOP = [3, 4, 2]
"""The first one whose S3A creates files on condition, which several runners need; Spark 4.1 brings it."""

WORKER_DAEMON = "state_engine.microbatch.subtask.worker_daemon"
"""The program that Spark forks Python workers from; the rooms below it are not imported here."""

SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Environment of a process that ``spark-submit`` started: where the JVM is that it is to use."""

NO_THREADS = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Environment of that program. What it imports must start no thread: forks would have its locks, but not the thread."""

COMPILED_LATER = " ".join(
    f"-XX:Tier4{name}={number}"
    for name, number in (
        ("InvocationThreshold", 50_000),
        ("MinInvocationThreshold", 6_000),
        ("CompileThreshold", 150_000),
        ("BackEdgeThreshold", 400_000),
    )
)
"""Java's second compiler begins ten times later than by default: at a start it works as long as all the rest, for code
that runs a few times. What a long run repeats reaches it all the same."""

_OF_PYSPARK = "pyspark-shell"
"""The argument by which a JVM is known that PySpark starts."""

LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")


def _own_session() -> str:
    """How to get a session that fits, for the end of a message."""
    return (
        "from state_engine import local_session; spark = local_session()  # or configure yours:\n"
        f"    spark.jars.packages            {delta_package(installed_spark())}\n"
        f"    spark.sql.extensions           {DELTA_EXTENSION}\n"
        f"    spark.sql.catalog.spark_catalog  {DELTA_CATALOG}"
    )


@guarded_function
def local_session(
    settings: Settings | SparkSettings | None = None, *, app_name: str = "statelake"
) -> SparkSession:
    """The active session of this process, checked; or a new one with Delta, on this machine by default.

    Executors of their own are sent the engine and the modules of jobs that the settings name. A process that
    ``spark-submit`` started has the session that ``spark-submit`` configured; the section ``[spark]`` is left alone.

    Args:
        settings: all of them; or those of Spark alone, with which no modules of jobs are sent; None: those of the
            settings file and the environment, where no session is active.
        app_name: how the application is called in Spark's UI and logs.

    Raises:
        SessionError: an active session does not fit, or Spark cannot start.
        JavaNotFoundError, JarsError: what a new session needs is missing.
        SetupError: the settings name modules of jobs that are not there, and executors are to be sent them.

    Example::

        spark = local_session(SparkSettings(master="local[2]"))
        spark.range(3).write.format("delta").save("/tmp/three")
    """
    if os.environ.get("SPARK_REMOTE"):
        raise SessionError(
            "SPARK_REMOTE is set, so PySpark would connect to a Spark Connect server, which the engine cannot "
            "use (it commits through the driver's JVM). Unset it to run on this machine."
        )
    spark = _active_session()
    if settings is None and spark is None:
        settings = load_settings()
    jobs = settings.jobs if isinstance(settings, Settings) else JobsSettings()
    if spark is None:
        options = settings.spark if isinstance(settings, Settings) else settings
        spark = _start(options or SparkSettings(), app_name)
    check_session(spark)
    ship_code(spark, jobs.modules, package_data=jobs.package_data)
    return spark


def check_session(spark: Any) -> None:
    """Refuses a session that the engine cannot work with.

    Raises:
        SessionError: Spark Connect; no Delta extension or catalog; no Delta Kernel on the class path, or another one; a
            Hadoop that is too old for many writers.
    """
    _refuse_connect(spark)
    spark_version(spark.version)
    _check_hadoop(jvm_of(spark))
    # Kernel's jars first: without them the other settings are of no use either.
    if isinstance(java_class(jvm_of(spark), "io.delta.kernel.defaults.engine.DefaultEngine"), JavaPackage):
        raise SessionError(
            "Delta Kernel is not on the class path of this session, and Java keeps its class path until this process "
            f"ends: start the process again (in a notebook, the kernel), and in it a session that has it:\n"
            f"{_own_session()}"
        )
    kernel = java_class(jvm_of(spark), "io.delta.kernel.Meta").KERNEL_VERSION
    if kernel != DELTA_VERSION:
        raise SessionError(
            f"this session has Delta Kernel {kernel}, and the engine needs {DELTA_VERSION}: start the process again, "
            f"and in it another session:\n{_own_session()}"
        )
    if DELTA_EXTENSION not in spark.conf.get("spark.sql.extensions", "").split(","):
        raise SessionError(
            f"this session lacks Delta's extension: stop it and start another:\n{_own_session()}"
        )
    if spark.conf.get("spark.sql.catalog.spark_catalog", "") != DELTA_CATALOG:
        raise SessionError(
            f"this session lacks Delta's catalog: stop it and start another:\n{_own_session()}"
        )


def check_is_classic(spark: Any) -> None:
    """Refuses what is not a session of Spark Classic; ``check_session`` refuses a session that lacks something."""
    _refuse_connect(spark)
    if not hasattr(spark, "_jsparkSession"):
        raise SessionError(f"spark must be a SparkSession, or None to start one, not {spark!r}")


def _refuse_connect(spark: Any) -> None:
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise SessionError(
            "this is a Spark Connect session; the engine needs Spark Classic, because it commits through "
            f"Delta Kernel in the driver's JVM. Use a session of the driver's own:\n{_own_session()}"
        )


def _check_hadoop(jvm: Any) -> None:
    """Refuses a Hadoop that creates no files on condition, and a module for S3 that is of another one."""
    hadoop = str(java_class(jvm, "org.apache.hadoop.util.VersionInfo").getVersion())
    if _numbers(hadoop) < OLDEST_HADOOP:
        oldest = ".".join(map(str, OLDEST_HADOOP))
        raise SessionError(
            f"this session has Hadoop {hadoop}, which cannot create a file in a store only if it does not exist: "
            f"use a Spark with Hadoop {oldest} or later"
        )
    s3a = java_class(jvm, "org.apache.hadoop.fs.s3a.S3AFileSystem")
    if isinstance(s3a, JavaPackage):
        return
    source = get_java_class(s3a).getProtectionDomain().getCodeSource()
    jar = re.search(r"hadoop-aws-(\d[\w.-]*)\.jar", str(source.getLocation())) if source else None
    if jar and _numbers(jar[1]) != _numbers(hadoop):
        raise SessionError(
            f"this session has hadoop-aws {jar[1]} and Hadoop {hadoop}, which do not go together: give it "
            f"org.apache.hadoop:hadoop-aws:{hadoop}; or have `statelake setup --s3` fetch it, for a session that the "
            "engine starts"
        )


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)[:3]]


def needed_options() -> dict[str, str]:
    """Options that any session of the engine needs, besides the jars: Delta, log stores, and that damage is seen.

    Example:
        >>> needed_options()["spark.sql.extensions"]
        'io.delta.sql.DeltaSparkSessionExtension'
    """
    return {
        "spark.sql.extensions": DELTA_EXTENSION,
        "spark.sql.catalog.spark_catalog": DELTA_CATALOG,
        **spark_options(),
        **{f"spark.hadoop.{name}": value for name, value in SPARK_VERIFIES.items()},
    }


def needed_jars() -> list[Path]:
    """Jars that any session of the engine needs: Delta's, the log store's, those of S3A and Kafka that were fetched."""
    settings = load_settings().spark
    java = find_java_home(environ=os.environ, explicit=settings.java_home)
    return _jars(settings, java)


def session_options(
    settings: SparkSettings,
    *,
    jars: list[Path],
    cores: int,
    java_options: str = "",
    python: str = sys.executable,
) -> dict[str, str]:
    """The options of a new session; those of the user win over ours (Java options are joined).

    Args:
        jars: Delta's, that of the log store, and those of S3A and Kafka where they were fetched.
        cores: of this machine; shuffles on it get as many partitions.
        java_options: for the driver, besides those that are always set.
        python: that tasks run in, where the settings name none.
    """
    python = settings.options.get("spark.pyspark.python", python)
    options = {
        "spark.jars": ",".join(str(path) for path in jars),
        **needed_options(),
        "spark.driver.memory": settings.driver_memory,
        "spark.pyspark.python": python,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": " ".join(
            filter(
                None, [f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}", COMPILED_LATER, java_options]
            )
        ),
        "spark.sql.session.timeZone": "UTC",
        # PySpark would look up the caller's line at every DataFrame call, three round trips each.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
    }
    if settings.master.startswith("local"):
        options |= {
            # Nothing outside of this machine has any business with the driver, and a laptop's host name
            # often does not resolve.
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(cores),
            # Over TCP, a worker waits for delayed acknowledgements: 40 ms of every small task.
            "spark.python.unix.domain.socket.enabled": "true",
            # Spark and Delta plan for clusters: 50 tasks to read a table's log, 10,000 to list a directory.
            "spark.databricks.delta.snapshotPartitions": "1",
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(cores),
        }
        # elsewhere libraries start threads when they are imported; and another Python may not have the engine
        if sys.platform == "linux" and python == sys.executable:
            options["spark.python.daemon.module"] = WORKER_DAEMON
            options |= {f"spark.executorEnv.{name}": value for name, value in NO_THREADS.items()}
    ours = options["spark.driver.extraJavaOptions"]
    options |= settings.options
    if (theirs := settings.options.get("spark.driver.extraJavaOptions")) is not None:
        options["spark.driver.extraJavaOptions"] = f"{ours} {theirs}"
    return options


def _active_session() -> SparkSession | None:
    # A thread other than the one that started Spark has no active session of its own, hence the context.
    if SparkContext._active_spark_context is None and SUBMITTED not in os.environ:
        return None
    return SparkSession.builder.getOrCreate()


def _start(settings: SparkSettings, app_name: str) -> SparkSession:
    java = find_java_home(environ=os.environ, explicit=settings.java_home)
    jars = _jars(settings, java)
    cores = (
        len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else os.cpu_count()
    )
    builder = SparkSession.builder.master(settings.master).appName(app_name)
    # on other machines, Python may be elsewhere
    python = sys.executable
    if not is_in_process(settings.master):
        python = os.environ.get("PYSPARK_PYTHON", python)
    java_options = archive_options(java)
    options = session_options(settings, jars=jars, cores=cores or 1, java_options=java_options, python=python)
    for key, value in options.items():
        builder = builder.config(key, value)
    launch = {
        "JAVA_HOME": str(java.path),
        # Delta's jars belong to this PySpark's Spark, not to one that the machine has besides.
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        # what PySpark goes by: it does not look at the option of the same meaning
        "PYSPARK_PYTHON": options["spark.pyspark.python"],
    }
    try:
        with _environment(launch), java_is_starting():
            spark = builder.getOrCreate()
    except Exception as error:
        raise SessionError(
            f"Spark did not start (master {settings.master}, Java {java.version} from {java.origin}): {error}\n"
            f"`statelake doctor` looks for the cause."
        ) from error
    except KeyboardInterrupt:
        _end_java()
        raise
    if settings.master.startswith("local"):
        _write_no_checksums(spark)
    return spark


def _end_java() -> None:
    """End the JVM that PySpark was starting and does not know yet: it would wait for ever."""
    if has_gateway():
        return
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if _OF_PYSPARK in child.cmdline():
                child.kill()


def _jars(settings: SparkSettings, java: JavaHome) -> list[Path]:
    spark = installed_spark()
    needed = [*jars_of(delta_jars(spark), settings.jars_dir, java=java), LOG_STORE_JAR.path()]
    needed += jars_that_are_there(s3_jars(spark), settings.jars_dir)
    kafka = jars_that_are_there(kafka_jars(spark), settings.jars_dir)
    return [*needed, *kafka, RECORDS_JAR.path()] if kafka else needed


def _write_no_checksums(spark: Any) -> None:
    """Hadoop starts a process for every local file that it creates, and one more for its checksum file.

    Nothing of ours reads the checksum files; Parquet and the commit's sizes reveal damage.
    """
    configuration = java_context(spark).hadoopConfiguration()
    java_class(jvm_of(spark), "org.apache.hadoop.fs.FileSystem").getLocal(configuration).setWriteChecksum(
        False
    )


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
