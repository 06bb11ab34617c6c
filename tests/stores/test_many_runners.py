"""Four processes run one job in a store: 200 micro-batches, SIGKILL at random moments, and a network that fails.

Nothing is lost and nothing comes twice: ids of checkpoints, rows of sinks, state and dead letters are those of a plain
loop. The server that keeps its content on the disk is killed now and then, too.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from state_engine.spark.stores import reach_stores
from state_engine.storage.stores.object_stores import PROCESS_STORES
from tests.faults.child import REPOSITORY
from tests.faults.workloads import Site
from tests.stores.many import MANY, ROWS, expected
from tests.support.seaweed import Seaweed, seaweed_server
from tests.support.store_proxy import Fault, Request, StoreProxy, store_proxy
from tests.support.stores import access_to, environment
from tests.support.waiting import until

pytestmark = [pytest.mark.spark_tasks, pytest.mark.servers, pytest.mark.timeout(1200)]
RUNNERS = 4
KILLS = 5
"""At least so many processes die."""
BATCHES_BETWEEN_KILLS = (12, 40)
"""A kill comes after so many more micro-batches, so that a slow machine has no more new processes than a quick one."""
LATE_S = (0.2, 3.0)
TROUBLE = 0.001
"""Chance of a request to be lost, and the same for its answer."""
LATE = 0.006
"""Chance of an entry of a log to arrive after its client gave up."""


@dataclass
class Trouble:
    """What becomes of requests, by chance."""

    chance: random.Random
    made: Counter[str] = field(default_factory=Counter)

    def __call__(self, request: Request) -> Fault | None:
        draw = self.chance.random()
        if request.creates_an_entry and draw < LATE:
            self.made["late"] += 1
            return Fault(late_s=self.chance.uniform(*LATE_S))
        if draw < TROUBLE:
            self.made["request lost"] += 1
            return Fault(lose_request=True)
        if draw < 2 * TROUBLE:
            self.made["answer lost"] += 1
            return Fault(lose_answer=True)
        return None


@dataclass
class Runner:
    """A process of ``tests.stores.runner``."""

    process: subprocess.Popen[bytes]
    notes: Path

    @classmethod
    def start(cls, site: Site, endpoint: str) -> Runner:
        notes = site.directory / f"notes-{uuid4().hex}"
        command = [
            sys.executable,
            "-m",
            "tests.stores.runner",
            str(site.directory),
            str(site.store),
            str(notes),
        ]
        with notes.with_suffix(".log").open("w") as log:
            process = subprocess.Popen(
                command, cwd=REPOSITORY, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment(endpoint)},
            )  # fmt: skip
        return cls(process, notes)

    @property
    def noted(self) -> list[tuple[str, Any]]:
        """What it wrote down until now; a line that a kill cut off does not count."""
        lines = self.notes.read_text().split("\n")[:-1] if self.notes.exists() else []
        return [(what, value) for what, value in map(json.loads, lines)]

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def crowd(site: Site, endpoint: str) -> Iterator[list[Runner]]:
    """Runners of one job; those that live at the end are killed."""
    runners = [Runner.start(site, endpoint) for _ in range(RUNNERS)]
    try:
        yield runners
    finally:
        for runner in runners:
            if runner.process.poll() is None:
                runner.kill()


def acknowledged(runners: list[Runner]) -> list[int]:
    """The ids of checkpoints that runners noted as committed."""
    return [value for runner in runners for what, value in runner.noted if what == "committed"]


def killed_until_the_end(
    site: Site, endpoint: str, chance: random.Random, server: Seaweed | None
) -> list[Runner]:
    """Kill one runner after the other while they work, and start another for each; all that ever ran."""
    with crowd(site, endpoint) as runners:
        working = list(runners)
        next_kill = chance.randint(*BATCHES_BETWEEN_KILLS)
        while any(runner.process.poll() is None for runner in working):
            time.sleep(chance.uniform(0.1, 0.5))
            ready = [r for r in working if r.process.poll() is None and r.noted]
            if not ready or len(acknowledged(runners)) < next_kill:
                continue
            next_kill = len(acknowledged(runners)) + chance.randint(*BATCHES_BETWEEN_KILLS)
            victim = chance.choice(ready)
            victim.kill()
            working.remove(victim)
            working.append(Runner.start(site, endpoint))
            runners.append(working[-1])
            if server is not None and chance.random() < 1 / 3:
                server.kill()
                server.start()
        return runners


def check(site: Site, runners: list[Runner]) -> None:
    """Every process ended by a kill or at the end of the input, and everything is as a plain loop has it."""
    for runner in runners:
        log = runner.notes.with_suffix(".log").read_text()
        assert runner.process.returncode in (0, -signal.SIGKILL), log[-5000:]
    rows = site.rows()
    ids = list(range(1, len(rows) + 1))
    assert [row.checkpoint_id for row in rows] == ids
    assert len({row.write_id for row in rows}) == len(ids)
    assert sum(row.kind == "checkpoint" for row in rows) == len(ROWS)  # the others are compactions
    assert not [i for i, times in Counter(acknowledged(runners)).items() if times > 1]
    assert set(acknowledged(runners)) <= set(ids)
    assert site.seen() == expected()


def show(runners: list[Runner], trouble: Trouble) -> None:
    lost = Counter(value[0] for runner in runners for what, value in runner.noted if what == "lost")
    dead = sum(runner.process.returncode == -signal.SIGKILL for runner in runners)
    print(
        f"{len(runners)} processes, {dead} of them killed; lost attempts {dict(lost)}; {dict(trouble.made)}"
    )
    assert dead >= KILLS
    assert set(trouble.made) == {"late", "request lost", "answer lost"}


@pytest.fixture
def seaweed(tmp_path: Path, store: StoreProxy, spark: SparkSession) -> Iterator[tuple[Seaweed, StoreProxy]]:
    """SeaweedFS and a proxy, which this process reaches beside moto."""
    bucket = f"weed-{uuid4().hex}"
    with seaweed_server(tmp_path / "weed", bucket) as server, store_proxy(server.port) as proxy:
        PROCESS_STORES.describe(access_to(proxy.endpoint), bucket=bucket)
        reach_stores(spark)
        yield server, proxy


def run_many(
    directory: Path, uri: str, proxy: StoreProxy, spark: SparkSession, server: Seaweed | None = None
) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    site = Site(directory / "site", MANY, spark, cut=1, store=uri)
    site.directory.mkdir()
    chance = random.Random(seed)
    proxy.fault = trouble = Trouble(chance)
    runners = killed_until_the_end(site, proxy.endpoint, chance, server)
    proxy.fault = lambda _: None
    until(lambda: not any(thread.is_alive() for thread in proxy.late), "late requests", within_s=60)
    show(runners, trouble)
    check(site, runners)


def test_many_runners_on_moto(store: StoreProxy, uri: str, tmp_path: Path, spark: SparkSession) -> None:
    run_many(tmp_path, uri, store, spark)


def test_many_runners_on_seaweed(
    seaweed: tuple[Seaweed, StoreProxy], tmp_path: Path, spark: SparkSession
) -> None:
    server, proxy = seaweed
    run_many(tmp_path, f"s3a://{server.bucket}/many", proxy, spark, server)
    assert server.starts > 1, "it was never killed"
