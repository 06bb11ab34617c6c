"""Dead letters are processed again by the current code: exactly once, whatever crashes, and withdrawn by a restore."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from state_engine import (
    DataStream,
    DeltaSink,
    FileSource,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    RuntimeContext,
    StateEngine,
    StatefulJob,
    Types,
)
from state_engine.core.checkpoints.dead_letters import DeadLetterLimit
from state_engine.core.errors import ConfigurationError, DeadLetterLimitError, StatelakeError
from state_engine.microbatch.coordinator import CheckpointCoordinator
from state_engine.spark.placement import USUAL
from tests.support.limits import SetLimits
from tests.support.tiny import OUTPUT, ROWS, Site, Sum

pytestmark = pytest.mark.spark


def refuses_threes(value: Any, total: int) -> Any:
    if value.v % 10 == 3:
        raise KeyError("three")
    return [(value.k, value.v, total)]


def bad(site: Site) -> StatefulJob:
    return site.job(Sum(refuses_threes), on_error="dead_letter")


def good(site: Site) -> StatefulJob:
    return site.job(on_error="dead_letter")


def test_letters_are_sent_once_and_a_restore_has_them_waiting_again(
    tmp_path: Path, spark: SparkSession
) -> None:
    site = Site(tmp_path, spark).put(ROWS)
    engine = site.engine()
    engine.run(bad(site))
    (letter,) = engine.list_dead_letters(bad(site))
    assert (letter.id, letter.operator, letter.input, letter.source) == ("1:1", "sums", 0, "events")
    assert (letter.sent, letter.problem) == (False, "")

    planned = engine.replay_dead_letters(good(site), dry_run=True)
    assert (planned.sent, planned.batches) == (["1:1"], [])
    again = engine.replay_dead_letters(bad(site))
    assert (again.sent, again.refused) == (["1:1"], 1)
    (second,) = engine.list_dead_letters(bad(site))
    assert second.id == "2:1"
    assert (second.position or "").startswith("dead letter 1:1 (source 'events', file:")

    report = engine.replay_dead_letters(good(site))
    (batch,) = report.batches
    assert (batch.rows_in, batch.rows_refused, batch.rows_out) == (1, 0, {"out": 1})
    everything = sorted([("a", 1, 1), ("b", 2, 2), ("c", 4, 4), ("a", 3, 4)], key=repr)
    assert (site.outputs(), site.state()) == (everything, {"a": 4, "b": 2, "c": 4})
    assert engine.list_dead_letters(good(site)) == []
    assert [(one.id, one.sent) for one in engine.list_dead_letters("tiny", sent=True)] == [
        ("1:1", True),
        ("2:1", True),
    ]
    assert engine.replay_dead_letters(good(site)).batches == []
    with pytest.raises(ConfigurationError, match="'2:1' cannot be sent again: it was sent before"):
        engine.replay_dead_letters(good(site), ids=["2:1"])
    with pytest.raises(ConfigurationError, match="there is no dead letter '9:9'"):
        engine.replay_dead_letters(good(site), ids=["9:9"])

    site.put({"k": ["a"], "v": [10]}, "1")
    engine.run(good(site))
    assert site.state()["a"] == 14
    engine.compact("tiny")
    assert engine.list_dead_letters(good(site)) == []

    engine.restore("tiny", checkpoint_id=1)
    assert site.outputs() == sorted([("a", 1, 1), ("b", 2, 2), ("c", 4, 4)])
    assert [one.id for one in engine.list_dead_letters(good(site))] == ["1:1"]
    with site.engine() as another:
        another.replay_dead_letters(good(site))
        another.run(good(site))
        assert another.list_dead_letters(good(site)) == []
    assert site.outputs() == sorted([*everything, ("a", 10, 14)], key=repr)
    assert site.state() == {"a": 14, "b": 2, "c": 4}


STEPS = ["plan", "execute", "commit_files", "stage", "commit", "committed", "publish"]


@pytest.mark.parametrize(
    "steps", [["commit_files", "committed"], pytest.param(STEPS, marks=pytest.mark.long)], ids=["two", "all"]
)
def test_a_crash_at_any_step_neither_loses_nor_doubles_a_letter(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, steps: list[str]
) -> None:
    site, expected = Site(tmp_path, spark), list[tuple[Any, ...]]()
    for n, step in enumerate(steps):
        key = f"k{n}"
        site.put({"k": [key, key], "v": [3, 13]}, str(n)).engine().run(bad(site))
        with monkeypatch.context() as patched:
            name = "commit" if step == "committed" else step
            real = getattr(CheckpointCoordinator, name)

            def crash(self: Any, *given: Any, _real: Any = real, _after: bool = step == "committed") -> Any:
                if _after:
                    _real(self, *given)
                raise RuntimeError("out of power")

            patched.setattr(CheckpointCoordinator, name, crash)
            with pytest.raises(RuntimeError, match="out of power"):
                site.engine().replay_dead_letters(good(site), max_rows=1)
        site.engine().replay_dead_letters(good(site), max_rows=1)
        expected += [(key, 3, 3), (key, 13, 16)]
        assert site.outputs() == sorted(expected, key=repr), step
    assert site.state() == {f"k{n}": 16 for n in range(len(steps))}
    assert site.engine().list_dead_letters(good(site)) == []


class Late(KeyedProcessFunction):
    """Emits whether an element is late; raises on bad elements."""

    def __init__(self, *, refused: str = "") -> None:
        self.refused = refused

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        if value.what == self.refused:
            raise ValueError("refused")
        at = ctx.timestamp()
        assert at is not None
        yield value.what, at, at <= ctx.timer_service().current_watermark()


class Passes(KeyedProcessFunction):
    def __init__(self, *, refused: str = "") -> None:
        self.refused = refused

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        if value.what == self.refused:
            raise ValueError("refused")
        yield value.what, value.n


@pytest.mark.parametrize(
    "few_rows", [USUAL.rows, pytest.param(0, marks=pytest.mark.long)], ids=["driver", "spark"]
)
def test_records_go_to_their_source_and_rows_of_a_chain_to_their_operator(
    tmp_path: Path, spark: SparkSession, limits: SetLimits, few_rows: int
) -> None:
    """They are late by their event time, and read with the current schema, whoever routes them."""
    limits(rows=few_rows)
    feed = tmp_path / "feed"
    feed.mkdir()
    lines: list[dict[str, Any]] = [
        {"what": "first", "at": "2026-01-01T00:00:01Z", "n": 1},
        {"what": "chained", "at": "2026-01-01T00:00:02Z", "n": 1},
        {"what": "record", "at": "2026-01-01T00:00:03Z", "n": "many"},
        {"what": "last", "at": "2026-01-01T00:00:09Z", "n": 1},
    ]
    (feed / "a.json").write_text("\n".join(map(json.dumps, lines)))
    engine = StateEngine(tmp_path / "root", spark)

    def job(kind: str, refused: str = "") -> StatefulJob:
        job = StatefulJob(
            "events", on_error="dead_letter", max_dead_letters=DeadLetterLimit(rows=2, share=0.9)
        )
        source = FileSource(str(feed), schema=f"what string, at timestamp, n {kind}", format="json")
        events = job.source("events", source, order_by=["at"], event_time="at")
        passed = events.key_by("what").process(Passes(), uid="passes", output_type=f"what string, n {kind}")
        late = passed.key_by("what").process(
            Late(refused=refused), uid="late", output_type="what string, at bigint, late boolean"
        )
        late.sink("out", DeltaSink(str(tmp_path / "out")))
        return job

    def outputs() -> dict[str, bool]:
        rows = DeltaTable(str(tmp_path / "out")).to_pyarrow_table().to_pylist()
        assert len({r["what"] for r in rows}) == len(rows)
        return {r["what"]: r["late"] for r in rows}

    (batch,) = engine.run(job("bigint", "chained")).batches
    assert (batch.rows_in, batch.rows_refused) == (4, 2)
    letters = engine.list_dead_letters(job("bigint"))
    assert sorted((one.operator, one.source, one.input) for one in letters) == [
        ("late", None, 0), ("passes", "events", None),
    ]  # fmt: skip
    (chained,) = [one for one in letters if one.operator == "late"]
    assert chained.event_ms == 1_767_225_602_000
    assert outputs() == {"first": False, "last": False}

    report = engine.replay_dead_letters(job("string"))
    assert (len(report.sent), len(report.batches), report.refused) == (2, 2, 0)
    assert outputs() == {"first": False, "last": False, "chained": True, "record": True}
    (feed / "b.json").write_text(json.dumps(lines[0] | {"what": "later", "at": "2026-01-01T00:01:00Z"}))
    engine.run(job("string"))
    assert outputs()["later"] is False


@dataclass(frozen=True)
class Rule:
    """A broadcast element: a class with a method, which sent letters have, too."""

    name: str
    factor: int

    def checked(self, refused: str) -> int:
        if self.name == refused:
            raise ValueError("refused")
        return self.factor


RULES = MapStateDescriptor("rules", Types.STRING(), Types.LONG())


class Applies(KeyedBroadcastProcessFunction):
    """Multiplies by all rules; raises on bad elements, or on one element in some subtasks only."""

    def __init__(self, *, refused: str = "", moody: bool = False) -> None:
        self.refused, self.moody = refused, moody

    def open(self, runtime_context: RuntimeContext) -> None:
        self.subtask = runtime_context.get_index_of_this_subtask()

    def process_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext) -> Any:
        yield value.k, value.v * prod(v for _, v in ctx.get_broadcast_state(RULES).items())

    def process_broadcast_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.Context) -> None:
        if self.moody and self.subtask:
            raise ValueError("not here")
        ctx.get_broadcast_state(RULES).put(value.name, value.checked(self.refused))


def test_a_broadcast_element_is_one_letter_and_every_subtask_gets_it_again(
    tmp_path: Path, spark: SparkSession
) -> None:
    rules, engine = [Rule("double", 2), Rule("triple", 3)], StateEngine(tmp_path / "root", spark)

    def job(rows: int, **options: Any) -> StatefulJob:
        job = StatefulJob("rules", parallelism=3, on_error="dead_letter")
        rules_stream = job.from_collection(rules, Rule, name="rules")
        given = [(f"k{n % 8}", n) for n in range(rows)]
        values = job.from_collection(given, "k string, v bigint", name="given")
        out = values.key_by("k").connect(rules_stream.broadcast(RULES))
        applied = out.process(Applies(**options), uid="applies", output_type="k string, v bigint")
        applied.sink("out", DeltaSink(str(tmp_path / "out")))
        return job

    def outputs() -> list[int]:
        return sorted(DeltaTable(str(tmp_path / "out")).to_pyarrow_table()["v"].to_pylist())

    with pytest.raises(StatelakeError, match=r"operator 'applies': .* refused by some subtasks and taken by"):
        engine.run(job(8, moody=True))
    assert engine.checkpoints("rules") == []
    (batch,) = engine.run(job(8, refused="triple")).batches
    assert batch.rows_refused == 1
    (letter,) = engine.list_dead_letters(job(8))
    assert (letter.source, letter.input, letter.problem) == ("rules", 1, "")
    assert outputs() == [2 * n for n in range(8)]
    report = engine.replay_dead_letters(job(8))
    assert (report.sent, report.refused, report.left) == ([letter.id], 0, {})
    assert engine.list_dead_letters(job(8)) == []
    engine.run(job(16))  # keys of all subtasks
    assert outputs() == sorted([2 * n for n in range(8)] + [6 * n for n in range(8, 16)])


def test_a_batch_that_refuses_too_much_is_not_committed(tmp_path: Path, spark: SparkSession) -> None:
    site = Site(tmp_path, spark).put({"k": ["a"] * 4, "v": [1, 3, 3, 3]})
    job = bad(site)
    job.max_dead_letters = DeadLetterLimit(share=0.5)
    with pytest.raises(DeadLetterLimitError) as caught:
        site.engine().run(job)
    for part in (
        "job 'tiny': 3 of 4 rows were refused (75.0 %)",
        "operator 'sums'",
        "0.parquet, row 1",
        "KeyError",
    ):
        assert part in str(caught.value)
    assert site.nothing_happened()
    job.max_dead_letters = DeadLetterLimit(rows=3, share=0.75)
    site.engine().run(job)
    assert len(site.dead_letters()) == 3


def test_what_cannot_be_sent_says_why(tmp_path: Path, spark: SparkSession) -> None:
    site = Site(tmp_path, spark).put(ROWS)
    engine = site.engine()
    engine.run(bad(site))
    renamed = site.job(uid="other", on_error="dead_letter")
    DataStream(renamed, renamed.operators["other"]).key_by("k").process(Sum(), uid="more", output_type=OUTPUT)
    (letter,) = engine.list_dead_letters(renamed)
    assert letter.problem == "the job no longer has an operator 'sums'"
    with pytest.raises(ConfigurationError, match="cannot be sent again: the job no longer has an operator"):
        engine.replay_dead_letters(renamed, ids=[letter.id])
    assert engine.replay_dead_letters(renamed).left == {"1:1": letter.problem}
    with pytest.raises(ConfigurationError, match="'_dead_letters' is the job's own"):
        DataStream(renamed, renamed.operators["more"]).key_by("k").process(
            Sum(), uid="_dead_letters", output_type=OUTPUT
        )
    table = pa.table({"k": ["a"], "v": [5]})
    site.put(table, "1")
    engine.run(good(site))
    engine.spark.sql(f"DELETE FROM delta.`{tmp_path}/root/tiny/dead_letters`")
    assert engine.list_dead_letters(good(site)) == []
