"""Joins in whole jobs: in memory at any cut, with a window behind, and on Spark, whoever knows the columns."""

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
    DeltaStateTable,
    FileSource,
    OutputTag,
    StatefulJob,
    Tumbling,
    count,
)
from state_engine.core.errors import ConfigurationError
from state_engine.testing import CollectSink, MemoryRun, run_in_memory
from tests.operators.joins import models
from tests.operators.joins.models import Event
from tests.support.limits import NOTHING_BY_DRIVER, SetLimits
from tests.support.pipelines import Pipeline

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ROW = "k string, part int, n bigint, at timestamp"
LATE, LATE_RIGHT = OutputTag("late", ROW), OutputTag("late_right", ROW)
BOUND = 4
NAMES = {1: "left", 2: "right"}


def stream_of(job: StatefulJob, name: str, schema: str | None = ROW, **time: Any) -> Any:
    source = FileSource(f"/nowhere/{name}", schema=schema)
    return job.source(name, source, **({"event_time": "at", "max_out_of_orderness": f"{BOUND} ms"} | time))


def joined(job: StatefulJob, **options: Any) -> DataStream:
    left, right = (stream_of(job, name).key_by("k", "part") for name in NAMES.values())
    given = {"within": (-3, 5), "late_to": LATE, "late_right_to": LATE_RIGHT, "uid": "join"} | options
    stream: DataStream = left.join(right, **given)
    return stream


def row_of(event: Event) -> tuple[str, int | None, int, datetime]:
    return event.k, event.part, event.n, EPOCH + timedelta(milliseconds=event.at)


def fed(run: MemoryRun, events: list[Event], seed: int) -> None:
    """Rows of one stream a batch, in their order: so the watermarks are those of the model."""
    rng, at = random.Random(seed), 0
    while at < len(events):
        side, size = events[at].side, rng.choice([1, 2, 9])
        part = [row_of(event) for event in events[at : at + size] if event.side == side]
        if any(event.side != side for event in events[at : at + len(part)]):
            part = part[:1]
        run.process({NAMES[side]: part})
        at += len(part)


@pytest.mark.parametrize(
    ("how", "seeds"),
    [
        ("full", [1]),
        *(pytest.param(how, range(3), marks=pytest.mark.more) for how in ("inner", "full", "anti")),
    ],
)
def test_a_window_behind_a_join_takes_each_result_in_time(how: str, seeds: Sequence[int]) -> None:
    """What comes of a join is held back, so it is in time for the next operator, and late rows are apart."""
    for seed in seeds:
        events = models.stream(seed, BOUND, 20)
        lateness = (0, 12, 3)[seed]
        expected = models.interval_join(events, low=-3, high=5, how=how, lateness=lateness, bound=BOUND)
        job = StatefulJob("chain", parallelism=1 + seed)
        pairs = joined(job, how=how, lateness=lateness)
        pairs.sink("pairs", CollectSink())
        for tag in (LATE, LATE_RIGHT):
            pairs.get_side_output(tag).sink(tag.tag_id, CollectSink())
        named = pairs.map(lambda row: (row.k or "none",), "k string")
        counts = named.key_by("k").window(Tumbling(7)).aggregate(rows=count(), uid="counts")
        counts.sink("counts", CollectSink())
        with run_in_memory(job) as run:
            fed(run, events, seed)
            run.process(drain=True)
            shown = [(row[2], row[6] if len(row) == 8 else None) for row in run.sink("pairs")]
            assert Counter(shown) == expected.pairs
            late = [*run.sink("late"), *run.sink("late_right")]
            assert Counter(row.n for row in late) == Counter(event.n for event in expected.late)
            metrics = [row.metrics for row in run.checkpoints()]
            assert sum(row["join.too_late"] for row in metrics) == len(expected.late)
            assert sum(row["counts.too_late"] for row in metrics) == 0
            assert sum(row.rows for row in run.sink("counts")) == sum(expected.pairs.values())


def test_a_stream_joins_itself() -> None:
    job = StatefulJob("itself")
    rows = stream_of(job, "left")
    keyed = rows.key_by("k", "part")
    keyed.join(keyed, within=(1, 5), take=["n"], right="_next", uid="pairs").sink("shown", CollectSink())
    with run_in_memory(job) as run:
        run.process({"left": [("a", 1, 0, EPOCH), ("a", 1, 1, EPOCH + timedelta(milliseconds=3))]})
        assert [(row.n, row.n_next) for row in run.sink("shown")] == [(0, 1)]


def test_windows_are_joined_by_their_bounds() -> None:
    job = StatefulJob("windows")
    counts = [
        stream_of(job, name, order_by=["at"])
        .key_by("k")
        .window(Tumbling(10))
        .aggregate(**{column: count()}, uid=column)
        for name, column in (("left", "people"), ("right", "auctions"))
    ]
    people, auctions = (one.key_by("k", "window_start") for one in counts)
    people.join(auctions, within=0, take=["auctions"], uid="new").sink("shown", CollectSink())
    with run_in_memory(job) as run:
        for name, given in (("left", [("a", 1), ("a", 2), ("b", 3)]), ("right", [("a", 4), ("a", 15)])):
            run.process({name: [row_of(Event(1, k, 1, 0, at)) for k, at in given]})
        run.process(drain=True)
        shown = [(row.k, row.people, row.auctions) for row in run.sink("shown")]
    assert shown == [("a", 2, 1)]


def test_rows_that_wait_are_tables() -> None:
    job = StatefulJob("published")
    pairs = joined(job, how="left")
    pairs.publish_state("left", DeltaStateTable("/left"), map_key="place")
    with run_in_memory(job) as run:
        run.process({"left": [row_of(Event(1, "a", 1, 7, 0))], "right": [row_of(Event(2, "b", 1, 8, 0))]})
        assert [(row.k, row.matched) for row in run.table("left")] == [("a", False)]
        run.process(drain=True)
        assert run.table("left") == []


# -- on Spark ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "declared",
    [pytest.param(True, id="declared"), pytest.param(False, id="shown by files", marks=pytest.mark.more)],
)
def test_the_same_on_spark_also_where_one_stream_has_no_row(
    spark: SparkSession, tmp_path: Path, limits: SetLimits, declared: bool
) -> None:
    limits(**NOTHING_BY_DRIVER)
    left = [Event(1, "a", 1, 0, 10), Event(1, "a", 1, 1, 20), Event(1, "b", None, 2, 20)]
    right = [Event(2, "a", 1, 3, 12), Event(2, "b", None, 4, 20)]
    sources = {}
    for name in NAMES.values():
        (tmp_path / name).mkdir()
        schema = ROW if declared else None
        sources[name] = FileSource(str(tmp_path / name), format="parquet", schema=schema)

    def build(job: StatefulJob) -> dict[str, DataStream]:
        one, other = (
            job.source(name, source, event_time="at").key_by("k", "part") for name, source in sources.items()
        )
        pairs = one.join(other, within=(-3, 5), how="full", late_to=LATE, uid="join")
        return {"pairs": pairs, "late": pairs.get_side_output(LATE)}

    def write(name: str, number: int, events: list[Event]) -> None:
        columns = zip(*map(row_of, events), strict=True)
        kinds = [pa.string(), pa.int32(), pa.int64(), pa.timestamp("us", "UTC")]
        arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
        table = pa.table(arrays, names=["k", "part", "n", "at"])
        pq.write_table(table, tmp_path / name / f"{number}.parquet")

    pipeline = Pipeline(tmp_path, spark, build, parallelism=2)
    write("left", 0, left)
    if not declared:
        with pytest.raises(ConfigurationError, match=r"its second stream had no row yet.*declare them"):
            pipeline.run()
    write("right", 0, right)
    pipeline.run()
    write("left", 1, [Event(1, "a", 1, 5, 30), Event(1, "a", 1, 6, 1)])
    pipeline.run()
    pipeline.run(drain=True)
    outputs = pipeline.outputs()
    pairs = sorted((row[2], row[6]) for row in outputs["pairs"] if row[2] is not None and row[6] is not None)
    alone = sorted((row[2] or row[6]) for row in outputs["pairs"] if None in (row[2], row[6]))
    assert (pairs, alone) == ([(0, 3)], [1, 2, 4, 5])
    assert [row[2] for row in outputs["late"]] == [6]
    assert pipeline.state("join", "left") == pipeline.state("join", "right") == []


# -- what is refused ---------------------------------------------------------------------------------------------------


def pair_of(**time: Any) -> tuple[Any, Any]:
    job = StatefulJob("refused")
    return stream_of(job, "left").key_by("k"), stream_of(job, "right", **time).key_by("k")


def refused(*given: Any, **options: Any) -> DataStream:
    left, right = given or pair_of()
    stream: DataStream = left.join(right, **({"within": 5} | options))
    return stream


def with_changes() -> DataStream:
    job = StatefulJob("refused")
    feed = FileSource("/feed", schema=f"{ROW}, op string")
    kinds = ChangeFormat.columns(op="op", insert=["I"], update=["U"], delete=["D"])
    changing = job.source("feed", feed, format=kinds, event_time="at").key_by("k")
    return refused(stream_of(job, "left").key_by("k"), changing)


def in_other_types() -> DataStream:
    job = StatefulJob("refused")
    other = stream_of(job, "right", "k bigint, at timestamp")
    return refused(stream_of(job, "left").key_by("k"), other.key_by("k"))


def clash() -> DataStream:
    job = StatefulJob("refused")
    left = stream_of(job, "left", "k string, n_right int, n int, at timestamp")
    return refused(left.key_by("k"), stream_of(job, "right").key_by("k"))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: refused(*pair_of(event_time=None, max_out_of_orderness=0)), "needs event time.*give source"),
        (lambda: refused(*pair_of(late_to=LATE), lateness=1), "diverts late rows before.*move late_to"),
        (lambda: refused(within=(5, 1)), "put the smaller bound first"),
        (lambda: refused(within=-5), "give two"),
        (lambda: refused(how="cross"), "how of a join must be 'inner', "),
        (lambda: refused(how="semi", take=["n"]), "gives left rows as they are: leave take, right and time out"),
        (lambda: refused(time="earlier"), "time of a join must be 'left', 'right' or 'later'"),
        (lambda: refused(take=["m"]), r"does not have: \['m'\]; it has \['k', "),
        (clash, "'n' would come out as 'n_right', and there is another.*another suffix"),
        (lambda: refused(lateness=-1), "lateness must be 0 or more"),
        (lambda: refused(late_to="late"), "late_to must be an OutputTag"),
        (lambda: refused(late_right_to="late"), "late_to must be an OutputTag"),
        (with_changes, "join takes inserts only.*Pairs would have to be taken back.*KeyedCoProcessFunction"),
        (in_other_types, r"keyed by 'k' \(string\) and 'k' \(bigint\).*cast one in a transform"),
        (lambda: refused(pair_of()[0], pair_of()[1]), "another keyed stream of job 'refused'.*call key_by on it"),
        (lambda: refused(pair_of()[0], "right"), "another keyed stream of job 'refused'.*call key_by on it"),
    ],
)  # fmt: skip
def test_what_cannot_be_joined_is_refused_while_the_job_is_built(
    build: Callable[[], Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build()
