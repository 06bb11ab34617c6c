"""Plans of jobs whose rules by row change: a replay where other rows go on, and nothing to do where all do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from state_engine import DataStream, FileSource, RowsBetween, StatefulJob
from state_engine.testing import CollectSink, run_in_memory
from tests.code_changes.planning import plan_in_memory, shown

Rule = Callable[[DataStream], DataStream]


def positive(rows: pa.Table) -> pa.Array:
    return pc.greater(rows["v"], 0)


def not_negative(rows: pa.Table) -> pa.Array:
    return pc.greater_equal(rows["v"], 0)


def job_of(rule: Rule) -> StatefulJob:
    job = StatefulJob("sums")
    rows = rule(job.source("rows", FileSource("/in", schema="k string, v bigint")))
    rows.key_by("k").sum("v", uid="totals").sink("out", CollectSink())
    return job


def rule(text: Any, otherwise: Any) -> Rule:
    return lambda rows: rows.expect("v_positive", text, otherwise)


NONE: Rule = lambda rows: rows  # noqa: E731
OPERATOR, TOTALS = "operator v_positive", "operator totals"
REPLAYED = "rule: v > 0, otherwise drop → v >= 0, otherwise drop"


@pytest.mark.parametrize(
    ("before", "after", "plan"),
    [
        (rule("v > 0", "drop"), rule("v > 0", "drop"), {}),
        (rule("v > 0", "drop"), rule("v >= 0", "drop"), {OPERATOR: ("replay", REPLAYED)}),
        (
            rule("v > 0", "warn"),
            rule("v >= 0", "fail"),
            {OPERATOR: ("continues", "rule: v > 0, otherwise warn → v >= 0, otherwise fail")},
        ),
        (
            rule(positive, "warn"),
            rule(not_negative, "warn"),
            {
                OPERATOR: (
                    "continues",
                    "rule: positive(rows), otherwise warn → not_negative(rows), otherwise warn",
                )
            },
        ),
        (
            NONE,
            rule("v > 0", "warn"),
            {OPERATOR: ("continues", "new: it begins empty with the next micro-batch")},
        ),
        (rule("v > 0", "warn"), NONE, {OPERATOR: ("continues", "gone: it no longer runs")}),
        (
            NONE,
            rule("v > 0", "drop"),
            {
                OPERATOR: ("continues", "new: it begins empty with the next micro-batch"),
                TOTALS: ("replay", "input: rows → v_positive"),
            },
        ),
    ],
)
def test_a_rule_that_changed(before: Rule, after: Rule, plan: dict[str, tuple[str, str]]) -> None:
    with run_in_memory(job_of(before)) as run:
        run.process({"rows": [("a", 1)]})
        assert shown(plan_in_memory(run, job_of(after))) == plan
        run.process({"rows": [("a", 2)]})
        assert shown(plan_in_memory(run, job_of(after))) == {}


def gated(most: int | None, otherwise: Any = "stop") -> StatefulJob:
    job = job_of(NONE)
    if most is not None:
        job.gate("rows", RowsBetween("out", 1, most), otherwise)
    return job


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (gated(2), gated(2), None),
        (None, gated(2), "new: it judges from the next micro-batch on"),
        (gated(2), None, "gone: it no longer judges"),
        (
            gated(2),
            gated(3, "hold"),
            "rule: out has 1 to 2 rows, otherwise stop → out has 1 to 3 rows, otherwise hold",
        ),
    ],
)
def test_a_gate_that_changed(before: StatefulJob | None, after: StatefulJob | None, text: str | None) -> None:
    with run_in_memory(before or gated(None)) as run:
        run.process({"rows": [("a", 1)]})
        expected = {} if text is None else {"gate rows": ("continues", text)}
        assert shown(plan_in_memory(run, after or gated(None))) == expected
