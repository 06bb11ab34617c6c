"""What ``statelake explain`` shows of the states of each operator of the library."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from pyspark.sql import SparkSession

from state_engine import DataStream, DeltaStateTable, FileSource, StatefulJob, count, sum_
from state_engine.cli.explain import history_lines
from state_engine.core.state.descriptors import TIMERS
from state_engine.dagster.declared import states_of
from tests.support.pipelines import Pipeline

ROW = "k string, n bigint, at timestamp"
EVENTS = [("a", 1, 1), ("a", 1, 2), ("a", 2, 4), ("b", 3, 5), ("a", 4, 9)]
PRICES = [("a", 70, 0), ("a", 71, 3), ("b", 72, 8)]


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Pipeline:
    """A job with every operator that lets rows wait or keeps some of them, after one micro-batch."""
    directory = tmp_path_factory.mktemp("operators")
    for name, rows in (("events", EVENTS), ("prices", PRICES)):
        (directory / name).mkdir()
        lines = [json.dumps({"k": k, "n": n, "at": f"1970-01-01T00:00:0{at}Z"}) for k, n, at in rows]
        (directory / name / "1.json").write_text("\n".join(lines))

    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        events, prices = (
            job.source(name, FileSource(str(directory / name), schema=ROW, format="json"), event_time="at",
                       max_out_of_orderness="2 s").key_by("k")
            for name in ("events", "prices")
        )  # fmt: skip
        newest = events.drop_duplicates(keep="last", uid="newest")
        newest.publish(DeltaStateTable(str(directory / "out" / "newest")))
        return {
            "first": events.drop_duplicates(uid="first"),
            "apart": events.drop_duplicates(within="2 s", uid="apart"),
            "in_order": events.drop_duplicates(within="2 s", emit="final", uid="in_order"),
            "met": events.join(prices, within="2 s", how="left", take=["n"], uid="met"),
            "priced": events.join_asof(prices, take=["n"], uid="priced"),
            "features": events.over(
                s=sum_("n", last="5 s"),
                two=count(last_rows=2),
                all=count(),
                forget_after="1 day",
                uid="features",
            ),
            "tiles": events.over(s=sum_("n", last="5 s"), tile="1 s", uid="tiles"),
            "silences": events.silent(after="3 s", back=True, take=["n"], uid="silences"),
            "funnel": events.sequence(1, 2, 9, by="n", within="1 min", take=["n"], uid="funnel"),
        }

    made = Pipeline(directory, spark, build, parallelism=2, max_parallelism=8)
    made.run()
    return made


WAITS = '[{"key": {"at": 9000, "n": 0}, "value": {"k": "a", "n": 4, "at": "1970-01-01T00:00:09Z"}}]'
STATES: dict[str, dict[str, str]] = {
    "first": {"seen": "true"},
    "apart": {"seen": '[{"key": 9000, "value": true}]'},
    "in_order": {"waiting": WAITS},
    "newest": {"row, shown by table row": '{"n": 4, "at": "1970-01-01T00:00:09Z", "row_time": 9000}'},
    "met": {
        "left": '[{"key": {"at": 4000, "n": 0}, "value": {"matched": true, "row": {"k": "a", "n": 2, '
        '"at": "1970-01-01T00:00:04Z"}}}, {"key": {"at": 9000, "n": 0}, "value": {"matched": false, '
        '"row": {"k": "a", "n": 4, "at": "1970-01-01T00:00:09Z"}}}]',
    },
    "priced": {
        "versions": '[{"key": 3000, "value": {"row": {"k": "a", "n": 71, "at": "1970-01-01T00:00:03Z"}}}]',
        "waiting": WAITS,
    },
    "features": {
        "aggregates": '{"rows": 3}',
        "last_row": "4000",
        "rows": '[{"key": {"at": 1000, "n": 0}, "value": {"n": 1}}, {"key": {"at": 2000, "n": 0}, "value": {"n": 1}}, '
        '{"key": {"at": 4000, "n": 0}, "value": {"n": 2}}]',
        "spans": '[{"key": 5000, "value": {"since": -1000, "rows": 3, "sum_n": {"total": 4, "values": 3}}}]',
        "waiting": WAITS,
        "wakes": "86401001",
    },
    "tiles": {
        "tiles": "["
        + ", ".join(
            f'{{"key": {{"level": 0, "start": {at}}}, "value": {{"rows": 1, "sum_n": {{"total": {n}, "values": 1}}}}}}'
            for at, n in ((1000, 1), (2000, 1), (4000, 2))
        )
        + "]",
        "waiting": WAITS,
        "wakes": "7000",
    },
    "silences": {
        "last_seen": '{"at": 4000, "until": 7000, "n": 2}',
        "waiting": '[{"key": {"at": 9000, "n": 0}, "value": {"at": 9000, "n": 4}}]',
    },
    "funnel": {
        "partial": '[{"key": {"began_at": 1000, "began_n": 0}, "value": {"times": [1000, 4000], "n": 2}}, '
        '{"key": {"began_at": 2000, "began_n": 0}, "value": {"times": [2000, 4000], "n": 2}}]',
        "waiting": WAITS,
    },
}
"""By operator, its states and what they hold of the key ``a``."""


@pytest.mark.parametrize("uid", STATES)
def test_the_states_of_an_operator_are_shown_by_their_fields(uid: str, pipeline: Pipeline) -> None:
    job = pipeline.job()
    with pipeline.engine() as engine:
        lines = list(history_lines(engine.explain(job, "a", operator=uid)))
    assert lines[0] == f'pipeline, {uid}: key {{"k": "a"}}'
    expected = [(f"  state {uid}.{state}", f"    after  {after}") for state, after in STATES[uid].items()]
    places = [place for place, line in enumerate(lines) if line.startswith("  state")]
    assert [(lines[place], lines[place + 2]) for place in places] == expected
    inputs = [line for line in lines if line.startswith("  in ")]
    both = uid in ("met", "priced")
    assert inputs == ["  in    events: 4 rows", *(["  in    prices: 2 rows"] if both else [])]


@pytest.mark.parametrize("uid", STATES)
def test_dagster_names_the_states_of_an_operator(uid: str, pipeline: Pipeline) -> None:
    job, head = pipeline.job(), pipeline.checkpoints()[-1]
    (recorded,) = (operator for operator in head.operators if operator.uid == uid)
    names = {state.name for state in recorded.states if state.name != TIMERS}
    assert {state.name for state in states_of(job, job.operators[uid])} - {TIMERS} == names
    assert {state.partition(",")[0] for state in STATES[uid]} <= names


def test_each_operator_of_the_job_is_among_them(pipeline: Pipeline) -> None:
    assert set(STATES) == set(pipeline.job().operators)
