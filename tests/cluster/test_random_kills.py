"""A hundred executors and workers are killed at random moments, while drivers come and go.

Nothing is lost and nothing comes twice: checkpoints, state, dead letters and every kind of sink are as a plain loop has
them.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.cluster.sessions import WAIT_S, Place, Session, place
from tests.support.store_proxy import StoreProxy
from tests.support.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]
KILLS, SESSIONS = 100, 5
"""Of executors and workers together, and the drivers that see them; one more has no trouble, and finishes."""
WORKERS_SHARE = 0.3
ROWS = 3000
MICRO_BATCHES = 20
"""At least so many are committed meanwhile."""


@dataclass
class Killer:
    """Kills what a place runs on, at random."""

    place: Place
    chance: random.Random
    killed: Counter[str] = field(default_factory=Counter)

    def kill_some(self, session: Session, count: int) -> None:
        """So many executors and workers, while a driver runs; about one a micro-batch, however fast the machine is."""
        session.wait_for("committed", count=1)
        began = time.monotonic()
        session.wait_for("committed", count=2)
        longest_s = 2 * (time.monotonic() - began)
        for _ in range(count):
            time.sleep(self.chance.uniform(0, longest_s))
            while not self.kill_one(session):
                pass

    def kill_one(self, session: Session) -> bool:
        """Kill an executor, or the worker that it runs on; False where it ended by itself meanwhile."""
        cluster = self.place.cluster

        def executors() -> list[psutil.Process]:
            session.check_running()
            return cluster.executors(0) + cluster.executors(1)

        victim = self.chance.choice(until(executors, "an executor", within_s=WAIT_S))
        try:
            number = cluster.worker_of(victim)
            if self.chance.random() >= WORKERS_SHARE:
                os.kill(victim.pid, signal.SIGKILL)
                psutil.wait_procs([victim], timeout=60)
                self.killed["executors"] += 1
                return True
        except (psutil.NoSuchProcess, ProcessLookupError):
            return False
        cluster.kill_worker(number)
        cluster.start_worker(number)
        self.killed["workers"] += 1
        return True


@pytest.fixture
def site(store: StoreProxy, tmp_path: Path) -> Iterator[Place]:
    with place(tmp_path, store.endpoint, rows=ROWS) as new_place:
        yield new_place


def test_random_kills_change_no_result(site: Place) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    killer = Killer(site, random.Random(seed))
    drivers = 0
    for number in range(SESSIONS):
        stop = site.directory / f"stop-{number}"
        with site.session(until=str(stop)) as session:
            killer.kill_some(session, KILLS * (number + 1) // SESSIONS - KILLS * number // SESSIONS)
            if number % 2:
                session.kill()
                drivers += 1
            else:
                stop.touch()
                assert session.process.wait(WAIT_S) == 0, session.log[-8000:]
    committed = [i for session in site.sessions for ids in session.noted("committed") for i in ids]
    lost = Counter(kind for session in site.sessions for kind, _ in session.noted("lost"))
    seen = site.finish()
    print(
        f"killed {dict(killer.killed)} and {drivers} drivers; {len(site.sessions)} sessions; {len(committed)} "
        f"micro-batches committed meanwhile, attempts that failed {dict(lost)}; "
        f"rows of checkpoints {dict(seen['kinds'])}"
    )
    assert sum(killer.killed.values()) == KILLS
    assert len(committed) == len(set(committed)) >= MICRO_BATCHES
    assert set(committed) <= set(seen["ids"])
