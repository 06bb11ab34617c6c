"""A cluster that fails at every step of a micro-batch, and in a compaction.

Tasks, executors and workers are killed, tasks run twice, files of shuffles are lost. What readers of every kind of sink
see at the end is what a plain loop computes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.cluster.driver import CUT
from tests.cluster.held import COMMITTING, COMPACTING, FUNCTION, IN_TASKS, OUTPUTS, PUBLISHING, STATE, WRITTEN
from tests.cluster.sessions import EXECUTOR, TASK, WAIT_S, WORKER, Place, held_up, kill_at, place
from tests.support.store_proxy import StoreProxy
from tests.support.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
KILLS = [
    *((moment, victim) for moment in IN_TASKS for victim in (EXECUTOR, WORKER)),
    *((moment, TASK) for moment in (STATE, OUTPUTS)),  # some of its files are written, others are not
    *((moment, victim) for moment in (COMMITTING, PUBLISHING) for victim in (EXECUTOR, WORKER)),
    *((COMPACTING, victim) for victim in (EXECUTOR, WORKER)),
]
"""Moments, and what is killed there."""
TWICE = (FUNCTION, STATE, WRITTEN)
"""Moments at which a task waits until its twin has won."""
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.0",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.python.task.killTimeout": "3600s",  # the one that lost goes on, and writes what it has to write
}
ONE_AFTER_THE_OTHER = {"spark.cores.max": "1"}
LOST_SHUFFLES = 2
BATCHES = len(KILLS) + len(TWICE) + LOST_SHUFFLES


@pytest.fixture
def site(store: StoreProxy, tmp_path: Path) -> Iterator[Place]:
    # the last rows are for a run without any trouble
    with place(tmp_path, store.endpoint, rows=(BATCHES + 1) * CUT) as new_place:
        yield new_place


def delete_shuffles(site: Place) -> int:
    """Delete all files of shuffles; how many."""
    files = [file for file in site.cluster.local.rglob("shuffle_*") if file.is_file()]
    for file in files:
        file.unlink()
    return len(files)


def test_what_dies_or_runs_twice_changes_no_result(site: Place) -> None:
    killed = killed_at_every_step(site)
    late = run_twice(site)
    deleted = with_lost_shuffles(site)
    seen = site.finish()
    print(
        f"killed {dict(killed)}; {late} tasks finished after their twins had won; {deleted} files of shuffles deleted; "
        f"{len(site.sessions)} drivers; rows of checkpoints {dict(seen['kinds'])}"
    )
    assert seen["kinds"]["checkpoint"] == BATCHES + 1
    assert seen["kinds"]["compaction"] == sum(moment == COMPACTING for moment, _ in KILLS)


def killed_at_every_step(site: Place) -> Counter[str]:
    killed = Counter[str]()
    moments = [(number, moment) for number, (moment, _) in enumerate(KILLS)]
    with site.session(moments=moments) as session:
        for number, (moment, victim) in enumerate(KILLS):
            kill_at(site.cluster, moment, victim, held_up(site.gate, session, number))
            killed[victim] += 1
            site.gate.let_go(number)
            session.wait_for("done", count=number + 1)
        assert session.process.wait(WAIT_S) == 0, session.log[-8000:]
        ((engine, python),) = session.noted("ready")
    assert engine is None or ".zip" in engine, "executors had the engine before it was sent"
    assert python
    return killed


def run_twice(site: Place) -> int:
    """Tasks are held up, run again elsewhere, and write their files when the micro-batch is over."""
    moments = [(100 + number, moment) for number, moment in enumerate(TWICE)]
    over = site.directory / "over"
    with site.session(SPECULATION, moments=moments, stay=str(over)) as session:
        for count, (number, _) in enumerate(moments, 1):
            held_up(site.gate, session, number)
            session.wait_for("done", count=count)
            assert not site.gate.finished(number)
            site.gate.let_go(number)
            until(partial(site.gate.finished, number), f"late files of {number}", within_s=WAIT_S)
        over.touch()
        assert session.process.wait(WAIT_S) == 0, session.log[-8000:]
    return len(moments)


def with_lost_shuffles(site: Place) -> int:
    """The first of two tasks is held up when it has read its rows, and what the second is to read is deleted."""
    moments = [(200 + number, FUNCTION) for number in range(LOST_SHUFFLES)]
    deleted = 0
    with site.session(ONE_AFTER_THE_OTHER, moments=moments) as session:
        for count, (number, _) in enumerate(moments, 1):
            held_up(site.gate, session, number)
            files = delete_shuffles(site)
            assert files
            deleted += files
            site.gate.let_go(number)
            session.wait_for("done", count=count)
        assert session.process.wait(WAIT_S) == 0, session.log[-8000:]
    logs = "".join(file.read_text() for file in site.cluster.directory.glob("work*/*/*/stderr"))
    assert len(re.findall("NoSuchFileException: .*/shuffle_", logs)) >= LOST_SHUFFLES
    return deleted
