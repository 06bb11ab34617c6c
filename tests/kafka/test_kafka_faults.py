"""From Kafka through keyed state to Kafka, Delta and a database, with kills of driver, workers and broker.

Nothing is lost, and nothing comes twice.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest
import sqlalchemy as sa
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from state_engine import SqlSink, StateEngine
from state_engine.core.errors import StatelakeError
from state_engine.sinks.kafka import kafka_publisher
from state_engine.spark.kafka.clients import TransactionalProducer
from tests.kafka.kafka_runner import DIE, built
from tests.kafka.topics import Topics
from tests.support.postgres import PASSWORD_ENV, Server
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(900)
REPOSITORY = Path(__file__).parents[2]
NAMES = [f"n{i}" for i in range(7)]


class Site:
    """Topics, a directory and a database for one history."""

    def __init__(self, topics: Topics, directory: Path, url: str = "", password: str = "") -> None:
        self.topics, self.directory, self.url, self.password = topics, directory, url, password
        self.given, self.out = topics.new(partitions=3), topics.new(partitions=2)
        self.sent = 0

    def send(self, rows: int) -> None:
        """In one transaction for each partition, with one that is aborted beside it."""
        with self.topics.producer(f"{self.given}-feed") as producer:
            for partition in range(3):
                for ends in ("abortTransaction", "commitTransaction"):
                    producer.beginTransaction()
                    for i in range(partition, rows, 3):
                        value = f'{{"id": {self.sent + i}, "name": "{NAMES[(self.sent + i) % 7]}"}}'
                        self.topics.give(producer, self.given, None, value, partition)
                    producer.flush()
                    getattr(producer, ends)()
        self.sent += rows

    def process(self, die: str = "") -> subprocess.Popen[bytes]:
        """One that runs the job."""
        command = [
            sys.executable, "-m", "tests.kafka.kafka_runner", self.topics.servers, self.given, self.out,
            str(self.directory), self.url, self.password,
        ]  # fmt: skip
        environment: Mapping[str, str] = {**os.environ, "PYTHONPATH": str(REPOSITORY), DIE: die}
        with (self.directory / "log").open("ab") as log:
            return subprocess.Popen(
                command, cwd=REPOSITORY, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    def run_here(self, spark: SparkSession) -> None:
        sql = SqlSink(self.url, "counts", password_env=self.password or None) if self.url else None
        with StateEngine(self.directory / "root", spark) as engine:
            engine.run(built(self.topics.servers, self.given, self.out, self.directory, sql))

    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")[-4000:]

    def check(self) -> None:
        """Everything is everywhere once, and the counts of each key go up one by one."""
        rows = [(r["id"], r["name"], r["n"]) for r in self.topics.values(self.out)]
        ids = Counter(row[0] for row in rows)
        assert {one: n for one, n in ids.items() if n > 1} == {}, "twice"
        assert set(range(self.sent)) - ids.keys() == set(), "lost"
        for name in NAMES:
            counts = [n for _, of, n in rows if of == name]
            assert counts == list(range(1, len(counts) + 1)), "records of a key are in its partition in order"
        table = DeltaTable(str(self.directory / "table")).to_pyarrow_table().to_pylist()
        assert sorted(tuple(row.values()) for row in table) == sorted(rows)
        if self.url:
            assert sorted(self.in_database()) == sorted(rows)

    def in_database(self) -> list[tuple[Any, ...]]:
        url = sa.make_url(self.url)
        if self.password:
            url = url.set(drivername="postgresql+psycopg", password=os.environ[self.password])
        engine = sa.create_engine(url, poolclass=sa.NullPool)
        with engine.connect() as connection:
            return [tuple(row) for row in connection.execute(sa.text("SELECT id, name, n FROM counts"))]


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    with Server.started() as server:
        yield server


@pytest.fixture
def site(topics: Topics, tmp_path: Path, postgres: Server, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv(PASSWORD_ENV, postgres.password)
    return Site(topics, tmp_path, postgres.new_database(), PASSWORD_ENV)


def test_a_driver_that_is_killed_at_any_point_loses_and_repeats_nothing(
    site: Site, spark: SparkSession
) -> None:
    for point in ("checkpoint:5", "send:2", "commit:2", "committed:2", "committed:5"):
        site.send(60)
        process = site.process(die=point)
        assert process.wait(timeout=240) == -signal.SIGKILL, site.log()
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


def test_a_frozen_driver_that_wakes_up_changes_nothing(
    site: Site, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.send(60)
    zombie = site.process(die="frozen:2")
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
    assert "ProducerFenced" in site.log() or zombie.returncode == 0, site.log()
