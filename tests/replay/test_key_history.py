"""What happened to one key: inputs, states before and after, timers and outputs, checkpoint by checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine import (
    DataStream,
    DeltaSink,
    FileSource,
    Instant,
    KeyedProcessFunction,
    RetentionPolicy,
    StatefulJob,
    Types,
)
from state_engine.cli.explain import event_lines, history_lines
from state_engine.cli.options import key_of
from state_engine.replay.key_history import KeyEvent, KeyHistory, StateOfKey, TimersOfKey
from state_engine.replay.key_inputs import RowsOfKey
from tests.replay.test_key_debug import BATCHES, Largest, Remembers
from tests.support.pipelines import Pipeline
from tests.support.tiny import OUTPUT, Site, Sum

Context = KeyedProcessFunction.Context
MOMENT = datetime(2026, 3, 1, 12, tzinfo=UTC)


def pipeline(directory: Path, spark: SparkSession) -> Pipeline:
    inbox = directory / "inbox"
    inbox.mkdir(exist_ok=True)

    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        source = FileSource(
            str(inbox), schema="user string, kind bigint, amount bigint, at timestamp", format="json"
        )
        rows = job.source("events", source, event_time="at")
        sums = rows.key_by("user").process(
            Remembers(wait=1000), uid="sums", output_type="user string, total bigint"
        )
        most = sums.key_by("user").process(Largest(), uid="most", output_type="total bigint")
        return {"sums": sums, "most": most}

    return Pipeline(directory, spark, build, parallelism=2, max_parallelism=8)


def put(directory: Path, number: int) -> Path:
    file = directory / "inbox" / f"{number}.json"
    rows = [
        {"user": user, "kind": kind, "amount": amount, "at": f"1970-01-01T00:00:{4 * number:02}Z"}
        for user, kind, amount in BATCHES[number]
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    return file


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Pipeline:
    """Three micro-batches; the second was left by a restore and run again."""
    directory = tmp_path_factory.mktemp("explained")
    made = pipeline(directory, spark)
    for number in range(2):
        put(directory, number)
        made.run()
    with made.engine() as engine:
        engine.restore(made.job(), checkpoint_id=1)
    put(directory, 2)
    made.run(max_batches=1)
    made.run()
    return made


def explained(site: Pipeline, key: Any, **options: Any) -> KeyHistory:
    with site.engine() as engine:
        return engine.explain(options.pop("job", site.job()), key, **options)


def states(event: KeyEvent) -> dict[str, tuple[Any, Any]]:
    return {f"{one.operator}.{one.state}": (one.before, one.after) for one in event.states}


def test_a_key_is_followed_along_the_path_of_the_head(site: Pipeline) -> None:
    history = explained(site, "ann")
    assert history.keys == {"sums": {"user": "ann"}, "most": {"user": "ann"}}
    first, last = history.events
    assert first.checkpoint_id == 1
    assert last.checkpoint_id > 3, "the one that a restore left is not on the path"
    assert 2 not in history.looked_at

    assert [(one.operator, one.place, one.count) for one in first.inputs] == [("sums", "events", 2)]
    assert [row["amount"] for row in first.inputs[0].rows] == [10, 20]
    assert states(first) == {
        "sums.total": (None, 30),
        "sums.amounts": (None, [10, 20]),
        "sums.kinds": (None, [{"key": 1, "value": 10}, {"key": 2, "value": 20}]),
        "most.largest": (None, 30),
    }
    assert states(last)["sums.total"] == (30, 60)
    assert states(last)["sums.kinds"][1] == [{"key": 1, "value": 30}, {"key": 2, "value": 20}]
    (timers,) = first.timers
    assert timers.set == [f"event time 1970-01-01T00:00:{s}+00:00" for s in (10, 20)]
    assert [row["amount"] for row in last.inputs[0].rows] == [30]


def test_outputs_are_those_of_the_key_where_the_sink_has_its_columns(site: Pipeline) -> None:
    first = explained(site, {"user": "ann"}).events[0]
    by_sink = {one.place: one for one in first.outputs}
    assert [row["total"] for row in by_sink["sums"].rows] == [10, 30]
    assert by_sink["most"].problem == "it has no columns user"
    assert not by_sink["most"].rows


def test_inputs_that_other_operators_make_are_not_made_up(site: Pipeline) -> None:
    history = explained(site, "ann", operator="most")
    assert history.keys == {"most": {"user": "ann"}}
    assert history.notes == ["inputs of most: they are outputs of sums: explain a key of that"]
    assert not any(one.inputs for one in history.events)


def test_rows_are_counted_and_only_some_given(site: Pipeline) -> None:
    first = explained(site, "ann", limit=1).events[0]
    assert (first.inputs[0].count, len(first.inputs[0].rows)) == (2, 1)
    sums = next(one for one in first.outputs if one.place == "sums")
    assert (sums.count, len(sums.rows)) == (2, 1)


def test_checkpoints_can_be_chosen(site: Pipeline) -> None:
    every = explained(site, "bob")
    assert [one.checkpoint_id for one in every.events] == [every.looked_at[0], every.looked_at[1]]
    begin = every.looked_at[1]
    assert explained(site, "bob", from_checkpoint=begin).looked_at == every.looked_at[1:]
    assert explained(site, "bob", to_checkpoint=1).looked_at == [1]
    assert explained(site, "bob", last=1).looked_at == every.looked_at[-1:]
    assert not explained(site, "nobody").events


def test_without_the_code_all_but_inputs_is_known(site: Pipeline) -> None:
    history = explained(site, "ann", job="pipeline")
    assert history.notes == ["inputs: the job's code is not known here"]
    assert states(history.events[0])["sums.total"] == (None, 30)


def test_what_is_gone_is_named_and_the_rest_is_shown(tmp_path: Path, spark: SparkSession) -> None:
    made = pipeline(tmp_path, spark)
    for number in (0, 2):
        file = put(tmp_path, number)
        made.run()
    file.unlink()
    first, last = explained(made, "ann").events
    assert not first.inputs[0].problem
    assert "2.json" in last.inputs[0].problem
    assert states(last)["sums.total"] == (30, 60)
    with made.engine() as engine:
        engine.compact("pipeline")
        engine.expire_checkpoints("pipeline", RetentionPolicy(1))
    for gone in (tmp_path / "root/pipeline/operators/sums/changelog").rglob("*.parquet"):
        gone.unlink()
    first, last = explained(made, "ann").events
    assert all("state of sums" in event.problems[0] for event in (first, last))
    assert first.inputs[0].count == 2


def test_it_reads_well() -> None:
    site_event = KeyEvent(
        checkpoint_id=3, kind="checkpoint", created_at=MOMENT, partition="2026-03-01",
        inputs=[RowsOfKey("sums", "events", 3, [{"user": "ann", "amount": 1}])],
        states=[StateOfKey("sums", "total", None, 1)],
        timers=[TimersOfKey("sums", ["event time x"], ["event time y"])],
        outputs=[RowsOfKey("", "out", problem="it has no columns user")],
        problems=["state of most: gone"],
    )  # fmt: skip
    assert list(event_lines(site_event)) == [
        "checkpoint 3, 2026-03-01 12:00:00 UTC, checkpoint, 2026-03-01",
        "  in    events: 3 rows",
        '    {"user": "ann", "amount": 1}',
        "    and 2 more",
        "  state sums.total",
        "    before nothing",
        "    after  1",
        "  timer sums: set event time x",
        "  timer sums: fired or deleted event time y",
        "  out   out: not known: it has no columns user",
        "  not known: state of most: gone",
    ]
    empty = KeyHistory("job", {"sums": {"user": "ann"}}, [], [], [])
    assert list(history_lines(empty))[-1] == "there are no checkpoints: nothing is known of this key"


@pytest.mark.parametrize(
    ("kind", "made", "text", "value"),
    [
        (Types.SQL_TIME(), lambda row: time(9, row.v), "09:03:00", time(9, 3)),
        (Types.INSTANT(), lambda row: Instant(row.v), "1970-01-01T00:00:03Z", Instant(3)),
    ],
    ids=["time of day", "instant"],
)
def test_a_key_of_a_type_that_storage_lacks_is_taken_and_shown_as_it_is_written(
    tmp_path: Path, spark: SparkSession, kind: Any, made: Any, text: str, value: Any
) -> None:
    site = Site(tmp_path, spark).put({"k": ["a", "b"], "v": [3, 4]})
    job = StatefulJob("tiny")
    rows = job.source("events", FileSource(str(site.feed))).key_by(made, kind)
    rows.process(Sum(), uid="sums", output_type=OUTPUT).sink("out", DeltaSink(str(site.sink)))
    with site.engine() as engine:
        engine.run(job)
        history = engine.explain(job, key_of(json.dumps({"key": text})))
        assert history.keys == {"sums": {"key": value}}
        ((event,), (line, *_)) = history.events, history_lines(history)
        assert [(one.state, one.after) for one in event.states] == [("total", 3)]
        assert line == f'tiny, sums: key {{"key": "{text}"}}'
        erased = engine.state_processor(job).erase_keys([{"key": text}], dry_run=True)
        assert erased.transform.changes == 1
