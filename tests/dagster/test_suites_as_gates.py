"""Suites of Great Expectations as gates: judged by what a micro-batch has staged, before the commit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from state_engine import FileSource, RowsBetween, StatefulJob
from state_engine.core.errors import ConfigurationError, GateError
from state_engine.expectations.suites import Expectation, OfSink, OfState, Suite
from state_engine.registry import RegisteredJob
from state_engine.testing import CollectSink, run_in_memory


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


def test_a_suite_that_cannot_be_a_gate_is_refused() -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"of": OfState("sums", "value")}, "a gate judges what is staged for a sink, and not a state"),
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
