"""Regular joins in whole jobs: in memory at any cut, with operators behind, and on Spark into a Delta table."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from state_engine import (
    ChangeFormat,
    DataStream,
    DeltaSink,
    DeltaStateTable,
    FileSink,
    FileSource,
    OutputTag,
    ProcessFunction,
    StatefulJob,
    StateTtlConfig,
    count,
    sum_,
)
from state_engine.core.errors import ConfigurationError, UserFunctionError
from state_engine.core.operator.element_kinds import own_kind
from state_engine.core.types.row import RowKind
from state_engine.testing import CollectSink, run_in_memory
from tests.operators.joins import models
from tests.operators.joins.models import Change
from tests.support.limits import NOTHING_BY_DRIVER, SetLimits
from tests.support.pipelines import Pipeline

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ROW = "k string, part int, v double, tags array<int>"
TIMED = "k string, n bigint, at timestamp"
NAMES = {1: "left", 2: "right"}


class _Times(ProcessFunction):
    """The event time of each result."""

    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Any:
        yield value.n_right, ctx.timestamp()


FEED = ChangeFormat.columns(op="op", insert=["0"], update_before=["1"], update=["2"], delete=["3"])


def feed(job: StatefulJob, name: str, schema: str | None = ROW, **options: Any) -> DataStream:
    whole = None if schema is None else f"{schema}, op string"
    return job.source(name, FileSource(f"/nowhere/{name}", schema=whole), format=FEED, **options)


def rows(job: StatefulJob, name: str, schema: str = TIMED, **options: Any) -> DataStream:
    return job.source(name, FileSource(f"/nowhere/{name}", schema=schema), **options)


def plain(row: Sequence[Any]) -> str:
    return repr([value + 0.0 if isinstance(value, float) else value for value in tuple(row)])


def table_of(changes: Sequence[Any]) -> Counter[str]:
    """What changes make of an empty table, in their order: nothing goes that is not there."""
    table = Counter[str]()
    for change in changes:
        kind, row = own_kind(change)
        gone = kind in (RowKind.UPDATE_BEFORE, RowKind.DELETE)
        assert not gone or table[plain(row)] > 0
        table[plain(row)] += -1 if gone else 1
    return +table


def given(changes: Sequence[Change]) -> dict[str, list[Any]]:
    """The rows of feeds: those of a change, and its kind."""
    return {
        name: [
            (*one.row[:3], None if one.row[3] is None else list(one.row[3]), str(one.kind))
            for one in changes
            if one.side == side
        ]
        for side, name in NAMES.items()
    }


@pytest.mark.parametrize(
    ("how", "seeds"),
    [("full", [2]), *(pytest.param(how, range(4), marks=pytest.mark.more) for how in ("left", "full", "anti"))],
)  # fmt: skip
def test_operators_behind_a_join_see_the_table_of_the_model(how: str, seeds: Sequence[int]) -> None:
    def built(parallelism: int) -> StatefulJob:
        job = StatefulJob("chain", parallelism=parallelism)
        left, right = (feed(job, name).key_by("k", "part") for name in NAMES.values())
        joined = left.join(right, how=how, uid="join")
        joined.sink("joined", CollectSink())
        named = joined.map(lambda row: (row.k or "none", 1), "k string, one int")
        named.key_by("k").aggregate(n=count(), total=sum_("one"), uid="n").sink("n", CollectSink())
        return job

    for seed in seeds:
        rng, changes = random.Random(seed), models.changes(seed, inserts_only=False, count=20 * len(seeds))
        with run_in_memory(built(1)) as run:
            at = 0
            while at < len(changes):
                size = rng.choice([1, 3, 20])
                run.process(given(changes[at : at + size]))
                at += size
                expected = models.regular_join(changes[:at], how)
                assert table_of(run.sink("joined")) == Counter(map(plain, expected)), (seed, at)
                numbers = Counter(row[0] or "none" for row in expected)
                shown = Counter(plain((k, n, n)) for k, n in numbers.items())
                assert table_of(run.sink("n")) == shown, (seed, at)
                run.restart(built(rng.choice([1, 2, 3])))


def test_a_join_of_inserts_is_a_stream_of_inserts() -> None:
    job = StatefulJob("inserts")
    left, right = (rows(job, name, event_time="at").key_by("k") for name in NAMES.values())
    inner = left.join(right, take=["n"], uid="inner")
    inner.sink("files", FileSink("/nowhere/files"))
    inner.key_by("k").over(rows=count(), uid="features").sink("features", CollectSink())
    left.join(right, how="semi", uid="semi").sink("semi", FileSink("/nowhere/semi"))
    for how in ("left", "right", "full", "anti"):
        with pytest.raises(
            ConfigurationError, match=rf"FileSink takes inserts only.*from operator 'join {how}'"
        ):
            left.join(right, how=how, uid=f"join {how}").sink(how, FileSink(f"/nowhere/{how}"))
    changing = feed(job, "changes", TIMED).key_by("k")
    for one, other in ((left, changing), (changing, left)):
        with pytest.raises(ConfigurationError, match="FileSink takes inserts only"):
            one.join(other).sink("none", FileSink("/nowhere/none"))


def test_outputs_have_the_event_time_of_the_row_that_made_them() -> None:
    job = StatefulJob("times")
    left, right = (rows(job, name, event_time="at").key_by("k") for name in NAMES.values())
    times = left.join(right, take=["n"], uid="join").process(_Times(), "n bigint, at_ms bigint", uid="times")
    times.sink("times", CollectSink())
    with run_in_memory(job) as run:
        run.process({"left": [("a", 1, EPOCH + timedelta(milliseconds=5))]})
        run.process({"right": [("a", 2, EPOCH + timedelta(milliseconds=9)), ("a", 3, EPOCH)]})
        assert [tuple(row) for row in run.sink("times")] == [(2, 9), (3, 0)]


def test_what_is_kept_is_a_table() -> None:
    job = StatefulJob("published")
    left, right = (rows(job, name).key_by("k") for name in NAMES.values())
    joined = left.join(right, how="left", uid="join")
    joined.publish_state("left", DeltaStateTable("/left"), map_key="row_id")
    with pytest.raises(
        ConfigurationError, match="does not say which of its states a table shows; name it: publish"
    ):
        joined.publish(DeltaStateTable("/other"))
    with run_in_memory(job) as run:
        run.process({"left": [("a", 1, EPOCH), ("a", 1, EPOCH)], "right": [("a", 7, EPOCH)]})
        (row,) = run.table("left")
        assert (row.k, tuple(row.row), row.times, row.matches) == ("a", ("a", 1, EPOCH), 2, 1)


def test_a_time_to_live_by_event_time_holds_at_any_cut() -> None:
    by_time = StateTtlConfig.new_builder("10 ms").use_event_time().build()
    feeds = [("left", 1, 0), ("right", 2, 5), ("right", 3, 30), ("left", 4, 31), ("left", 5, 60)]
    for size, ttl in ((1, by_time), (5, by_time), (2, (by_time, None))):
        job = StatefulJob("expiring")
        left, right = (
            rows(job, name, event_time="at", order_by=["at"]).key_by("k") for name in NAMES.values()
        )
        left.join(right, take=["n"], ttl=ttl, uid="join").sink("pairs", CollectSink())
        with run_in_memory(job) as run:
            for at in range(0, len(feeds), size):
                batch: dict[str, list[Any]] = {}
                for name, n, ms in feeds[at : at + size]:
                    batch.setdefault(name, []).append(("a", n, EPOCH + timedelta(milliseconds=ms)))
                run.process(batch)
            pairs = sorted((row.n, row.n_right) for row in run.sink("pairs"))
        expected = [(1, 2), (4, 3)] if ttl is by_time else [(1, 2), (4, 2), (4, 3), (5, 2), (5, 3)]
        assert pairs == expected


def test_a_row_of_a_feed_that_was_never_there_is_refused() -> None:
    job = StatefulJob("refused")
    left, right = (feed(job, name).key_by("k") for name in NAMES.values())
    left.join(right, uid="join").sink("pairs", CollectSink())
    with (
        run_in_memory(job) as run,
        pytest.raises(
            UserFunctionError, match=r"key .*'left'.*RetractionError: join cannot take back .*never added"
        ),
    ):
        run.process({"left": [("a", 1, 1.0, None, "3")]})


# -- on Spark ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "declared",
    [pytest.param(True, id="declared"), pytest.param(False, id="shown by files", marks=pytest.mark.more)],
)
def test_the_same_on_spark_into_a_delta_table(
    spark: SparkSession, tmp_path: Path, limits: SetLimits, declared: bool
) -> None:
    limits(**NOTHING_BY_DRIVER)
    schemas = {"orders": "id int, amount int, op string", "customers": "id int, name string"}
    sources = {}
    for name, schema in schemas.items():
        (tmp_path / name).mkdir()
        sources[name] = FileSource(
            str(tmp_path / name), format="parquet", schema=schema if declared else None
        )
    into = str(tmp_path / "table")

    def build(job: StatefulJob) -> dict[str, DataStream]:
        orders = job.source("orders", sources["orders"], format=FEED).key_by("id")
        customers = job.source("customers", sources["customers"]).key_by("id")
        joined = orders.join(customers, how="leftouter", take=["name"], uid="join")
        joined.sink("table", DeltaSink(into, key=["id"]))
        return {}

    def write(name: str, number: int, columns: dict[str, list[Any]]) -> None:
        types = {"id": pa.int32(), "amount": pa.int32(), "op": pa.string(), "name": pa.string()}
        arrays = {column: pa.array(values, types[column]) for column, values in columns.items()}
        pq.write_table(pa.table(arrays), tmp_path / name / f"{number}.parquet")

    def shown() -> list[tuple[Any, ...]]:
        return sorted(
            map(tuple, spark.read.format("delta").load(into).select("id", "amount", "name").collect())
        )

    pipeline = Pipeline(tmp_path, spark, build, parallelism=2)
    write("orders", 0, {"id": [1, 2], "amount": [5, 7], "op": ["0", "0"]})
    write("customers", 0, {"id": [2], "name": ["ada"]})
    pipeline.run()
    assert shown() == [(1, 5, None), (2, 7, "ada")]
    write("customers", 1, {"id": [1], "name": ["bob"]})
    pipeline.run(parallelism=3)
    assert shown() == [(1, 5, "bob"), (2, 7, "ada")]
    write("orders", 1, {"id": [1, 1, 2], "amount": [5, 6, 7], "op": ["1", "2", "3"]})
    pipeline.run()
    assert shown() == [(1, 6, "bob")]
    kept = pipeline.state("join", "left")
    assert [(row[0], tuple(row[2].row), row[2].times, row[2].matches) for row in kept] == [(1, (1, 6), 1, 1)]


# -- what is refused ---------------------------------------------------------------------------------------------------


def refused(**options: Any) -> DataStream:
    job = StatefulJob("refused")
    left, right = (rows(job, name, event_time="at").key_by("k") for name in NAMES.values())
    stream: DataStream = left.join(right, **options)
    return stream


def without_time() -> DataStream:
    job = StatefulJob("refused")
    left, right = (rows(job, name).key_by("k") for name in NAMES.values())
    return left.join(right, ttl=(None, StateTtlConfig.new_builder("1 h").use_event_time().build()))


def of_running_results() -> DataStream:
    job = StatefulJob("refused")
    left, right = (rows(job, name).key_by("k") for name in NAMES.values())
    return left.aggregate(total=count(), uid="totals").key_by("k").join(right)


OTHER_KIND = (
    "without within keeps its rows.*leave lateness, late_to, late_right_to and time out, or give within"
)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: refused(lateness="1 h"), OTHER_KIND),
        (lambda: refused(late_to=OutputTag("late", TIMED)), OTHER_KIND),
        (lambda: refused(late_right_to=OutputTag("late", TIMED)), OTHER_KIND),
        (lambda: refused(time="right"), OTHER_KIND),
        (lambda: refused(within="1 h", ttl="1 h"), "drops each row by event time.*leave ttl out"),
        (lambda: refused(ttl=("1 h", "1 h", "1 h")), r"one time or two, \(left, right\)"),
        (lambda: refused(ttl=0), "a time to live must be longer than nothing"),
        (lambda: refused(how="anti", take=["n"]), "gives left rows as they are: leave take, right and time out"),
        (lambda: refused(take=["m"]), r"does not have: \['m'\]; it has \['k', "),
        (without_time, "ttl of join is by event time, and none of the sources.*give source"),
        (of_running_results, "running results of operator 'totals'.*join would count.*emit='changes'"),
    ],
)  # fmt: skip
def test_what_is_no_regular_join_is_refused_while_the_job_is_built(
    build: Callable[[], Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build()
