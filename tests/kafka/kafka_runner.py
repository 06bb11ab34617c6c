"""A process that runs a job from a topic to a topic, a Delta table and a database, until it has caught up or is killed.

    python -m tests.kafka.kafka_runner <settings, as JSON>

``servers``, ``given`` and ``out`` name the broker and its topics, ``access`` has ``options`` and ``options_env`` for
them. ``directory`` holds the root and the table, ``url`` is of the database. ``faults`` is a schedule for the fault
plane: the process group dies by SIGKILL, or stops as a zombie until it is woken up. ``log_level`` is that of Java.

With ``master`` it is the driver of a cluster, and goes through ``moments``, one a micro-batch, at which it is held up
(``Gate``); what it has done it appends to ``notes``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from state_engine import (
    DeltaSink,
    KafkaSink,
    KafkaSource,
    KeyedProcessFunction,
    SqlSink,
    StateEngine,
    StatefulJob,
    ValueStateDescriptor,
)
from state_engine.machine.settings import SparkSettings
from state_engine.spark.session import local_session
from tests.cluster.held import FUNCTION, Gate, Read, held_in_driver, hold_up_files
from tests.faults.plane import from_json, installed
from tests.support.java import SHORT_LIVED_JAVA
from tests.support.postgres import PASSWORD_ENV

OUT = "id bigint, name string, n bigint"


class Counts(KeyedProcessFunction):
    """Every element with how many of its key have come."""

    def __init__(self, gate: Gate | None = None) -> None:
        self.gate = gate

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", int, default=0))
        if self.gate is not None:
            hold_up_files(self.gate)

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        if self.gate is not None:
            self.gate.pass_by(FUNCTION)
        self.count.update(self.count.value() + 1)
        yield value.id, value.name, self.count.value()


def built(settings: Mapping[str, Any], gate: Gate | None = None) -> StatefulJob:
    """The job of these settings."""
    servers, access = settings["servers"], settings["access"]
    job = StatefulJob("counts", parallelism=2)
    source = KafkaSource(
        servers, settings["given"], schema="id bigint, name string", max_offsets_per_batch=40, **access
    )
    events = job.source("events", source)
    if gate is not None:
        events = events.transform(Read(gate, "id"))
    counted = events.key_by("name").process(Counts(gate), uid="counts", output_type=OUT)
    topic = KafkaSink(servers, settings["out"], key=["name"], max_rows_per_transaction=7, **access)
    counted.sink("topic", topic)
    counted.sink("table", DeltaSink(str(Path(settings["directory"]) / "table")))
    counted.sink("database", SqlSink(settings["url"], "counts", password_env=PASSWORD_ENV))
    return job


def go_through(engine: StateEngine, job: StatefulJob, gate: Gate, settings: Mapping[str, Any]) -> None:
    """One micro-batch for each moment; the last of them may have no trouble."""
    for number, moment in settings["moments"]:
        gate.ask(number, moment)
        with held_in_driver(gate, moment):
            engine.run(job, max_batches=1)
        assert gate.reached(number) is not None, f"moment {number}, {moment}, was not reached"
        with Path(settings["notes"]).open("a") as notes:
            notes.write(json.dumps(["done", number]) + "\n")


def main(settings: Mapping[str, Any]) -> None:
    directory = Path(settings["directory"])
    options = {"spark.driver.extraJavaOptions": SHORT_LIVED_JAVA} | settings.get("options", {})
    master = settings.get("master", "local[2]")
    spark: SparkSession = local_session(
        SparkSettings(master=master, driver_memory="1g", options=options), app_name="statelake-kafka"
    )
    spark.sparkContext.setLogLevel(settings.get("log_level", "WARN"))
    gate = Gate(directory / "gate") if "moments" in settings else None
    job = built(settings, gate)
    faults = installed(from_json(settings["faults"]), meanwhile=lambda: os.killpg(0, signal.SIGSTOP))
    with faults, StateEngine(directory / "root", spark) as engine:
        if gate is not None:
            go_through(engine, job, gate, settings)
        engine.run(job)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
