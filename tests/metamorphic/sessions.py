"""The Spark session and the process of a user: options by chance, a watcher of them, and one who works beside."""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import polars as pl
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from state_engine import DeltaSink, FileSource, StateEngine, StatefulJob
from state_engine.spark.engine_session import active_session
from state_engine.storage.java_gateway import java_class

ZONES = ["America/New_York", "Asia/Kolkata", "Pacific/Apia", "Europe/Berlin", "UTC", "+13:30"]
CHOICES: dict[str, list[str]] = {
    "spark.sql.session.timeZone": ZONES,
    "spark.sql.timestampType": ["TIMESTAMP_NTZ", "TIMESTAMP_LTZ"],
    "spark.sql.shuffle.partitions": ["1", "3", "17"],
    "spark.sql.execution.arrow.maxRecordsPerBatch": ["1", "7"],
    "spark.sql.mapKeyDedupPolicy": ["LAST_WIN", "EXCEPTION"],
    "spark.sql.legacy.timeParserPolicy": ["LEGACY", "EXCEPTION", "CORRECTED"],
    "spark.sql.storeAssignmentPolicy": ["LEGACY", "STRICT", "ANSI"],
    "spark.sql.files.maxPartitionBytes": ["1000", "134217728"],
    "spark.sql.autoBroadcastJoinThreshold": ["-1", "10000000"],
    "spark.sql.parquet.outputTimestampType": ["INT96", "TIMESTAMP_MILLIS", "TIMESTAMP_MICROS"],
    "spark.sql.sources.default": ["orc", "parquet"],
    "spark.sql.maxPlanStringLength": ["10"],
    "spark.sql.sources.partitionOverwriteMode": ["dynamic", "static"],
    "spark.sql.columnNameOfCorruptRecord": ["k"],
    "spark.sql.binaryOutputStyle": ["HEX", "BASE64"],
    "spark.sql.legacy.charVarcharAsString": ["true", "false"],
    "spark.sql.sources.parallelPartitionDiscovery.threshold": ["0", "32"],
    "spark.sql.session.localRelationCacheThreshold": ["1"],
    "spark.databricks.delta.properties.defaults.enableChangeDataFeed": ["true"],
    "spark.databricks.delta.properties.defaults.columnMapping.mode": ["name"],
    "spark.databricks.delta.properties.defaults.enableDeletionVectors": ["true"],
    "spark.databricks.delta.schema.autoMerge.enabled": ["true"],
    "spark.databricks.delta.optimizeWrite.enabled": ["true"],
    "spark.databricks.delta.autoCompact.enabled": ["true"],
    **{
        f"spark.sql.{files}RebaseModeIn{way}": ["LEGACY", "EXCEPTION", "CORRECTED"]
        for files in ("parquet.datetime", "parquet.int96", "avro.datetime")
        for way in ("Read", "Write")
    },
}  # fmt: skip
"""Options that are no switches, and values of theirs. Switches are all that Spark lists."""
UNUSABLE = ("singlePassResolver",)
"""Parts of the names of switches with which Spark refuses queries that its user makes himself."""
SHARE = 0.15
"""How many of the switches a user has turned."""

OF_SPARK = ("callSite.", "__fetch_")
"""Local properties that Spark keeps in a thread for itself: where a query stands, and how its last shuffle was read."""
OF_STORES = "fs.s3"
"""Options of the context that say how stores are reached, which the engine sets where nobody else did."""


def switches(spark: SparkSession) -> dict[str, str]:
    """All switches of SQL that a session may turn, turned: what Spark knows, with another value than its own."""
    known = getattr(java_class(spark._jvm, "org.apache.spark.sql.internal.SQLConf$"), "MODULE$")
    own = {one.key(): one.defaultValueString() for one in known.getConfigEntries().toArray()}
    turned = {"true": "false", "false": "true"}
    usable = (
        name for name, value in own.items() if value in turned and not any(one in name for one in UNUSABLE)
    )
    return {name: turned[own[name]] for name in usable if spark.conf.isModifiable(name)}


def options(spark: SparkSession, rng: random.Random, turned: dict[str, str]) -> dict[str, str]:
    """Options of some user."""
    some = {name: value for name, value in sorted(turned.items()) if rng.random() < SHARE}
    return some | {name: rng.choice(values) for name, values in CHOICES.items() if rng.random() < 0.5}


@contextmanager
def a_user(spark: SparkSession, chosen: dict[str, str]) -> Iterator[SparkSession]:
    """The session of one who has these options, and a view, a function and a job group of his own."""
    session = spark.newSession()
    session.range(1).collect()  # Delta sets options of its own at the first query
    session.range(3).createOrReplaceTempView("events")
    session.udf.register("loud", lambda text: text.upper(), "string")
    for name, value in chosen.items():
        session.conf.set(name, value)
    context = spark.sparkContext
    if chosen:
        context.setJobGroup("mine", "what I do", interruptOnCancel=True)
        context.setLocalProperty("spark.scheduler.pool", "mine")
    try:
        yield session
    finally:
        for name in (
            "spark.jobGroup.id",
            "spark.job.description",
            "spark.job.interruptOnCancel",
            "spark.scheduler.pool",
        ):
            context.setLocalProperty(name, None)  # type: ignore[arg-type]


def belongings(session: SparkSession) -> dict[str, Any]:
    """All that a run has to leave as it is: of the session, of Spark, and of the process."""
    java, context = session._jsparkSession, session.sparkContext
    jvm: Any = context._jvm
    state = session._jsparkSession.sessionState()
    properties = dict(context._jsc.sc().getLocalProperties())
    hadoop = dict(
        one.partition("=")[::2]
        for one in context._jsc.hadoopConfiguration()
        .getPropsWithPrefix("")
        .toString()
        .strip("{}")
        .split(", ")
    )
    return options_of(session) | {
        "catalog": session.catalog.currentCatalog(),
        "database": session.catalog.currentDatabase(),
        "views": str(state.catalog().listLocalTempViews("*")),
        "global views": str(state.catalog().globalTempViewManager().listViewNames("*")),
        "functions": state.functionRegistry().listFunction().size(),
        "properties": {name: value for name, value in properties.items() if not name.startswith(OF_SPARK)},
        "tags": str(context.getJobTags()),
        "log level": str(jvm.org.apache.logging.log4j.LogManager.getRootLogger().getLevel()),
        "zone of the machine": jvm.java.util.TimeZone.getDefault().getID(),
        "Hadoop": {name: value for name, value in hadoop.items() if not name.startswith(OF_STORES)},
        "conf of the context": sorted(context.getConf().getAll()),
        "active": (id(SparkSession._activeSession), str(active_session())),
        "default": str(java.getDefaultSession()),
        "signals": [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)],
        "environment": dict(os.environ),
        "logging": (logging.root.level, list(logging.root.handlers)),
        "zone of Python": time.tzname,
        "directory": os.getcwd(),
        "excepthooks": (sys.excepthook, threading.excepthook),
    }


def options_of(session: SparkSession) -> dict[str, Any]:
    """All options of a session, given and by default."""
    defined = session._jsparkSession.sessionState().conf().getAllDefinedConfs()
    return {
        "given": session.conf.getAll,
        "defined": dict(enumerate(sorted(str(defined.mkString("\n")).split("\n")))),
    }


def differences(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """What changed, of a part that has many entries only those."""
    changed = {}
    for name in before:
        was, now = before[name], after[name]
        if was != now and isinstance(was, dict):
            was, now = (sorted(set(a.items()) - set(b.items())) for a, b in ((was, now), (now, was)))
        if was != now:
            changed[name] = (was, now)
    return changed


class Beside(threading.Thread):
    """A thread that runs beside the body of a ``with``, until that ends."""

    def __init__(self) -> None:
        super().__init__()
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()


class Watcher(Beside):
    """Looks at the options of a session, and at what its user's own query gives, all the time."""

    def __init__(self, session: SparkSession) -> None:
        super().__init__()
        self._session = session
        self._hours = session.sql("SELECT hour(timestamp_seconds(id * 0)) AS h FROM range(1)")
        self.seen: dict[str, set[Any]] = {"options": set(), "hours": set(), "active": set()}
        self.looks = 0

    def run(self) -> None:
        while not self._ended.wait(0.02):
            self.seen["options"].add(str(sorted(self._session.conf.getAll.items())))
            self.seen["active"].add(id(SparkSession._activeSession))
            if self.looks % 8 == 0:
                self.seen["hours"].add(self._hours.collect()[0]["h"])
            self.looks += 1


class Neighbour(Beside):
    """Another user of the process, with a zone of his own: runs a job of his own, and asks for hours."""

    def __init__(self, directory: Path, spark: SparkSession, zone: str) -> None:
        super().__init__()
        self._directory = directory
        self._session = spark.newSession()
        self._session.conf.set("spark.sql.session.timeZone", zone)
        self._hour = self._session.sql("SELECT hour(timestamp '2024-07-01 12:00:00Z') AS h").collect()[0]["h"]
        self.wrong: list[Any] = []
        self.runs = 0

    def run(self) -> None:
        try:
            while not self._ended.is_set():
                self._work()
                self.runs += 1
                self._ended.wait(0.2)
        except BaseException as error:
            self.wrong.append(error)

    def _work(self) -> None:
        files = self._directory / "in"
        files.mkdir(parents=True, exist_ok=True)
        noon = datetime(2024, 7, 1, 12, tzinfo=UTC).isoformat()
        (files / f"{self.runs}.json").write_text(f'{{"k": "a", "at": "{noon}"}}\n')
        job = StatefulJob("neighbour")
        rows = job.source("rows", FileSource(str(files), schema="k string, at timestamp", format="json"))
        hours = rows.transform(lambda frame: frame.withColumn("hour", F.hour("at")))
        hours.sink("hours", DeltaSink(str(self._directory / "hours")))
        with StateEngine(self._directory / "root", self._session) as engine:
            engine.run(job)
        shown = pl.read_delta(str(self._directory / "hours"))["hour"].to_list()
        own = self._session.sql(
            "SELECT hour(timestamp_seconds(1719835200 + id * 0)) AS h FROM range(1)"
        ).collect()
        if set(shown) != {12} or len(shown) != self.runs + 1 or own[0]["h"] != self._hour:
            self.wrong.append((shown, own))
