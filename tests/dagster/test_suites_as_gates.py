"""Suites of Great Expectations as gates: judged by what a micro-batch has staged, before the commit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import dagster as dg
import pytest

from state_engine import FileSink, FileSource, RowsBetween, StatefulJob
from state_engine.core.checkpoints.checkpoint import CheckpointRow, GateVerdict
from state_engine.core.errors import ConfigurationError, GateError
from state_engine.dagster.concepts import checks
from state_engine.dagster.dagster_job import DagsterJob
from state_engine.expectations.suites import Expectation, OfSink, OfState, Suite
from state_engine.machine.settings import Settings
from state_engine.registry import RegisteredJob
from state_engine.testing import CollectSink, run_in_memory
from tests.core.checkpoints.rows import checkpoint, tree


def between(name: str, **options: Any) -> Expectation:
    arguments = {"column": "amount", "min_value": 0, "max_value": 100}
    return Expectation(name=name, type="expect_column_values_to_be_between", arguments=arguments, **options)


NO_NULL = Expectation(
    name="no_null",
    type="expect_column_values_to_not_be_null",
    arguments={"column": "amount"},
    severity="warn",
)
SUITE = Suite(
    name="outputs",
    of=OfSink("out"),
    expectations=(between("in_range"), NO_NULL),
    identified_by=("id",),
    gate="hold",
)


def job() -> StatefulJob:
    made = StatefulJob("suited")
    rows = made.source("rows", FileSource("/in", schema="id bigint, amount bigint"))
    rows.sink("out", CollectSink())
    rows.key_by("id").sum("amount", uid="sums")
    return made


def test_a_suite_holds_what_is_not_as_expected() -> None:
    suited = job()
    RegisteredJob(job=suited, expectations=(SUITE,))
    with run_in_memory(suited) as run:
        run.process({"rows": [(1, 5), (2, None)]})  # a warning breaks no gate
        assert run.checkpoints()[0].gates[0].broken == ""
        with pytest.raises(GateError) as ended:
            run.process({"rows": [(3, 500), (4, None), (5, -2)]})
        assert ended.value.branch == "held_2"
        said = str(ended.value)
        assert (
            "gate 'outputs' is broken (out meets in_range): in_range: 2 of 3 rows are not as expected" in said
        )
        assert '{"amount": 500, "id": 3}' in said
        assert [row.id for row in run.sink("out")] == [1, 2]


def test_a_suite_that_cannot_be_judged_ends_the_micro_batch() -> None:
    suited = job()
    wrong = replace(between("in_range"), arguments={"column": "missing", "min_value": 0})
    RegisteredJob(job=suited, expectations=(replace(SUITE, expectations=(wrong,), gate=True),))
    with run_in_memory(suited) as run:
        with pytest.raises(
            ConfigurationError, match="suite 'outputs', expectation 'in_range': it could not be"
        ):
            run.process({"rows": [(1, 5)]})
        assert run.checkpoints() == []


@pytest.mark.parametrize(("gate", "otherwise"), [(True, "stop"), ("stop", "stop"), ("hold", "hold")])
def test_a_registered_job_has_the_gates_of_its_suites_once(gate: Any, otherwise: str) -> None:
    suited, suite = job(), replace(SUITE, gate=gate)
    registered = RegisteredJob(job=suited, expectations=(suite,))
    replace(registered, description="the same job, registered again")
    assert [(one.name, one.otherwise) for one in suited.gates.values()] == [("outputs", otherwise)]
    RegisteredJob(job=job(), expectations=(replace(SUITE, gate=False),))


def test_a_suite_of_a_state_judges_the_entries_that_change() -> None:
    least = Expectation(
        name="least",
        type="expect_column_values_to_be_between",
        arguments={"column": "value_amount", "min_value": 0},
    )
    suited = job()
    RegisteredJob(
        job=suited,
        expectations=(
            Suite(name="of_sums", of=OfState("sums", "rolling"), expectations=(least,), gate=True),
        ),
    )
    with run_in_memory(suited) as run:
        run.process({"rows": [(1, 5), (2, 1), (1, -3)]})
        with pytest.raises(
            GateError, match=r"of_sums.*sums\.rolling meets least.*1 of 2 rows are not as expected"
        ):
            run.process({"rows": [(2, -9), (3, 1)]})
        assert {key: row.amount for key, row in run.state("sums", "rolling").items()} == {1: 2, 2: 1}


def test_a_suite_that_cannot_be_a_gate_is_refused() -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"gate": "drop"}, "gate"),
        (
            {"expectations": (NO_NULL,)},
            "a gate is broken by expectations of severity 'error', and it has none",
        ),
    ]
    for options, says in refused:
        with pytest.raises(ConfigurationError) as error:
            replace(SUITE, **options)
        assert says in str(error.value)
    taken = job()
    taken.gate("outputs", RowsBetween("out"))
    with pytest.raises(ConfigurationError, match="two gates named 'outputs'"):
        RegisteredJob(job=taken, expectations=(SUITE,))


# -- gates of jobs ----------------------------------------------------------------------------------------------------

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
    link = urlsplit(str(result.metadata["guide"].value))
    assert link.scheme == "file"
    assert Path(link.path).read_text().startswith("# ")
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
