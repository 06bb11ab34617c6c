"""One key, debugged: today's function over recorded inputs gives what was recorded, or what differs is said."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from state_engine import (
    DeltaSink,
    FileSource,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    Row,
    RuntimeContext,
    StateEngine,
    StatefulJob,
    ValueStateDescriptor,
)
from state_engine.cli import session
from state_engine.cli.debug import debug_lines
from state_engine.cli.main import app
from state_engine.machine.settings import LoadedSettings, Settings
from state_engine.registry import RegisteredJob
from state_engine.replay.key_debug import KeyDebug
from state_engine.testing import subtasks_in_process
from tests.support.guides import GUIDES, code_blocks

BATCHES = (
    [("ann", 1, 10), ("bob", 1, 5), ("ann", 2, 20)],
    [("bob", 3, 6)],
    [("ann", 1, 30), ("cid", 4, 1)],
)


class Remembers(KeyedProcessFunction):
    """Sum, all amounts, the last of each kind, and a timer for each amount."""

    def __init__(self, factor: int = 1, wait: int = 100) -> None:
        self.factor, self.wait = factor, wait

    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", int))
        self.amounts = runtime_context.get_list_state(ListStateDescriptor("amounts", int))
        self.kinds = runtime_context.get_map_state(MapStateDescriptor("kinds", int, int))

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        total = (self.total.value() or 0) + value.amount * self.factor
        self.total.update(total)
        self.amounts.add(value.amount)
        self.kinds.put(value.kind, value.amount)
        ctx.timer_service().register_event_time_timer(value.amount * self.wait)
        yield value.user, total

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        yield ctx.get_current_key(), -timestamp


class Largest(KeyedProcessFunction):
    """The largest sum of a user, without the user."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.largest = runtime_context.get_state(ValueStateDescriptor("largest", int))

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        self.largest.update(max(self.largest.value() or 0, value.total))
        yield (value.total,)


def job_of(directory: Path, factor: int = 1, wait: int = 100) -> StatefulJob:
    job = StatefulJob("sums", parallelism=2, max_parallelism=8)
    inbox = FileSource(
        str(directory / "inbox"), schema="user string, kind bigint, amount bigint, at timestamp", format="json"
    )  # fmt: skip
    rows = job.source("events", inbox, event_time="at")
    sums = rows.key_by("user").process(
        Remembers(factor, wait), uid="sums", output_type="user string, total bigint"
    )
    sums.sink("totals", DeltaSink(str(directory / "totals")))
    most = sums.key_by("user").process(Largest(), uid="most", output_type="total bigint")
    most.sink("most", DeltaSink(str(directory / "most")))
    return job


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Path:
    """Three micro-batches."""
    directory = tmp_path_factory.mktemp("debugged")
    (directory / "inbox").mkdir()
    with subtasks_in_process(spark), StateEngine(directory / "root", spark) as engine:
        for number, rows in enumerate(BATCHES):
            texts = [
                json.dumps({"user": user, "kind": kind, "amount": n, "at": f"1970-01-01T00:00:0{number}Z"})
                for user, kind, n in rows
            ]
            (directory / "inbox" / f"{number}.json").write_text("\n".join(texts))
            engine.run(job_of(directory), clock=1000 * number)
    return directory


def debugged(site: Path, key: Any, *, factor: int = 1, wait: int = 100, **options: Any) -> KeyDebug:
    with StateEngine(site / "root") as engine:
        done = engine.debug(job_of(site, factor, wait), key, **options)
        assert engine.context.session is None  # neither Spark nor Java
        return done


def test_a_key_does_what_was_recorded_element_by_element(site: Path) -> None:
    done = debugged(site, "ann", operator="sums", from_checkpoint=1)
    assert done.same
    (one,) = done.operators
    assert (one.key, one.notes) == ({"user": "ann"}, [])
    first, second, third = one.batches
    assert [step.what for step in first.steps] == ["element", "element"]
    assert [step.element.value.amount for step in first.steps if step.element] == [10, 20]
    assert first.steps[1].before["total"] == 10
    assert first.steps[1].after == {"total": 30, "amounts": [10, 20], "kinds": {1: 10, 2: 20}}
    assert first.steps[1].timers_after == [(1000, "event"), (2000, "event")]
    assert first.steps[0].outputs == [(None, ("ann", 10))]
    assert [(o.sink, o.count, o.shows_key) for o in first.outputs] == [("totals", 2, True)]
    assert not second.steps
    assert [step.what for step in third.steps] == ["element", "timers"]
    assert third.steps[1].outputs == [(None, ("ann", -1000))]
    assert [one.value for one in first.states] == [30, [10, 20], {1: 10, 2: 20}]  # and not what came later


def test_inputs_that_another_operator_puts_out_are_made_again(site: Path) -> None:
    done = debugged(site, "ann", operator="most", from_checkpoint=1)
    assert done.same
    first = done.operators[0].batches[0]
    assert [step.element.value.total for step in first.steps if step.element] == [10, 30]
    assert [(o.sink, o.count, o.shows_key) for o in first.outputs] == [("most", 2, False)]


def test_nothing_is_written_to_the_root(site: Path) -> None:
    before = sorted(site.rglob("*"))
    debugged(site, "ann")
    assert sorted(site.rglob("*")) == before


def test_the_newest_micro_batch_that_touched_the_key_is_chosen(site: Path) -> None:
    assert [b.checkpoint_id for b in debugged(site, "ann").operators[0].batches] == [3]
    assert [b.checkpoint_id for b in debugged(site, "bob", operator="most").operators[0].batches] == [2]
    assert not debugged(site, "nobody").operators[0].batches
    assert [b.checkpoint_id for b in debugged(site, "ann", checkpoint_id=1).operators[1].batches] == [1]


def test_what_another_code_does_is_compared_with_the_record(site: Path) -> None:
    done = debugged(site, "ann", operator="sums", factor=2, from_checkpoint=1)
    assert not done.same
    first, _, third = done.operators[0].batches
    total = next(state for state in first.states if state.name == "total")
    assert (total.value, total.recorded, total.same) == (60, 30, False)
    assert first.outputs[0].missing == [{"user": "ann", "total": 10}, {"user": "ann", "total": 30}]
    assert first.outputs[0].extra == [{"user": "ann", "total": 20}, {"user": "ann", "total": 60}]
    assert (
        next(state.value for state in third.states if state.name == "total") == 120
    )  # it went on with its own
    third = debugged(site, "ann", operator="sums", factor=2, checkpoint_id=3).operators[0].batches[0]
    assert (
        next(state.value for state in third.states if state.name == "total") == 90
    )  # from the recorded state


def test_timers_of_another_code_are_compared_with_the_record(site: Path) -> None:
    done = debugged(site, "ann", operator="sums", wait=200, checkpoint_id=1)
    (batch,) = done.operators[0].batches
    assert [at for at, _ in batch.timers] == [2000, 4000]
    assert [at for at, _ in batch.recorded_timers] == [1000, 2000]
    assert all(state.same for state in batch.states)
    assert not done.same


def test_a_slice_that_is_gone_is_said_and_the_rest_runs(site: Path) -> None:
    file, aside = site / "inbox" / "0.json", site / "0.json"
    os.rename(file, aside)
    try:
        done = debugged(site, "ann", operator="sums", from_checkpoint=1)
    finally:
        os.rename(aside, file)
    first, *others = done.operators[0].batches
    assert first.checkpoint_id == 1
    assert "its input is gone" in first.problems[0]
    assert "0.json" in first.problems[0]
    assert [one.checkpoint_id for one in others] == [2, 3]
    assert others[1].steps[0].before["total"] == 30  # the recorded state
    assert done.same


def test_the_text_shows_elements_states_timers_and_outputs(site: Path) -> None:
    lines = list(debug_lines(debugged(site, "ann", operator="sums", checkpoint_id=3)))
    assert lines[0] == 'sums, sums: key {"user": "ann"}'
    assert "    state total: 30 -> 60" in lines
    assert "    set   timer at 3000 ms (event time)" in lines
    assert '    out   ["ann", 60]' in lines
    assert "  timers, at the end" in lines
    assert lines[-1] == "  as recorded"
    different = list(debug_lines(debugged(site, "ann", operator="sums", checkpoint_id=3, factor=2)))
    assert "    state total: 90, recorded 60" in different
    assert '    sink totals: only recorded: {"user": "ann", "total": 60}' in different


def test_the_examples_and_the_commands_of_the_guide_run(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(site)
    with StateEngine(site / "root") as engine:
        for example in code_blocks(GUIDES / "debugging.md", "python"):
            exec(compile(example, "debugging.md", "exec"), {"engine": engine, "job": job, "Row": Row})
    settings = LoadedSettings(settings=Settings(root=str(site / "root")), origins={}, file=None)
    monkeypatch.setattr(session, "loaded_settings", lambda: settings)
    monkeypatch.setattr("state_engine.cli.debug.declared", lambda _: RegisteredJob(job=job))
    lines = [
        line for line in (GUIDES / "debugging.md").read_text().splitlines() if line.startswith("statelake ")
    ]
    assert len(lines) == 4
    monkeypatch.chdir(tmp_path)
    for line in lines:
        done = CliRunner().invoke(app, shlex.split(line)[1:])
        assert done.exit_code == 0, done.output
        assert "  as recorded" in done.output
    assert (
        "KeyHarness(project_job('sums'), 'sums', 'user-1'" in (tmp_path / "tests" / "test_ann.py").read_text()
    )
