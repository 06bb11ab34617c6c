"""Rules by row in whole jobs, against plain loops: which rows go on, how many are counted, and what is committed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from state_engine import (
    DataStream,
    FileSource,
    OutputTag,
    ProcessFunction,
    RowKind,
    StatefulJob,
    Types,
)
from state_engine.core.errors import ConfigurationError, GateError, UserFunctionError
from state_engine.testing import CollectSink, run_in_memory
from tests.support.changes import ACCOUNT, as_rows, history, kinds_and_values
from tests.support.pipelines import MemoryPipeline, Pipeline

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SCHEMA = "n bigint, k string, v bigint, at timestamp"
Event = tuple[int, str, int | None, datetime]


def events(rng: random.Random, number: int) -> list[Event]:
    return [
        (
            n,
            rng.choice("abc"),
            rng.choice([None, *range(-3, 8)]),
            EPOCH + timedelta(milliseconds=n + rng.randint(-4, 4)),
        )
        for n in range(number)
    ]


def not_seven(rows: pa.Table) -> pa.Array:
    return pc.not_equal(rows["v"], 7)


def meets(event: Event) -> bool:
    return event[2] is not None and event[2] > 0


class Tagged(ProcessFunction):
    """Each element with the watermark and its time, which depend on the order and on what moved time."""

    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Any:
        yield value[0], ctx.timestamp(), ctx.timer_service().current_watermark()


def build(filtered: Callable[[DataStream], DataStream]) -> Callable[[StatefulJob], Mapping[str, DataStream]]:
    def wired(job: StatefulJob) -> Mapping[str, DataStream]:
        rows = job.source(
            "rows", FileSource("/in", schema=SCHEMA), event_time="at", max_out_of_orderness="3 ms"
        )
        good = filtered(rows)
        seen = good.process(Tagged(), "n bigint, at bigint, watermark bigint", uid="tagged")
        merged = good.union(rows).process(Tagged(), "n bigint, at bigint, watermark bigint", uid="both")
        return {
            "rows": good,
            "seen": seen,
            "merged": merged,
            "sums": good.key_by("k").sum("v", uid="sums"),
        }

    return wired


@pytest.mark.parametrize("seed", range(8))
def test_a_rule_that_drops_is_a_filter_wherever_batches_are_cut(seed: int) -> None:
    rng = random.Random(seed)
    given = events(rng, 30)
    cuts = sorted(rng.sample(range(1, 30), rng.randint(0, 4)))
    parts = [given[a:b] for a, b in zip([0, *cuts], [*cuts, 30], strict=True)]
    expecting = build(lambda rows: rows.expect("v_positive", "v > 0", rng.choice(["drop", "dead_letter"])))
    filtering = build(lambda rows: rows.filter(lambda row: row.v is not None and row.v > 0, uid="v_positive"))
    outputs = []
    for wired in (expecting, filtering):
        with run_in_memory(_job(wired, parallelism=rng.randint(1, 3))) as run:
            for part in parts:
                run.process({"rows": part})
            outputs.append({name: sorted(run.sink(name)) for name in ("rows", "seen", "merged", "sums")})
            counts = [row.expectations for row in run.checkpoints()]
            refused = [row.rows_refused for row in run.checkpoints()]
        if wired is expecting:
            broken = [sum(not meets(event) for event in part) for part in parts]
            assert [(one.rows, one.broken) for (one,) in counts] == [
                (len(part), number) for part, number in zip(parts, broken, strict=True)
            ]
            assert refused in (broken, [0] * len(parts))
    assert outputs[0] == outputs[1]
    assert len(outputs[0]["rows"]) == sum(map(meets, given))


def _job(wired: Callable[[StatefulJob], Mapping[str, DataStream]], **options: Any) -> StatefulJob:
    job = StatefulJob("pipeline", **options)
    for name, stream in wired(job).items():
        stream.sink(name, CollectSink())
    return job


def payments(otherwise: Any = "warn", rule: Any = "amount > 0", **options: Any) -> StatefulJob:
    job = StatefulJob("payments", **options)
    rows = job.source("rows", FileSource("/in", schema="id bigint, amount bigint"))
    checked = rows.expect("amount_positive", rule, otherwise)
    checked.sink("out", CollectSink())
    checked.key_by("id").sum("amount", uid="sums").sink("sums", CollectSink())
    return job


PAID = [(1, 5), (2, -5), (3, None), (1, 7)]


@pytest.mark.parametrize("rule", ["amount > 0", lambda rows: pc.greater(rows["amount"], 0)])
@pytest.mark.parametrize(
    ("otherwise", "kept", "refused"),
    [("warn", PAID, 0), ("drop", PAID[::3], 0), ("dead_letter", PAID[::3], 2)],
)
@pytest.mark.parametrize("parallelism", [1, 3])
def test_what_becomes_of_rows_that_break_a_rule(
    otherwise: str, kept: list[Any], refused: int, rule: Any, parallelism: int
) -> None:
    with run_in_memory(payments(otherwise, rule, parallelism=parallelism)) as run:
        out = run.process({"rows": PAID})
        assert sorted(map(tuple, out["out"]), key=repr) == sorted(kept, key=repr)
        (row,) = run.checkpoints()
        (counted,) = row.expectations
        assert (counted.name, counted.otherwise, counted.rows, counted.broken) == (
            "amount_positive",
            otherwise,
            4,
            2,
        )
        assert row.rows_refused == refused
        run.process({"rows": [(4, 1)]})
        assert [(one.rows, one.broken) for row in run.checkpoints() for one in row.expectations] == [
            (4, 2),
            (1, 0),
        ]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_rule_that_fails_commits_nothing_and_names_rows(parallelism: int) -> None:
    many = [(n, -n) for n in range(8)]
    with run_in_memory(payments("fail", parallelism=parallelism)) as run:
        run.process({"rows": [(9, 1)]})
        with pytest.raises(GateError) as failed:
            run.process({"rows": [(9, 2), *many]})
        said = str(failed.value)
        assert failed.value.rule == "amount_positive"
        assert "8 rows break the expectation 'amount_positive' (amount > 0), of 9: source 'rows', " in said
        assert said.count('{"id": ') == 5
        assert "Nothing of this micro-batch was committed" in said
        assert "otherwise='dead_letter'" in said
        assert len(run.checkpoints()) == 1
        assert [tuple(row) for row in run.process({"rows": [(9, 2)]})["sums"]] == [(9, 3)]


def test_a_restore_and_a_replay_count_the_same() -> None:
    with MemoryPipeline.of(_collection) as pipeline:
        pipeline.run(parallelism=2)
        first = [row.expectations for row in pipeline.checkpoints() if row.rows_in]
        assert sum(one.broken for counts in first for one in counts) == 3
        pipeline._run.restore(1)
        assert pipeline.checkpoints()[-1].expectations == []
        pipeline.run(parallelism=1)
        again = [row.expectations for row in pipeline.checkpoints() if row.rows_in]
        assert again == [*first, *first[1:]]


def _collection(job: StatefulJob) -> Mapping[str, DataStream]:
    numbers = job.from_collection([*range(10)], Types.LONG(), max_rows_per_batch=4)
    return {"out": numbers.expect("above", "value > 2", "drop")}


def test_several_rules_count_the_rows_that_come_to_them() -> None:
    job = StatefulJob("payments")
    rows = job.source("rows", FileSource("/in", schema=SCHEMA))
    rows.expect_or_drop("positive", "v > 0").expect("small", "v < 5").expect_or_fail(
        "not_seven", not_seven
    ).sink("out", CollectSink())
    with run_in_memory(job) as run:
        run.process({"rows": [(1, "a", 1, EPOCH), (2, "a", -1, EPOCH), (3, "a", 6, EPOCH)]})
        report = {
            one.name: (one.otherwise, one.rows, one.broken) for one in run.checkpoints()[0].expectations
        }
        assert report == {
            "positive": ("drop", 3, 1),
            "small": ("warn", 2, 1),
            "not_seven": ("fail", 2, 0),
        }
        with pytest.raises(
            GateError, match=r"1 row breaks the expectation 'not_seven' \(not_seven\(rows\)\)"
        ):
            run.process({"rows": [(1, "a", 7, EPOCH)]})


def test_late_rows_that_a_side_output_takes_are_not_judged() -> None:
    late, job = OutputTag("late", SCHEMA), StatefulJob("late")
    rows = job.source("rows", FileSource("/in", schema=SCHEMA), event_time="at", late_to=late)
    good = rows.expect("positive", "v > 0", "drop")
    good.sink("out", CollectSink())
    good.get_side_output(late).sink("late", CollectSink())
    at = EPOCH + timedelta(hours=1)
    with run_in_memory(job) as run:
        given = [(1, "a", 1, at), (2, "a", -1, EPOCH), (3, "a", 2, EPOCH), (4, "a", -4, at), (5, "a", 5, at)]
        out = run.process({"rows": given})
        assert [[row.n for row in out[name]] for name in ("out", "late")] == [[1, 5], [2, 3]]
        (counted,) = run.checkpoints()[0].expectations
        assert (counted.rows, counted.broken) == (3, 1)


def test_updates_and_deletes_are_judged_as_inserts_are() -> None:
    changes = history(3, 60)
    outputs = []
    for expects in (True, False):
        job = StatefulJob("accounts")
        rows = job.from_collection(
            as_rows(changes, "id", "owner", "amount"), ACCOUNT, changing=True, max_rows_per_batch=7
        )
        kept = (
            rows.expect("enough", "amount > 3", "drop")
            if expects
            else rows.filter(lambda row: row.amount > 3, uid="enough")
        )
        kept.sink("out", CollectSink())
        with run_in_memory(job) as run:
            run.run()
            outputs.append(kinds_and_values(run.sink("out")))
            broken = sum(one.broken for row in run.checkpoints() for one in row.expectations)
        assert broken == (sum(value[2] <= 3 for _, value in changes) if expects else 0)
    assert outputs[0] == outputs[1]
    assert {kind for kind, _ in outputs[0]} == set(RowKind)


def test_a_function_that_raises_ends_the_micro_batch() -> None:
    def raises(rows: pa.Table) -> pa.Array:
        return rows["missing"]

    with run_in_memory(payments("drop", raises)) as run:
        with pytest.raises(UserFunctionError, match="operator 'amount_positive': KeyError"):
            run.process({"rows": PAID})
        assert run.checkpoints() == []


def test_what_cannot_be_judged_is_refused_when_the_job_is_built() -> None:
    job = StatefulJob("payments")
    rows = job.source("rows", FileSource("/in", schema=SCHEMA))
    refused: list[tuple[Callable[[], Any], str]] = [
        (lambda: rows.expect("a", "other > 0"), "expectation 'a': 'other > 0': there is no column 'other'"),
        (lambda: rows.expect("a", "v"), "gives values of type int64, not true or false"),
        (lambda: rows.expect("a", 7), "a rule is SQL text or a function from a pyarrow.Table"),  # type: ignore[arg-type]
        (lambda: rows.expect("a", "v > 0", "ignore"), "otherwise of expectation 'a'"),  # type: ignore[arg-type]
        (lambda: rows.key_by("k").expect("a", "v > 0"), "call expect before key_by and broadcast"),
        (lambda: rows.broadcast().expect("a", "v > 0"), "call expect before key_by and broadcast"),
    ]
    for call, says in refused:
        with pytest.raises(ConfigurationError) as error:
            call()
        assert says in str(error.value)
    rows.expect("a", "v > 0")
    with pytest.raises(ConfigurationError, match="'a'"):
        rows.expect("a", "v > 1")


FILES = {"one": [(1, 5), (2, -5)], "two": [(3, -1), (1, 7)], "three": [(4, 4)]}


def on_files(directory: Path, otherwise: Any, rule: str = "v > 0") -> Callable[[StatefulJob], Any]:
    def wired(job: StatefulJob) -> Mapping[str, DataStream]:
        source = FileSource(str(directory / "in"), format="json", schema="k bigint, v bigint")
        good = job.source("rows", source).expect("v_positive", rule, otherwise)
        return {"out": good, "sums": good.key_by("k").sum("v", uid="sums")}

    return wired


def _put(directory: Path, *names: str) -> None:
    (directory / "in").mkdir(exist_ok=True)
    for name in names:
        lines = "".join(f'{{"k": {k}, "v": {v}}}\n' for k, v in FILES[name])
        (directory / "in" / f"{name}.json").write_text(lines)


@pytest.mark.spark
@pytest.mark.spark_tasks
def test_on_spark_letters_of_a_rule_are_sent_again_and_sql_has_its_counts(
    tmp_path: Path, spark: SparkSession
) -> None:
    _put(tmp_path, "one", "two")
    pipeline = Pipeline(tmp_path, spark, on_files(tmp_path, "dead_letter"), parallelism=2)
    report = pipeline.run()
    assert report.broken == {"v_positive": 2}
    assert sorted(pipeline.outputs()["out"]) == [(1, 5), (1, 7)]
    with pipeline.engine() as engine:
        letters = engine.list_dead_letters(pipeline.job())
        assert sorted(one.row or "" for one in letters) == ['{"k": 2, "v": -5}', '{"k": 3, "v": -1}']
        assert {one.error for one in letters} == {"expectation 'v_positive' is not met: v > 0"}
        assert {one.problem for one in letters} == {""}
        other = Pipeline(tmp_path, spark, on_files(tmp_path, "dead_letter", "v > -2"), parallelism=2)
        again = engine.replay_dead_letters(other.job())
        assert (len(again.sent), again.refused) == (2, 1)
        shown = engine.sql("pipeline", "SELECT * FROM expectations ORDER BY checkpoint_id").toArrow()
    assert shown.drop_columns(["checkpoint_id", "on_path"]).to_pylist() == [
        {
            "expectation": "v_positive",
            "rule": rule,
            "otherwise": "dead_letter",
            "rows": rows,
            "broken": broken,
        }
        for rule, rows, broken in (("v > 0", 4, 2), ("v > -2", 2, 1))
    ]
    assert sorted(pipeline.outputs()["out"]) == [(1, 5), (1, 7), (3, -1)]


@pytest.mark.spark
def test_on_spark_a_rule_that_fails_names_files_and_leaves_nothing(
    tmp_path: Path, spark: SparkSession
) -> None:
    _put(tmp_path, "three")
    pipeline = Pipeline(tmp_path, spark, on_files(tmp_path, "fail"), parallelism=2)
    pipeline.run()
    _put(tmp_path, "one", "two")
    before = sorted(path for path in (tmp_path / "root").rglob("*.parquet"))
    with pytest.raises(GateError) as failed:
        pipeline.run()
    assert "2 rows break the expectation 'v_positive' (v > 0), of 4: source 'rows', file:" in str(
        failed.value
    )
    assert 'one.json, row 1: {"k": 2, "v": -5}' in str(failed.value)
    assert sorted(path for path in (tmp_path / "root").rglob("*.parquet")) == before
    (tmp_path / "in" / "one.json").write_text('{"k": 1, "v": 5}\n')
    (tmp_path / "in" / "two.json").unlink()
    assert pipeline.run().broken == {"v_positive": 0}
    assert sorted(pipeline.outputs()["out"]) == [(1, 5), (4, 4)]
