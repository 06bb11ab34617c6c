"""A time of day is shown as text, wherever it stands in a state and however the state is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import time
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from state_engine import (
    DataStream,
    KeyedProcessFunction,
    KeyedStream,
    ListStateDescriptor,
    MapStateDescriptor,
    RuntimeContext,
    StatefulJob,
    Types,
    ValueStateDescriptor,
    open_state,
)
from state_engine.core.errors import ConfigurationError
from state_engine.core.keys.key_form import DeclaredKey
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.types.every_type import TimeType
from state_engine.dagster.metadata import state_metadata
from state_engine.monitoring.job_history import read_history
from state_engine.queries.fold_sql import read_sql
from state_engine.queries.portable_sql import answer
from state_engine.queries.state_views import ViewedJob, views_of
from tests.support.pipelines import Pipeline

HALF_PAST, LAST = time(9, 30), time(23, 59, 59, 1)
A, B = "09:30:00", "23:59:59.000001"


class Visit(NamedTuple):
    at: time | None
    n: int = 1


VALUES: dict[str, tuple[Any, Any, Any]] = {
    "plain": (time, HALF_PAST, A),
    "record": (Visit, Visit(LAST, 3), {"at": B, "n": 3}),
    "nothing_in_a_record": (Visit, Visit(None), {"at": None, "n": 1}),
    "times": (list[time], [HALF_PAST, None, LAST], [A, None, B]),
    "records": (list[Visit], [Visit(LAST), Visit(HALF_PAST, 2)], [{"at": B, "n": 1}, {"at": A, "n": 2}]),
    "by_number": (dict[int, time], {1: LAST}, [(1, B)]),
    "by_time": (dict[time, list[Visit]], {HALF_PAST: [Visit(LAST)]}, [(A, [{"at": B, "n": 1}])]),
}
"""By the place of a time: the type of a value, a value, and how it is shown."""
SHOWN = {
    **{name: shown for name, (_, _, shown) in VALUES.items()},
    "elements": [B, A],
    "entries": (A, {"at": B, "n": 1}),
}


class Keeps(KeyedProcessFunction):
    """Keeps times in each place."""

    def open(self, runtime_context: RuntimeContext) -> None:
        values = {name: ValueStateDescriptor(name, kind) for name, (kind, _, _) in VALUES.items()}
        self.values = {name: runtime_context.get_state(one) for name, one in values.items()}
        self.elements = runtime_context.get_list_state(ListStateDescriptor("elements", time))
        self.entries = runtime_context.get_map_state(MapStateDescriptor("entries", time, Visit))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[int]:
        for name, (_, given, _) in VALUES.items():
            self.values[name].update(given)
        self.elements.update([LAST, HALF_PAST])
        self.entries.put(HALF_PAST, Visit(LAST))
        yield value.v


def build(job: StatefulJob) -> dict[str, DataStream]:
    rows = job.from_collection([("b", 1), ("a", 1)], "k string, v int", name="rows", max_rows_per_batch=1)
    return {"out": rows.key_by("k").process(Keeps(), uid="keeps", output_type=int)}


def shown(rows: pa.Table) -> Any:
    """What the entry of a key shows: its value, of a map with its key."""
    (row,) = [row for row in rows.to_pylist() if row["k"] == "a"]
    parts = [row[name] for name in ("map_key", "value", "after") if name in row]
    return parts[0] if len(parts) == 1 else tuple(parts)


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[dict[str, Any]]:
    """Each gives what a state shows."""
    directory = tmp_path_factory.mktemp("times")
    pipeline = Pipeline(directory, spark, build)
    pipeline.run()
    root = directory / "root"
    history = read_history(str(root), "pipeline")
    assert history is not None
    views = views_of(
        ViewedJob(history.layout, history.checkpoints, history.path, lambda _: pytest.fail("Spark"))
    )
    with pipeline.engine() as engine:
        explained = engine.explain("pipeline", {"k": "a"}).events[-1].states
        after = {one.state: one.after for one in explained}
        yield {
            "pipeline": pipeline,
            "a DataFrame": lambda s: shown(engine.read_state("pipeline", "keeps", s).toArrow()),
            "SQL of Spark": lambda s: shown(engine.sql("pipeline", query(s)).toArrow()),
            "SQL of DuckDB": lambda s: shown(answer(views, query(s))),
            "Arrow": lambda s: shown(open_state.read_state(root, "pipeline", "keeps", s)),
            "diff": lambda s: shown(engine.diff("pipeline", 1, 2, state=s)[0].changes.toArrow()),
            "explain": lambda s: one_pair(after[s]) if s == "entries" else after[s],
        }


def test_what_a_query_shows_begins_the_state_of_another_job(
    readers: dict[str, Any], spark: SparkSession, tmp_path: Path
) -> None:
    other = Pipeline(tmp_path, spark, build)
    with readers["pipeline"].engine() as engine, other.engine() as target:
        frames = {
            state: engine.read_state("pipeline", "keeps", state).select(
                "k", *(["map_key"] if state == "entries" else []), "value"
            )
            for state in SHOWN
        }
        processor = target.state_processor(other.job())
        wrong = frames["plain"].withColumn("value", F.lit("25:00:00"))
        with pytest.raises(ConfigurationError, match=r"'value' must be a time of day.*25:00:00"):
            processor.bootstrap({"keeps": {"plain": wrong}}, positions={"rows": "all"})
        processor.bootstrap({"keeps": frames}, positions={"rows": "all"})
        assert {s: shown(target.read_state("pipeline", "keeps", s).toArrow()) for s in SHOWN} == SHOWN


def query(state: str) -> str:
    return f"SELECT k, {'map_key, ' if state == 'entries' else ''}value FROM {state}"


def one_pair(pairs: Any) -> Any:
    ((key, value),) = (pair.values() for pair in pairs)
    return key, value


@pytest.mark.parametrize(
    "reader", ["a DataFrame", "SQL of Spark", "SQL of DuckDB", "Arrow", "diff", "explain"]
)
def test_a_time_of_day_is_text_wherever_it_stands(readers: dict[str, Any], reader: str) -> None:
    assert {state: readers[reader](state) for state in SHOWN} == SHOWN


def test_spark_shows_each_time_as_arrow_does(spark: SparkSession) -> None:
    micros = [0, 1, 999_999, 1_000_000, 34_200_000_000, 86_399_999_999, 86_400_000_000, -1, None]
    stored = pa.array(micros, pa.int64())
    frame = spark.createDataFrame(pa.table({"v": stored}))
    answer = frame.selectExpr(f"{read_sql('v', TimeType(), stored.type)} AS v").toArrow()["v"]
    assert answer.to_pylist() == TimeType().as_text(stored).to_pylist()


# -- keys --------------------------------------------------------------------------------------------------------------


class Seen(NamedTuple):
    seen: time
    times: int


VISITS = Types.ROW_NAMED(["k", "seen"], [Types.STRING(), Types.SQL_TIME()])
KEYS: dict[str, tuple[Callable[[DataStream], KeyedStream], Any, dict[str, Any], dict[str, Any]]] = {
    "a function": (lambda rows: rows.key_by(lambda row: row.seen, key_type=time), HALF_PAST, {"key": A}, {"key": B}),
    "a column": (lambda rows: rows.key_by("seen"), HALF_PAST, {"seen": A}, {"seen": B}),
    "two columns": (
        lambda rows: rows.key_by("k", "seen"), ("a", HALF_PAST), {"k": "a", "seen": A}, {"k": "b", "seen": B},
    ),
    "a record": (
        lambda rows: rows.key_by(lambda row: Seen(row.seen, 2), key_type=Seen), Seen(HALF_PAST, 2),
        {"seen": A, "times": 2}, {"seen": B, "times": 2},
    ),
}  # fmt: skip
"""By what makes a key: the stream, a key as functions see it, how it is shown, and how one that is refused is."""


class Counts(KeyedProcessFunction):
    """Counts the rows of a key; one is refused."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.n = runtime_context.get_state(ValueStateDescriptor("visits", int, default=0))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        if value.seen == LAST:
            raise ValueError("too late")
        self.n.update(self.n.value() + 1)
        yield str(ctx.get_current_key())


def counting(job: StatefulJob, by: str) -> dict[str, DataStream]:
    rows = job.from_collection(
        [("a", HALF_PAST), ("b", LAST), ("a", HALF_PAST)], VISITS, name="rows", max_rows_per_batch=1
    )
    return {"out": KEYS[by][0](rows).process(Counts(), uid="counts", output_type=str)}


@pytest.mark.parametrize("by", KEYS)
def test_a_time_of_day_in_a_key_is_text_as_in_a_value(tmp_path: Path, spark: SparkSession, by: str) -> None:
    _, key, shown_key, refused = KEYS[by]
    pipeline = Pipeline(tmp_path, spark, lambda job: counting(job, by), on_error="dead_letter")
    pipeline.run()
    root, names = tmp_path / "root", ", ".join(shown_key)
    history = read_history(str(root), "pipeline")
    assert history is not None
    views = views_of(
        ViewedJob(history.layout, history.checkpoints, history.path, lambda _: pytest.fail("Spark"))
    )
    row = shown_key | {"value": 2}
    with pipeline.engine() as engine:
        job = pipeline.job()
        assert plain(engine.read_state("pipeline", "counts", "visits").toArrow(), row) == [row]
        assert plain(engine.sql("pipeline", f"SELECT {names}, value FROM visits").toArrow(), row) == [row]
        assert plain(answer(views, f"SELECT {names}, value FROM visits"), row) == [row]
        assert plain(open_state.read_state(root, "pipeline", "counts", "visits"), row) == [row]
        (difference,) = engine.diff("pipeline", 1, 3, state="visits")
        assert plain(difference.changes.toArrow(), shown_key | {"after": 2}) == [shown_key | {"after": 2}]
        for given in (key, shown_key):
            history_of = engine.explain("pipeline", given)
            assert history_of.keys == {"counts": shown_key}
            assert [one.after for one in history_of.events[0].states] == [1]
            as_declared = engine.explain(job, given).keys["counts"]
            assert {
                n: p.isoformat() if isinstance(p, time) else p for n, p in as_declared.items()
            } == shown_key
            assert any(isinstance(p, time) for p in as_declared.values())
        assert [json.loads(letter.key or "") for letter in engine.list_dead_letters(job)] == [refused]
        columns = state_metadata(history.path, "counts", "visits", [])["key_columns"].schema.columns
        assert [one.name for one in columns if one.type == "time"] == [
            n for n in shown_key if n in ("seen", "key")
        ]
        erased = engine.state_processor(job).erase_keys([shown_key], dry_run=True).transform
        assert sum(state.deleted for state in erased.states) == 1
    other = Pipeline(tmp_path / "other", spark, lambda job: counting(job, by), on_error="dead_letter")
    with pipeline.engine() as engine, other.engine() as target:
        frame = engine.read_state("pipeline", "counts", "visits").select(*shown_key, "value")
        target.state_processor(other.job()).bootstrap(
            {"counts": {"visits": frame}}, positions={"rows": "all"}
        )
        assert plain(target.read_state("pipeline", "counts", "visits").toArrow(), row) == [row]


def plain(rows: pa.Table, columns: Iterable[str]) -> list[dict[str, Any]]:
    return rows.select(list(columns)).to_pylist()


def test_a_key_that_was_recorded_as_a_number_is_one_until_the_next_checkpoint() -> None:
    before = KeySchema.recorded("struct<`at`: bigint>", "struct<`at`: bigint>")
    today = DeclaredKey(("at",), (Types.SQL_TIME(),)).schema
    assert before.is_stored_like(today)
    assert today.is_stored_like(before)
    assert (before.shown, today.shown) == ((pa.int64(),), (pa.string(),))
    again = KeySchema.recorded(str(today), today.declared_text)
    assert (again.times, again.storage) == (("at",), before.storage)
