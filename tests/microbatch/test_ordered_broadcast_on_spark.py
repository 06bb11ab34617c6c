"""``connect(…, ordered=True)`` through Spark: rows that tasks route, replays, and dead letters that are sent again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine import DataStream, StatefulJob
from tests.microbatch.broadcast_model import (
    Input,
    Model,
    Refuses,
    at,
    judged,
    random_cuts,
    random_input,
    refusable,
)
from tests.support.limits import SetLimits
from tests.support.pipelines import Pipeline

LENGTH = 30


class Growing:
    """A pipeline over the first of some rows."""

    def __init__(self, at: Path, spark: SparkSession, rows: Input, parallelism: int, **options: Any) -> None:
        self.rows, self.there, self.options = rows, len(rows), dict[str, Any]()
        self.pipeline = Pipeline(at, spark, self.build, parallelism=parallelism, **options)

    def build(self, job: StatefulJob) -> Mapping[str, DataStream]:
        return {"seen": judged(job, self.rows[: self.there], **self.options)}

    def run(self, *cuts: int) -> list[Any]:
        """What is seen where micro-batches end at ``cuts``."""
        for self.there in cuts:
            self.pipeline.run()
        return self.seen()

    def seen(self) -> list[Any]:
        return [tuple(row) for row in self.pipeline.outputs()["seen"]]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_what_is_seen_is_what_a_plain_loop_sees(
    tmp_path: Path, spark: SparkSession, parallelism: int
) -> None:
    rows = random_input(2, LENGTH)
    model = Model(parallelism).run(rows)
    for number, cuts in enumerate(([LENGTH], random_cuts(1, LENGTH)[-4:])):
        growing = Growing(tmp_path / str(number), spark, rows, parallelism)
        assert growing.run(*cuts) == model.seen
        assert growing.pipeline.state("judge", "count") == sorted(model.counts.items())


def test_rows_that_tasks_route_are_ordered_alike(
    tmp_path: Path, spark: SparkSession, limits: SetLimits
) -> None:
    """There each subtask finds the watermark before its rows by the steps of all."""
    limits(rows=-1)
    rows = random_input(7, LENGTH)
    growing = Growing(tmp_path, spark, rows, 2)
    assert growing.run(13, LENGTH) == Model(2).run(rows).seen


def test_a_refused_rule_is_one_letter_and_every_subtask_gets_it_again(
    tmp_path: Path, spark: SparkSession
) -> None:
    rows: Input = [*refusable(), *[("events", at(n, n, f"k{n}")) for n in range(50, 64)]]
    growing = Growing(tmp_path, spark, rows, 3, on_error="dead_letter")
    growing.options["function"] = Refuses()
    growing.run(len(refusable()))
    growing.options["function"] = Refuses(lenient=True)
    job = growing.pipeline.job()
    with growing.pipeline.engine() as engine:
        letters = {one.input: one for one in engine.list_dead_letters(job)}
        assert set(letters) == {0, 1}
        assert [one.problem for one in letters.values()] == ["", ""]
        report = engine.replay_dead_letters(job, ids=[letters[1].id])
        assert (report.sent, report.refused) == ([letters[1].id], 0)
    growing.run(len(rows))
    factors = {row[3] for row in growing.seen() if row[0] == "element" and row[2] >= 50}
    assert factors == {-1}  # sent again, it comes after what was read before
