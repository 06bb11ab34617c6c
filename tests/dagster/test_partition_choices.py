"""The calls of one Dagster run to the engine: real Dagster, and an engine that only records its calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from state_engine import CheckpointRow
from state_engine.core.checkpoints.checkpoint import MAIN
from state_engine.core.time.partitions import TimePartitions
from state_engine.dagster.engine_resource import StateEngineResource
from state_engine.dagster.micro_batches import DATA_VERSION_TAG
from state_engine.dagster.time_partitions import request_for
from state_engine.microbatch.partition_runs import PartitionStatus
from state_engine.microbatch.reports import RunReport
from state_engine.replay.backfill import BackfillReport
from tests.core.checkpoints.rows import checkpoint
from tests.dagster.days import CHECKPOINT, JOB, KEYS, Days

D8, D9, D10, D11, D12 = KEYS


class WrittenDown:
    """Reports some partitions as done, as checkpoints 1, 2, …; runs nothing."""

    def __init__(self, done: int) -> None:
        self.keys, self.asked = KEYS[:done], list[Any]()

    def partitions(self, job: object) -> list[PartitionStatus]:
        done = [PartitionStatus(key, "done", i + 1, 1) for i, key in enumerate(self.keys)]
        return [*done, *(PartitionStatus(key, "missing") for key in KEYS[len(done) :])]

    def checkpoints(self, job: object) -> list[CheckpointRow]:
        return [
            replace(checkpoint(i + 1, i or None), partition=key, partition_start_ms=i, partition_end_ms=i + 1)
            for i, key in enumerate(self.keys)
        ]

    def run(self, job: object, *, partition: str | None, **_: object) -> RunReport:
        self.asked.append(("run", partition))
        return RunReport(JOB, [], True, [])

    def backfill(
        self, job: object, first: str, last: str, mode: str, *, dry_run: bool, rebatch: bool, **_: object
    ) -> BackfillReport:
        self.asked.append(("backfill", first, last, mode, *["dry"] * dry_run, *["rebatch"] * rebatch))
        keys = KEYS[KEYS.index(first) : KEYS.index(last) + 1]
        return BackfillReport(JOB, "roll_forward", MAIN, None, keys, [], {})


def launch(
    days: Days,
    engine: WrittenDown,
    monkeypatch: pytest.MonkeyPatch,
    *partitions: str,
    config: Mapping[str, Any] | None = None,
) -> list[Any]:
    monkeypatch.setattr(StateEngineResource, "engine", lambda self: engine)
    days.run(*partitions, **(config or {}))
    return engine.asked


@pytest.mark.parametrize(
    ("done", "asked", "config", "expected"),
    [
        (0, [D8], {}, [("run", D8)]),
        (0, [D8, D10], {}, [("backfill", D8, D10, "roll_forward")]),
        (0, [], {}, [("run", None)]),
        (2, [D9], {}, [("run", D9)]),
        (2, [D9], {"mode": "stop"}, [("backfill", D9, D9, "stop")]),
        (2, [D9], {"rebatch": True}, [("backfill", D9, D9, "roll_forward", "rebatch")]),
        (2, [D8], {}, [("backfill", D8, D8, "roll_forward")]),
        (2, [D9, D11], {}, [("backfill", D9, D11, "roll_forward")]),
        (2, [D9, D11], {"missing_only": True}, [("backfill", D10, D11, "roll_forward")]),
        (2, [D9, D10], {"missing_only": True}, [("run", D10)]),
        (2, [D8, D9], {"missing_only": True}, []),
        (2, [D8], {"dry_run": True}, [("backfill", D8, D8, "roll_forward", "dry")]),
        (2, [D9], {"dry_run": True}, [("backfill", D9, D9, "roll_forward", "dry")]),
    ],
    ids=str,
)
def test_what_is_asked_of_the_engine(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    done: int,
    asked: list[str],
    config: dict[str, Any],
    expected: list[Any],
) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        days = Days(tmp_path, instance)
        assert launch(days, WrittenDown(done), monkeypatch, *asked, config=config) == expected


def test_what_ran_elsewhere_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        days = Days(tmp_path, instance)
        assert launch(days, WrittenDown(3), monkeypatch, D8, D10, config={"missing_only": True}) == []
        shown = [(e.partition, (e.tags or {})[DATA_VERSION_TAG]) for e in days.events(CHECKPOINT)]
        assert shown == [(D8, "1"), (D9, "2"), (D10, "3")]


def test_a_request_names_partitions_and_runs_none_twice() -> None:
    own = TimePartitions("at", start=D8)
    one, many = request_for(JOB, own.between(D8, D8)), request_for(JOB, own.between(D8, D10), tags={"x": "y"})
    assert one.partition_key == D8
    assert many.partition_key is None
    assert many.tags["x"] == "y"
    for request in (one, many):
        assert request.run_config["ops"][f"{JOB}_micro_batches"]["config"] == {"missing_only": True}
