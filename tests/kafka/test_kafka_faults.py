"""From Kafka through keyed state to Kafka, Delta and a database, with kills of driver, workers and broker.

Nothing is lost, and nothing comes twice. Kills of executors: ``test_kafka_executors``.
"""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import nullcontext

import psutil
import pytest
from pyspark.sql import SparkSession

from state_engine.core.errors import StatelakeError
from state_engine.sinks.kafka import kafka_publisher
from state_engine.spark.kafka.clients import TransactionalProducer
from tests.faults.plane import Fault
from tests.kafka.kafka_sites import Site
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(900)
KILLS = [
    Fault("before commit", 2, "sigkill"),
    Fault("after commit", 1, "sigkill"),
    Fault("after records for Kafka", 2, "sigkill"),
    Fault("before transaction of Kafka", 2, "sigkill"),
    Fault("after transaction of Kafka", 2, "sigkill"),
    Fault("after transaction of Kafka", 5, "sigkill"),
    Fault("after sink published", 1, "sigkill"),  # the topic has the checkpoint, table and database do not
    Fault("after sink published", 5, "sigkill"),  # topic and table have the second one, the database does not
]
FREEZES = [
    Fault("before commit", 1, "zombie"),
    Fault("before transaction of Kafka", 2, "zombie"),
    Fault("after sink published", 1, "zombie"),  # wakes up before Delta's table
    Fault("after sink published", 2, "zombie"),  # wakes up before the database
]


def test_a_driver_that_is_killed_at_any_point_loses_and_repeats_nothing(
    site: Site, spark: SparkSession
) -> None:
    for fault in KILLS:
        site.send(60)
        process = site.process([fault])
        assert process.wait(timeout=240) == -signal.SIGKILL, f"{fault}: {site.log()}"
    site.send(30)
    site.run_here(spark)
    site.check()


def test_workers_that_are_killed_lose_and_repeat_nothing(site: Site, spark: SparkSession) -> None:
    random_ = random.Random(7)
    site.send(120)
    process = site.process()
    killed = 0
    while process.poll() is None:
        below = [p for p in psutil.Process(process.pid).children(recursive=True) if _is_worker(p)]
        if below and killed < 3:
            random_.choice(below).kill()
            killed += 1
        time.sleep(0.5)
    assert killed
    site.send(30)
    site.run_here(spark)
    site.check()


def _is_worker(process: psutil.Process) -> bool:
    try:
        return any("worker_daemon" in part or "pyspark.daemon" in part for part in process.cmdline())
    except psutil.Error:
        return False


@pytest.mark.parametrize("at", [1, 2, 3, 5])
def test_a_broker_that_is_killed_loses_and_repeats_nothing(
    site: Site, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    site.send(90)
    original, calls = TransactionalProducer.commit, iter(range(1, 1000))

    def commit(self: TransactionalProducer) -> None:
        if next(calls) == at:
            site.topics.broker.restart()
        original(self)

    monkeypatch.setattr(TransactionalProducer, "commit", commit)
    for _ in range(4):
        try:
            site.run_here(spark)
            break
        except StatelakeError:  # the next run makes up for it
            continue
    site.check()


@pytest.mark.parametrize("freeze", FREEZES, ids=str)
def test_a_frozen_driver_that_wakes_up_changes_nothing(
    site: Site, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, freeze: Fault
) -> None:
    site.send(60)
    zombie = site.process([freeze])
    try:
        until(lambda: psutil.Process(zombie.pid).status() == psutil.STATUS_STOPPED, "the driver is frozen")
        site.send(60)
        with (
            monkeypatch.context() as patch
        ):  # as on another machine, which has no part in the locks of this one
            patch.setattr(kafka_publisher, "table_lock", lambda _: nullcontext())
            site.run_here(spark)
        site.check()
        os.killpg(zombie.pid, signal.SIGCONT)
        zombie.wait(timeout=240)
    finally:
        if zombie.poll() is None:
            os.killpg(zombie.pid, signal.SIGKILL)
            zombie.wait()
    site.run_here(spark)
    site.check()
    assert zombie.returncode == 0 or "state_engine.core.errors" in site.log(), site.log()
