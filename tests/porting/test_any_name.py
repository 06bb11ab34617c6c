"""Any name that Flink allows names a state, a side output or an operator: in the harness and on the engine alike.

Names of Flink's documents, names that are paths, SQL or markup, and pairs of names that differ in case only.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from state_engine import (
    CheckpointedFunction,
    DataStream,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    OutputTag,
    RuntimeContext,
    StatefulJob,
    Types,
    ValueStateDescriptor,
    open_state,
)
from state_engine.cli.main import app
from state_engine.core.names import stored_name
from state_engine.testing import KeyedHarness
from tests.support.names_of_flink import NAMES_OF_FLINK
from tests.support.pipelines import Pipeline

HOSTILE = [
    "../../up",
    "/etc/passwd",
    "`x`; DROP TABLE y --",
    "[/red]",
    "a\nb\0c",
    "--help",
    "日本",
    "x" * 255,
]
IN_TWO_CASES = ["total", "Total", "TOTAL", "text_state", "Text_State"]
STATES = [*NAMES_OF_FLINK, *HOSTILE, *IN_TWO_CASES]
UID, CHAINED, AGAIN = "Fraud-Detector/../../x", "side-output", "Side-Output"
LATE, LATER = OutputTag("late-data", Types.LONG()), OutputTag("Late-Data", Types.LONG())
PAIRS = [("a", 1), ("b", 2), ("a", 3), ("b", 4), ("a", 5)]
PAIR = Types.TUPLE([Types.STRING(), Types.LONG()])


class Named(KeyedProcessFunction):
    """Adds a different number to the state of each name, so that mixed-up states are detected."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def open(self, runtime_context: RuntimeContext) -> None:
        get = runtime_context.get_state
        self.states = [get(ValueStateDescriptor(name, Types.LONG(), default=0)) for name in self.names]

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        for step, state in enumerate(self.states, 1):
            state.update(state.value() + step * value[1])
        yield value[0], self.states[-1].value()
        yield LATE, value[1]
        yield LATER, -value[1]


class Buffered(MapFunction, CheckpointedFunction):
    """Keeps its elements in operator state of a name."""

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.seen = store.get_list_state(ListStateDescriptor("buffered-elements", Types.LONG()))
        self.rules = store.get_broadcast_state(
            MapStateDescriptor("RulesBroadcastState", Types.STRING(), Types.LONG())
        )

    def snapshot_state(self, context: Any) -> None:
        pass

    def map(self, value: int) -> int:
        self.seen.add(value)
        return value


def build(job: StatefulJob) -> dict[str, DataStream]:
    pairs = job.from_collection(PAIRS, PAIR, name="pairs", max_rows_per_batch=2)
    named = pairs.key_by("f0").process(Named(STATES), uid=UID, output_type=PAIR)
    late, later = named.get_side_output(LATE), named.get_side_output(LATER)
    return {
        "out": named,
        "late": late.map(Buffered(), Types.LONG(), uid=CHAINED).set_parallelism(1),
        "later": later.map(Buffered(), Types.LONG(), uid=AGAIN).set_parallelism(1),
    }


def totals(name: str) -> list[tuple[str, int]]:
    step = STATES.index(name) + 1
    return [("a", 9 * step), ("b", 6 * step)]


def check_states(pipeline: Pipeline) -> None:
    for name in STATES:
        state = open_state.read_state(pipeline.directory / "root", "pipeline", UID, name)
        assert sorted(zip(*(state[c].to_pylist() for c in ("f0", "value")), strict=True)) == totals(name), (
            name
        )


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=255), min_size=1, unique=True
    )
)
def test_names_in_the_harness(names: list[str]) -> None:
    names = [name for name in names if name != "_timers"] or ["Only"]
    harness = KeyedHarness(Named(names), key_by=lambda pair: pair[0], parallelism=2)
    harness.process(PAIRS[:2])
    again = KeyedHarness.restored(
        Named(names), harness.snapshot(), key_by=lambda pair: pair[0], parallelism=3
    )
    again.process(PAIRS[2:])
    for step, name in enumerate(names, 1):
        assert again.state(name) == {"a": 9 * step, "b": 6 * step}
    assert again.side_output(LATE) == [3, 4, 5]
    assert again.side_output(LATER) == [-3, -4, -5]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Pipeline:
    """A job with such names, after three micro-batches and a compaction between them."""
    pipeline = Pipeline(tmp_path_factory.mktemp("names"), spark, build, parallelism=2)
    pipeline.run(max_batches=2)
    with pipeline.engine() as engine:
        engine.compact("pipeline")
    pipeline.run()
    return pipeline


@pytest.mark.spark
def test_names_on_the_engine(ran: Pipeline) -> None:
    outputs = ran.outputs()
    last = len(STATES)
    sums = [("a", 1), ("b", 2), ("a", 4), ("b", 6), ("a", 9)]
    assert sorted(outputs["out"]) == sorted((key, n * last) for key, n in sums)
    assert sorted(outputs["late"]) == [1, 2, 3, 4, 5]
    assert sorted(outputs["later"]) == [-5, -4, -3, -2, -1]
    assert ran.state(UID, "text state") == totals("text state")
    check_states(ran)
    with ran.engine() as engine:
        [recorded] = engine.checkpoints("pipeline")[-1].operators
        assert {s.name: s.column_name for s in recorded.states} == {n: stored_name(n) for n in STATES}
        stored = engine.sql(
            "pipeline", "SELECT operator, state, value FROM operator_state ORDER BY ALL"
        ).collect()
    assert [tuple(r) for r in stored] == [
        *((AGAIN, "buffered-elements", str(n)) for n in (-1, -2, -3, -4, -5)),
        *((CHAINED, "buffered-elements", str(n)) for n in (1, 2, 3, 4, 5)),
    ]


@pytest.mark.spark
def test_nothing_lies_elsewhere_and_columns_are_identifiers(ran: Pipeline) -> None:
    job = ran.directory / "root" / "pipeline"
    assert [p.name for p in (job / "operators").iterdir()] == [stored_name(UID)]
    assert {p.name for p in ran.directory.iterdir()} == {"root", "out"}
    assert {p.name for p in (ran.directory / "root").iterdir()} <= {
        "_statelake.json",
        ".statelake.lock",
        "pipeline",
    }
    columns = (
        DeltaTable(str(job / "operators" / stored_name(UID) / "changelog")).to_pyarrow_table().schema.names
    )
    assert {f"v_{stored_name(name)}" for name in STATES} <= set(columns)
    assert len({c.lower() for c in columns}) == len(columns)


@pytest.mark.spark
def test_states_are_asked_for_in_sql(ran: Pipeline) -> None:
    with ran.engine() as engine:

        def ask(view: str) -> list[Any]:
            return sorted(tuple(r) for r in engine.sql("pipeline", f"SELECT f0, value FROM {view}").collect())

        assert ask("`text state`") == totals("text state")
        assert ask("`late-data`") == totals("late-data")
        assert ask("sumOfTips") == totals("sumOfTips")
        assert ask("```x``; DROP TABLE y --`") == totals("`x`; DROP TABLE y --")
        for name in ("total", "Total", "TOTAL", "text_state", "Text_State"):  # views have no case
            assert ask(f"{stored_name(UID)}__{stored_name(name)}") == totals(name)
        views = engine.list_views("pipeline")
        assert len({v.name.lower() for v in views}) == len(views)
        assert {"`text state`", "`saved ride`", "sumOfTips"} <= {v.sql_name for v in views}


@pytest.mark.spark
def test_names_go_through_savepoints_restores_and_commands(
    ran: Pipeline, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ran.engine() as engine:
        engine.savepoints("pipeline").create("before", path=str(tmp_path / "before"))
        changed = engine.diff("pipeline", 1, 4, operator=UID, state="../../up")
        assert sum(sum(one.counts().values()) for one in changed) == 2
    other = Pipeline(tmp_path, spark, build, parallelism=3)
    with other.engine() as engine:
        engine.restore(other.job(), savepoint=str(tmp_path / "before"))
    other.run()
    check_states(other)
    monkeypatch.setenv("STATELAKE__ROOT", str(tmp_path / "root"))
    for arguments in (["status", "pipeline"], ["checkpoints", "pipeline"], ["compact", "pipeline"]):
        done = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert done.exit_code == 0, done.output
