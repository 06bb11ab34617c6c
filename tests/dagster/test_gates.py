"""Gates in Dagster: the blocking check of a job that has any, while a micro-batch is held and after."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import dagster as dg
import pytest

from state_engine import FileSink, FileSource, RowsBetween, StatefulJob
from state_engine.core.checkpoints.checkpoint import CheckpointRow, GateVerdict
from state_engine.dagster.concepts import checks
from state_engine.dagster.dagster_job import DagsterJob
from state_engine.machine.settings import Settings
from state_engine.registry import RegisteredJob
from tests.core.checkpoints.rows import checkpoint, tree

BROKEN = GateVerdict("rows", "out has 1 to 2 rows", "hold", "3 rows are staged")
HELD = [checkpoint(1), replace(checkpoint(2, 1), branch="held_2", gates=[BROKEN])]


def dagster_job(*, gate: bool) -> DagsterJob:
    job = StatefulJob("gated")
    job.source("rows", FileSource("/in", schema="id bigint")).sink("out", FileSink("/out"))
    if gate:
        job.gate("rows", RowsBetween("out", 1, 2), "hold")
    return DagsterJob(registered=RegisteredJob(job=job), settings=Settings())


def checked(monkeypatch: pytest.MonkeyPatch, rows: list[CheckpointRow]) -> dg.AssetCheckResult:
    monkeypatch.setattr(checks, "read_history", lambda *_: SimpleNamespace(checkpoints=tree(rows)))
    result = checks._gates(dagster_job(gate=True))()
    assert isinstance(result, dg.AssetCheckResult)
    return result


def test_a_held_job_is_a_failed_blocking_check_with_the_guide(monkeypatch: pytest.MonkeyPatch) -> None:
    result = checked(monkeypatch, HELD)
    assert (result.passed, result.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert "gate 'rows' is broken (out has 1 to 2 rows): 3 rows are staged" in (result.description or "")
    assert "statelake branch promote gated held_2" in (result.description or "")
    assert result.metadata["branch"].value == "held_2"
    assert result.metadata["guide"].value == "docs/guides/gates.md"
    (spec,) = checks._gates(dagster_job(gate=True)).check_specs
    assert spec.blocking


@pytest.mark.parametrize("rows", [HELD[:1], [*HELD, checkpoint(3, 2)], [*HELD, checkpoint(3, 1)]])
def test_a_job_that_goes_on_passes(monkeypatch: pytest.MonkeyPatch, rows: list[CheckpointRow]) -> None:
    assert checked(monkeypatch, rows).passed


@pytest.mark.parametrize("gate", [True, False])
def test_only_a_job_with_gates_has_the_check(gate: bool) -> None:
    made = checks.definitions(dagster_job(gate=gate)).asset_checks or []
    names = {key.name for check in made for key in check.check_keys}
    assert ("gates" in names) == gate
