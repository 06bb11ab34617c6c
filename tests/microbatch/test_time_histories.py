"""Random histories whose time ends by idleness and by the clock are equal to a plain model, and to their replays."""

from __future__ import annotations

from typing import Any

import pytest

from state_engine.testing import MemoryRun, run_in_memory
from tests.microbatch.time_model import Model, job_of, random_history

HISTORIES = 200
TOGETHER = 10
SINKS = ("both", "one", "behind")


def recorded(run: MemoryRun, branch: str = "main") -> list[dict[str, Any]]:
    """What checkpoints record of time."""
    rows = [r for r in run.checkpoints() if r.branch == branch and r.kind.is_micro_batch]
    return [
        {
            "clock": row.clock_ms,
            "idle": {s.name for s in row.sources if s.idle},
            "watermarks": {s.name: s.watermark_ms for s in row.sources},
        }
        for row in rows
    ]


def check(seed: int) -> None:
    history, parallelism = random_history(seed), 1 + seed % 3
    model, there = Model(history), {name: [0] for name in history.sources}
    with run_in_memory(job_of(history, there, parallelism)) as run:
        shown = []
        for step in history.steps:
            for name, count in step.there.items():
                there[name][0] = count
            if step.restarts:
                run.restart(job_of(history, there, parallelism))
            while batch := run.process(clock=step.clock_ms):
                shown.append({name: sorted(map(tuple, batch[name])) for name in ("both", "one")})
            model.run(step)
        assert recorded(run) == [{k: b[k] for k in ("clock", "idle", "watermarks")} for b in model.batches]
        assert shown == [{k: b[k] for k in ("both", "one")} for b in model.batches]
        if shown:
            before = {name: run.sink(name) for name in SINKS}
            assert run.replay().branch == "replay_1"
            assert recorded(run, "replay_1") == recorded(run)
            assert {name: run.sink(name) for name in SINKS} == before


QUICK = range(0, 30, TOGETHER)
"""Each history takes about a second; the others are for the long tests."""


@pytest.mark.parametrize(
    "first",
    [*QUICK, *(pytest.param(n, marks=pytest.mark.long) for n in range(QUICK.stop, HISTORIES, TOGETHER))],
)
def test_histories_are_equal_to_the_model(first: int) -> None:
    for seed in range(first, first + TOGETHER):
        check(seed)
