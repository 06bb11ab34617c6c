"""From Kafka to Kafka, Delta and a database on a cluster whose executors and workers are killed at every step.

Spark's reader of Kafka and the function run in executors. One dies there, alone or with its worker, at each moment of a
micro-batch, while the driver goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.cluster.held import COMMITTING, IN_TASKS, OUTPUTS, PUBLISHING, STATE, Gate
from tests.cluster.sessions import EXECUTOR, OPTIONS, TASK, WAIT_S, WORKER, Session, held_up, kill_at
from tests.kafka.kafka_sites import Site
from tests.support.clusters import Cluster, python_program

pytestmark = pytest.mark.timeout(1800)
KILLS = [
    *((moment, victim) for moment in (*IN_TASKS, COMMITTING, PUBLISHING) for victim in (EXECUTOR, WORKER)),
    *((moment, TASK) for moment in (STATE, OUTPUTS)),  # some of its files are written, others are not
]
"""Moments, and what is killed there."""
ROWS_OF_A_BATCH = 17
"""With as many aborted ones beside them, and markers of six transactions, they are the forty offsets of a batch."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        (tmp_path / "cluster").mkdir()
        yield Cluster(tmp_path / "cluster", stack)


def test_executors_that_are_killed_lose_and_repeat_nothing(
    site: Site, cluster: Cluster, tmp_path: Path, spark: SparkSession
) -> None:
    for _ in KILLS:
        site.send(ROWS_OF_A_BATCH)
    gate = Gate(tmp_path / "gate")
    gate.directory.mkdir()
    program = {"spark.pyspark.python": str(python_program(tmp_path / "python"))}
    notes = tmp_path / "driver"
    moments = list(zip(count(), (moment for moment, _ in KILLS)))
    process = site.process(
        environment=cluster.environment, master=cluster.master, options=OPTIONS | program,
        moments=moments, notes=str(notes),
    )  # fmt: skip
    session = Session(process, notes)
    try:
        for number, (moment, victim) in enumerate(KILLS):
            kill_at(cluster, moment, victim, held_up(gate, session, number))
            gate.let_go(number)
            session.wait_for("done", count=number + 1)
        assert process.wait(WAIT_S) == 0, session.log
    finally:
        session.kill()
    site.check()
    site.send(30)
    site.run_here(spark)
    site.check()
