"""Random histories whose time ends by idleness and by the clock are equal to a plain model, and to their replays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine import DataStream, StatefulJob
from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.history import History
from state_engine.testing import run_in_memory
from tests.microbatch.time_model import Model, random_history, streams_of, timed_job
from tests.support.limits import SetLimits
from tests.support.pipelines import Pipeline

HISTORIES = 200
TOGETHER = 10
SINKS = ("both", "one", "behind")


def recorded(rows: list[CheckpointRow]) -> list[dict[str, Any]]:
    """What micro-batches record of time."""
    rows = [row for row in rows if row.kind.is_micro_batch]
    return [
        {
            "clock": row.clock_ms,
            "idle": {s.name for s in row.sources if s.idle},
            "watermarks": {s.name: s.watermark_ms for s in row.sources},
            "slowest": row.watermark_ms,
        }
        for row in rows
    ]


def of_time(batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same of the model's micro-batches."""
    return [{name: batch[name] for name in ("clock", "idle", "watermarks", "slowest")} for batch in batches]


def check(seed: int) -> None:
    history, parallelism = random_history(seed), 1 + seed % 3
    model, there = Model(history), {name: [0] for name in history.sources}
    with run_in_memory(timed_job(history, there, parallelism)) as run:
        shown = []
        for step in history.steps:
            for name, count in step.there.items():
                there[name][0] = count
            if step.restarts:
                run.restart(timed_job(history, there, parallelism))
            if model.restore(step.back):
                path = [r for r in History(run.checkpoints()).main_path if r.kind.is_micro_batch]
                run.restore(path[-step.back - 1].checkpoint_id)
            while batch := run.process(clock=step.clock_ms):
                shown.append({name: sorted(map(tuple, batch[name])) for name in ("both", "one")})
            model.run(step)
        assert recorded(run.checkpoints()) == of_time(model.batches)
        assert shown == [{k: b[k] for k in ("both", "one")} for b in model.batches]
        if model.path:
            path = History(run.checkpoints()).main_path
            assert recorded(path) == of_time(model.path)
            before = {name: run.sink(name) for name in SINKS}
            assert run.replay().branch == "replay_1"
            assert recorded(History(run.checkpoints()).main_path) == recorded(path)
            assert {name: run.sink(name) for name in SINKS} == before


QUICK = range(0, 30, TOGETHER)
"""Each history takes about a second; the others are for the long tests."""


@pytest.mark.more
@pytest.mark.parametrize(
    "first",
    [*QUICK, *(pytest.param(n, marks=pytest.mark.long) for n in range(QUICK.stop, HISTORIES, TOGETHER))],
)
def test_histories_are_equal_to_the_model(first: int) -> None:
    for seed in range(first, first + TOGETHER):
        check(seed)


@pytest.mark.spark
@pytest.mark.parametrize("seed", [8, 28])
def test_nor_does_it_matter_who_routes_the_rows(
    tmp_path: Path, spark: SparkSession, limits: SetLimits, seed: int
) -> None:
    """The same where Spark's tasks read and route the rows."""
    limits(rows=-1)
    history = random_history(seed)
    model, there = Model(history), {name: [0] for name in history.sources}

    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        return streams_of(job, history, there)

    pipeline = Pipeline(tmp_path, spark, build, parallelism=2)
    for step in history.steps:
        for name, count in step.there.items():
            there[name][0] = count
        pipeline.run(clock=step.clock_ms)
        model.run(step)
    assert recorded(pipeline.checkpoints()) == of_time(model.batches)
    outputs = pipeline.outputs()
    for name in ("both", "one"):
        assert sorted(outputs[name]) == sorted(o for b in model.batches for o in b[name])
