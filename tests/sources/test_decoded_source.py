"""Feeds of operations through whole jobs: from lists in memory, from files and Delta tables on Spark."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from state_engine import (
    ChangeFormat,
    DeltaSink,
    DeltaSource,
    FileSource,
    ProcessFunction,
    RowKind,
    StateEngine,
    StatefulJob,
)
from state_engine.core.errors import ConfigurationError, SourceError
from state_engine.sources.base import FILE_COLUMN, ROW_COLUMN, Source, SourceFrame
from state_engine.sources.frames import from_source
from state_engine.sources.stream_columns import ROW_KIND
from state_engine.spark.no_spark import NO_SPARK
from state_engine.testing import CollectSink, run_in_memory
from tests.support.changes import (
    ACCOUNT,
    TOTAL,
    Change,
    Totals,
    history,
    kinds_and_values,
    totals_of,
)
from tests.support.limits import SetLimits

INSERT, BEFORE, AFTER, DELETE = RowKind
NAMES = ("id", "owner", "amount")
TEXT = ChangeFormat.debezium(column="value", schema=ACCOUNT)


def envelopes(changes: list[Change]) -> list[dict[str, Any]]:
    """Changes as Debezium's envelopes: an update is one."""
    made: list[dict[str, Any]] = []
    before: Any = None
    for kind, values in changes:
        row = dict(zip(NAMES, values, strict=True))
        if kind is BEFORE:
            before = row
        elif kind is AFTER:
            made.append({"op": "u", "before": before, "after": row})
        elif kind is INSERT:
            made.append({"op": "c", "before": None, "after": row})
        else:
            made.append({"op": "d", "before": row, "after": None})
    return made


def totals_job(job: StatefulJob, stream: Any) -> StatefulJob:
    stream.sink("rows", CollectSink())
    stream.key_by("owner").process(Totals(), TOTAL, uid="totals").sink("totals", CollectSink())
    return job


@pytest.mark.parametrize("seed", range(6))
def test_a_feed_is_the_stream_that_it_describes_wherever_it_is_cut(seed: int) -> None:
    changes, random = history(seed, 40), Random(seed)
    texts = [json.dumps(e) for e in envelopes(changes)]
    job = StatefulJob("totals")
    rows = job.from_collection(
        [(text,) for text in texts], "value string", format=TEXT,
        max_rows_per_batch=random.choice([None, 1, 3, 7]),
    )  # fmt: skip
    with run_in_memory(totals_job(job, rows)) as run:
        run.run()
        assert kinds_and_values(run.sink("rows")) == changes, "what an update replaces comes before it"
        assert kinds_and_values(run.sink("totals")) == totals_of(changes)
        run.replay(rebatch=True)
        assert kinds_and_values(run.sink("totals")) == totals_of(changes)


def test_a_sequence_orders_the_changes_of_a_batch() -> None:
    changes = history(3, 30)
    numbered = [(kind.value, place, *values) for place, (kind, values) in enumerate(changes)]
    Random(1).shuffle(numbered)
    format_ = ChangeFormat.columns(
        op="op", insert=[0], update_before=[1], update=[2], delete=[3], sequence="lsn"
    )
    job = StatefulJob("totals")
    rows = job.source("accounts", FileSource("feed", schema=f"op int, lsn bigint, {ACCOUNT}"), format=format_)
    assert job.sources["accounts"].order_by == ("lsn",)
    rows.key_by("owner").process(Totals(), TOTAL, uid="totals").sink("totals", CollectSink())
    with run_in_memory(job) as run:
        given = run.process({"accounts": numbered})
        assert kinds_and_values(given["totals"]) == totals_of(changes)


def test_a_row_that_comes_before_the_first_change_is_joined_with_none() -> None:
    """What the feed declares says the columns of its rows, where none has come."""
    job = StatefulJob("limits")
    feed = FileSource("feed", schema="op int, k string, at timestamp, most bigint")
    format_ = ChangeFormat.columns(op="op", insert=[0], update_before=[1], update=[2], delete=[3])
    limits = job.source("limits", feed, format=format_, event_time="at").key_by("k")
    orders = job.source(
        "orders", FileSource("orders", schema="k string, at timestamp"), event_time="at"
    ).key_by("k")
    orders.join_asof(limits, take=["most"], emit="at_once", uid="limited").sink("limited", CollectSink())
    at = datetime(2026, 1, 5, tzinfo=UTC)
    with run_in_memory(job) as run:
        (before,) = run.process({"orders": [("a", at)]})["limited"]
        run.process({"limits": [(0, "a", at, 7)]})
        (after,) = run.process({"orders": [("a", at)]})["limited"]
    assert (before.most, after.most) == (None, 7)


BAD = ["no json", json.dumps({"op": "t"}), json.dumps({"op": "d"})]


def test_what_cannot_be_decoded_becomes_a_dead_letter_with_its_reason() -> None:
    changes = history(0, 12)
    good = [json.dumps(e) for e in envelopes(changes)]
    texts = [BAD[0], *good[:3], BAD[1], *good[3:], BAD[2]]
    job = StatefulJob("totals", on_error="dead_letter")
    rows = job.from_collection([(t,) for t in texts], "value string", format=TEXT, name="accounts")
    with run_in_memory(totals_job(job, rows)) as run:
        run.run()
        assert kinds_and_values(run.sink("totals")) == totals_of(changes)
        letters = run.dead_letters()
        errors = {letter["row"]: letter["error"] for letter in letters}
        assert "SourceError: the envelope is not JSON" in errors[json.dumps({"value": BAD[0]})]
        assert "SourceError: a truncate" in errors[json.dumps({"value": BAD[1]})]
        assert "SourceError: a delete (op 'd') without the row" in errors[json.dumps({"value": BAD[2]})]
        assert {letter["position"] for letter in letters} == {
            f"source 'accounts', collection, row {texts.index(bad)}" for bad in BAD
        }
        (row,) = [row for row in run.checkpoints() if row.rows_in]
        assert (row.rows_refused, row.rows_in) == (3, len(changes) + 3)


def test_without_dead_letters_it_ends_the_batch() -> None:
    job = StatefulJob("totals")
    rows = job.from_collection([("no json",)], "value string", format=TEXT, name="accounts")
    with (
        run_in_memory(totals_job(job, rows)) as run,
        pytest.raises(
            SourceError,
            match=r"source 'accounts': the envelope is not JSON.*Nothing of this micro-batch was committed",
        ),
    ):
        run.run()


def test_the_position_of_a_change_names_the_row_of_the_feed() -> None:
    class Refusing(Totals):
        def process_element(self, account: Any, ctx: Any) -> Any:
            if ctx.row_kind() is AFTER:
                raise ValueError("no updates")
            return super().process_element(account, ctx)

    job = StatefulJob("totals", on_error="dead_letter")
    old, new = {"id": 1, "owner": "a", "amount": 2}, {"id": 1, "owner": "a", "amount": 3}
    texts = [{"op": "c", "after": old}, {"op": "u", "before": old, "after": new}]
    rows = job.from_collection(
        [(json.dumps(t),) for t in texts], "value string", format=TEXT, name="accounts"
    )
    rows.key_by("owner").process(Refusing(), TOTAL, uid="totals").sink("totals", CollectSink())
    with run_in_memory(job) as run:
        run.run()
        (letter,) = run.dead_letters()
        assert letter["position"] == "source 'accounts', collection, row 1, +U"


def test_rows_of_any_source_may_be_given_in_memory() -> None:
    job = StatefulJob("totals")
    source: Source = DeltaSource("/data/accounts")
    rows = job.source("accounts", source, format=ChangeFormat.debezium(column="value", schema=ACCOUNT))
    totals_job(job, rows)
    changes = history(2, 10)
    with run_in_memory(job, types={"accounts": "value string"}) as run:
        given = run.process({"accounts": [(json.dumps(e),) for e in envelopes(changes)]})
        assert kinds_and_values(given["rows"]) == changes


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda job: job.source("a", FileSource("d", schema="v string"), format="debezium"),
            "source 'a': 'debezium' is not a format; use ChangeFormat.debezium",
        ),
        (
            lambda job: job.source("a", DeltaSource("/d", changes=True), format=TEXT),
            "source 'a': its DeltaSource gives inserts, updates and deletes already",
        ),
    ],
)
def test_a_format_that_does_not_fit_is_refused_when_the_job_is_built(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message.replace("(", r"\(")):
        make(StatefulJob("j"))


def spark_job(source: Source, format_: ChangeFormat, sink: Path) -> StatefulJob:
    job = StatefulJob("totals", on_error="dead_letter")
    rows = job.source("accounts", source, format=format_)
    totals = rows.key_by("owner").process(Totals(), TOTAL, uid="totals")
    totals.process(_Shown(), "kind string, owner string, total bigint").sink("totals", DeltaSink(str(sink)))
    return job


class _Shown(ProcessFunction):
    """Kinds as text, for sinks that take inserts only."""

    accepts_changes = True

    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Any:
        yield str(ctx.row_kind()), value.owner, value.total


def shown_totals(changes: list[Change]) -> list[tuple[Any, ...]]:
    return sorted((str(kind), *values) for kind, values in totals_of(changes))


def sunk(sink: Path) -> list[tuple[Any, ...]]:
    return sorted(tuple(r.values()) for r in DeltaTable(str(sink)).to_pyarrow_table().to_pylist())


def test_json_files_and_tables_of_texts_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    changes = history(4, 20)
    lines = [json.dumps(e) for e in envelopes(changes)]
    bad = [*lines[:5], "no json", '{"op": "x"}', *lines[5:]]
    (tmp_path / "feed").mkdir()
    (tmp_path / "feed/1.json").write_text("\n".join(bad))
    schema = (
        f"before struct<{ACCOUNT.replace(' ', ': ')}>, after struct<{ACCOUNT.replace(' ', ': ')}>, op string"
    )
    schema = schema.replace(",: ", ", ")
    engine = StateEngine(tmp_path / "root", spark)
    files = FileSource(str(tmp_path / "feed"), schema=schema, format="json")
    job = spark_job(files, ChangeFormat.debezium(), tmp_path / "sink")
    report = engine.run(job)
    assert (report.batches[0].rows_refused, sunk(tmp_path / "sink")) == (2, shown_totals(changes))
    errors = sorted(letter.error for letter in engine.list_dead_letters(job))
    assert errors == [
        "SourceError: it is not JSON: Expecting value: line 1 column 1 (char 0). If it is part of an object or "
        "array of several lines, set the option multiLine to true",
        "SourceError: unknown operation 'x'",
    ]


def test_a_table_of_texts_in_tasks_and_letters_that_are_sent_again(
    spark: SparkSession, tmp_path: Path, limits: SetLimits
) -> None:
    limits(stored_bytes=0)
    changes = history(5, 16)
    lines = [json.dumps(e) for e in envelopes(changes)]
    late = json.dumps({"op": "s", "before": None, "after": {"id": 99, "owner": "z", "amount": 7}})
    table = pa.table({"value": [*lines[:4], "no json", late, *lines[4:]]})
    write_deltalake(str(tmp_path / "feed"), table)
    engine = StateEngine(tmp_path / "root", spark)
    source = DeltaSource(str(tmp_path / "feed"))
    job = spark_job(source, TEXT, tmp_path / "sink")
    report = engine.run(job)
    assert (report.batches[0].rows_refused, sunk(tmp_path / "sink")) == (2, shown_totals(changes))
    letters = engine.list_dead_letters(job)
    assert [(one.problem, one.row) for one in letters if "unknown operation" in one.error] == [
        ("", json.dumps({"value": late}))
    ]

    class Snapshots(type(TEXT)):  # type: ignore[misc]
        """Knows the operation of incremental snapshots, too."""

        def decode(self, feed: pa.Table) -> Any:
            texts = [t.replace('"op": "s"', '"op": "r"') for t in feed["value"].to_pylist()]
            return super().decode(feed.set_column(0, "value", pa.array(texts)))

    repaired = spark_job(source, Snapshots("value", ACCOUNT), tmp_path / "sink")
    sent = engine.replay_dead_letters(repaired)
    assert (sent.refused, sunk(tmp_path / "sink")) == (1, sorted([*shown_totals(changes), ("+I", "z", 7)]))
    assert [one.error for one in engine.list_dead_letters(job) if not one.sent] == [
        "SourceError: the envelope is not JSON: Expecting value: line 1 column 1 (char 0)"
    ]
    stopping = spark_job(source, TEXT, tmp_path / "sink")
    stopping.on_error = "fail"
    write_deltalake(str(tmp_path / "feed"), table.slice(4, 1), mode="append")
    with pytest.raises(SourceError, match=r"job 'totals', on the way to .*: source 'accounts': the envelope"):
        engine.run(stopping)


def test_the_order_puts_what_an_update_replaces_before_it_however_rows_come() -> None:
    names = {"id": [1, 1], FILE_COLUMN: [0, 0], ROW_COLUMN: [7, 7], ROW_KIND: [AFTER.value, BEFORE.value]}
    frame = from_source(
        NO_SPARK,
        SourceFrame(pa.table(names)),
        order_by=(),
        event_time=None,
        source="s",
        labels=(),
        changing=True,
    )
    given = frame.table
    assert given is not None
    in_order = given.sort_by([(name, "ascending") for name, _ in frame.order])
    assert in_order[ROW_KIND].to_pylist() == [BEFORE.value, AFTER.value]
