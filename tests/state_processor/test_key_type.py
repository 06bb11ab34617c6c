"""Keys of another type: the same state under new keys, as if the job had always had them; and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from state_engine import (
    DataStream,
    DeltaSink,
    FileSource,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    RuntimeContext,
    StateEngine,
    StatefulJob,
    StateTtlConfig,
    ValueStateDescriptor,
    open_state,
)
from state_engine.core.errors import (
    ConfigurationError,
    InvalidKeyError,
    StaleParentError,
    StateMigrationError,
)
from state_engine.operations import maintenance, max_parallelism
from state_engine.operations.head_operations import HeadOperations
from tests.support.tiny import OUTPUT, Site, Sum

Through = Callable[[DataStream], DataStream]


def cast(kind: str) -> Through:
    """The key as another type."""

    def cast_it(rows: DataFrame) -> DataFrame:
        return rows.withColumn("k", F.col("k").cast(kind))

    return lambda stream: stream.transform(cast_it)


def files(site: Site) -> set[Path]:
    return set((site.directory / "root").rglob("*.parquet"))


def test_numbers_become_text_and_the_job_goes_on(tmp_path: Path, spark: SparkSession) -> None:
    site = Site(tmp_path, spark).put({"k": [1, 2, 1], "v": [1, 2, 3]})
    engine, old, new = site.engine(), site.job(), site.job(through=cast("string"))
    engine.run(old)
    site.put({"k": [2, 3], "v": [10, 20]}, "1")
    with pytest.raises(StateMigrationError, match=r"by key .*bigint.*statelake change-key-type tiny"):
        engine.run(new)

    before = files(site)
    planned = engine.state_processor(new).change_key_type("sums", dry_run=True)
    assert (planned.keys, planned.entries, planned.committed_id) == (2, {"total": 2}, None)
    assert files(site) == before
    assert len(engine.checkpoints("tiny")) == 1
    done = engine.state_processor("tiny").change_key_type("sums", code=new)
    assert (done.keys, done.entries, done.parent_id, done.committed_id) == (2, planned.entries, 1, 2)
    row = engine.checkpoints("tiny")[-1]
    assert (row.kind, row.parent_id, row.sources) == ("transform", 1, [*row.sources])
    assert site.state() == {"1": 4, "2": 2}
    assert not engine.state_processor(new).change_key_type("sums").is_needed
    engine.run(new)
    assert site.state() == {"1": 4, "2": 12, "3": 20}

    engine.restore("tiny", checkpoint_id=1)  # the code of before goes on from the checkpoint of before
    assert site.state() == {1: 4, 2: 2}
    engine.run(old)
    assert site.state() == {1: 4, 2: 12, 3: 20}


def test_other_operators_keep_their_keys(tmp_path: Path, spark: SparkSession) -> None:
    site = Site(tmp_path, spark).put({"k": [1, 2, 1], "v": [1, 2, 3]})

    def job(through: Through) -> StatefulJob:
        tiny = StatefulJob("tiny", parallelism=2)
        events = tiny.source("events", FileSource(str(site.feed)))
        for uid, stream, key in (("sums", through(events), "k"), ("others", events, "v")):
            stream.key_by(key).process(Sum(), uid=uid, output_type=OUTPUT).sink(
                uid, DeltaSink(f"{site.sink}/{uid}")
            )
        return tiny

    engine = site.engine()
    engine.run(job(lambda stream: stream))
    engine.state_processor(job(cast("string"))).change_key_type("sums")
    assert site.state() == {"1": 4, "2": 2}
    assert site.state(operator="others") == {1: 1, 2: 2, 3: 3}
    site.put({"k": [1], "v": [3]}, "1")
    engine.run(job(cast("string")))
    assert site.state() == {"1": 7, "2": 2}
    assert site.state(operator="others") == {1: 1, 2: 2, 3: 6}


class Visits(KeyedProcessFunction):
    """States of all shapes, with and without a time to live, and timers of both kinds."""

    def open(self, runtime_context: RuntimeContext) -> None:
        ttl = StateTtlConfig.new_builder(timedelta(milliseconds=100)).build()
        recent, last = ListStateDescriptor("recent", int), ValueStateDescriptor("last", int)
        recent.enable_time_to_live(ttl)
        last.enable_time_to_live(ttl)
        self.total = runtime_context.get_state(ValueStateDescriptor("total", int))
        self.by = runtime_context.get_map_state(MapStateDescriptor("by", str, int))
        self.recent, self.last = runtime_context.get_list_state(recent), runtime_context.get_state(last)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        self.total.update((self.total.value() or 0) + value.v)
        for word in ("z", "a", str(value.v)):
            self.by.put(word, (self.by.get(word) or 0) + 1)
        self.recent.add(value.v)
        self.last.update(value.v)
        ctx.timer_service().register_processing_time_timer(2000 + value.v)
        ctx.timer_service().register_event_time_timer(value.v)
        yield str(ctx.get_current_key()), value.v, len(list(self.recent.get()))

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        yield str(ctx.get_current_key()), timestamp, self.total.value() or 0
        yield str(ctx.get_current_key()), timestamp, list(self.by.keys()).index("a")


STATES = ("total", "by", "recent", "last", "_timers")


def everything(engine: StateEngine) -> dict[str, list[str]]:
    """All entries with their times and key groups."""
    states = {}
    for state in STATES:
        frame = engine.read_state("tiny", "visits", state, include_expired=True, metadata=True)
        states[state] = sorted(str(r) for r in frame.drop("expires_at").collect())
    return states


@pytest.mark.long
def test_it_is_as_if_the_key_had_always_been_so(tmp_path: Path, spark: SparkSession) -> None:
    sites = [Site(tmp_path / name, spark) for name in ("always", "changed")]
    jobs = [site.job(Visits(), uid="visits", through=cast("string")) for site in sites]
    engines = [site.engine() for site in sites]
    keys = [*range(-20, 20), 2**62]
    for site in sites:
        site.put({"k": keys * 2, "v": list(range(2 * len(keys)))})
    before = [jobs[0], sites[1].job(Visits(), uid="visits")]
    for site, engine, job in zip(sites, engines, before, strict=True):
        engine.run(job, clock=1000)
        site.put({"k": keys[:5], "v": list(range(5))}, "0_later")
        engine.run(job, clock=1150)  # most of what may expire has, and is not cleaned up on the way
    done = engines[1].state_processor(jobs[1]).change_key_type("visits")
    assert done.keys == len(keys)
    assert done.entries["_timers"] == 4 * len(keys)
    assert everything(engines[1]) == everything(engines[0])
    rows = [engine.checkpoints("tiny")[-1].operator("visits") for engine in engines]
    assert rows[0] is not None
    assert rows[1] is not None
    assert rows[1].next_timers_ms == rows[0].next_timers_ms
    groups = [(file.key_group_min, file.key_group_max) for file in rows[1].base_files]
    assert sorted(set(groups)) == groups, "one file a key group, in order"

    engines[1].rescale(jobs[1], parallelism=3)
    for site, engine, job in zip(sites, engines, jobs, strict=True):
        site.put({"k": keys[::3], "v": [1000] * len(keys[::3])}, "1")
        engine.run(job, clock=1050)
    assert everything(engines[1]) == everything(engines[0])
    engines[1].compact("tiny")
    engines[1].rescale(jobs[1], max_parallelism=16)
    sites[1].put({"k": keys[:2], "v": [7, 7]}, "2")
    sites[0].put({"k": keys[:2], "v": [7, 7]}, "2")
    engines[0].run(jobs[0], clock=9000)
    engines[1].run(
        sites[1].job(Visits(), uid="visits", through=cast("string"), max_parallelism=16), clock=9000
    )
    assert sites[1].outputs() == sites[0].outputs()
    for name in STATES:
        tables = [open_state.read_state(s.directory / "root", "tiny", "visits", name) for s in sites]
        assert tables[0].column_names == tables[1].column_names
        assert sorted(map(str, tables[0].to_pylist())) == sorted(map(str, tables[1].to_pylist())), name


@pytest.mark.long
def test_other_readers_and_operations_know_the_new_key(tmp_path: Path, spark: SparkSession) -> None:
    site = Site(tmp_path, spark).put({"k": [1, 2, 3], "v": [1, 2, 3]})
    engine, old, new = site.engine(), site.job(), site.job(through=cast("string"))
    engine.run(old)
    engine.compact("tiny")
    engine.state_processor(new).change_key_type("sums")
    site.put({"k": [3, 4], "v": [10, 20]}, "1")
    engine.run(new)
    for table in ("base", "changelog"):  # both keys have a column of their own, and any reader finds them
        stored = DeltaTable(str(tmp_path / "root" / "tiny" / "operators" / "sums" / table)).to_pyarrow_table()
        assert {str(k) for row in stored["key"].to_pylist() for k in row.values() if k is not None} >= {"3"}
        read = spark.read.format("delta").load(f"{tmp_path}/root/tiny/operators/sums/{table}")
        assert read.where("key.k__2 = '3'").count() == 1
    assert {r["k"]: r["value"] for r in engine.sql("tiny", "SELECT * FROM total").collect()} == site.state()
    engine.state_processor("tiny").transform_state(
        "sums", "total", map=lambda s: s.withColumn("value", F.col("value") * 2)
    )
    engine.state_processor("tiny").transform_state("sums", delete_keys=["2"])
    assert site.state() == {"1": 2, "3": 26, "4": 40}
    assert engine.state_processor("tiny").erase_keys({"k": "1"}).transform.changes == 1
    engine.compact("tiny")
    assert site.state() == {"3": 26, "4": 40}
    with pytest.raises(ConfigurationError, match="keyed by another type"):
        engine.diff("tiny", 1, 3)
    with pytest.raises(ConfigurationError, match="transformed the state"):
        engine.replay(new)

    engine.savepoints("tiny").create("there", tmp_path / "there")
    other = StatefulJob("other", parallelism=2)
    site.job(through=cast("string"))
    there = Site(tmp_path / "other", spark)
    job = there.job(through=cast("string"))
    assert other.name != job.name
    there.engine().restore(job, savepoint=str(tmp_path / "there"))
    assert there.state() == {"3": 26, "4": 40}


@pytest.mark.long
def test_keys_that_would_become_one_are_refused(tmp_path: Path, spark: SparkSession) -> None:
    site = Site(tmp_path, spark).put({"k": ["a", "A", "b"], "v": [1, 2, 3]})
    engine, job = site.engine(), site.job()
    engine.run(job)
    refused: list[tuple[Callable[[Any], Any], type[Exception], str]] = [
        (
            lambda k: k.upper(),
            ConfigurationError,
            r"become one: ('A', 'a'|'a', 'A') would be 'A'\. Nothing was",
        ),
        (lambda k: None, InvalidKeyError, "is null, for the key '"),
        (lambda k: 7, InvalidKeyError, r"7 \(int\) is not a value of type string, for the key"),
        (lambda k: {}[k], InvalidKeyError, "convert failed: KeyError: '.', for the key"),
    ]
    for convert, error, message in refused:
        for dry_run in (True, False):
            with pytest.raises(error, match=message):
                engine.state_processor(job).change_key_type("sums", convert=convert, dry_run=dry_run)
    for call, message in (
        (lambda: engine.state_processor("tiny").change_key_type("sums"), "needs the job itself"),
        (lambda: engine.state_processor(job).change_key_type("other"), r"it has \['sums'\]"),
        (
            lambda: engine.state_processor(site.job(through=cast("int"))).change_key_type("sums"),
            "cannot become .*int.* by a cast that loses nothing .* give convert",
        ),
    ):
        with pytest.raises(ConfigurationError, match=message):
            call()
    assert len(engine.checkpoints(job)) == 1

    engine.state_processor(job).transform_state("sums", delete_keys=["a"])
    engine.state_processor(job).change_key_type("sums", convert=lambda k: k.upper() + "!")
    assert site.state() == {"A!": 2, "B!": 3}


@pytest.mark.long
def test_a_function_makes_keys_of_other_columns(tmp_path: Path, spark: SparkSession) -> None:
    days = [date(2013, 1, 1), date(2013, 1, 2)]
    site = Site(tmp_path, spark).put({"k": days, "v": [1, 2]})
    engine = site.engine()
    engine.run(site.job())
    site.put({"k": days, "v": [10, 20]}, "1")
    with pytest.raises(StateMigrationError, match=r"by key .*date.*, the job keys by .*int"):
        # both are stored as numbers, and are not the same keys for that
        engine.run(site.job(through=cast_days))
    split = site.job(key_by=("year", "day"), through=parts)
    done = engine.state_processor(split).change_key_type(
        "sums", convert=lambda day: (day.year, f"{day:%m-%d}")
    )
    assert done.after == "struct<`year`: int, `day`: string>"
    assert site.state() == {(2013, "01-01"): 1, (2013, "01-02"): 2}
    engine.run(split)
    assert site.state() == {(2013, "01-01"): 11, (2013, "01-02"): 22}


def cast_days(stream: DataStream) -> DataStream:
    return stream.transform(lambda rows: rows.withColumn("k", F.unix_date("k")))


def parts(stream: DataStream) -> DataStream:
    columns = {"year": F.year("k"), "day": F.date_format("k", "MM-dd")}
    return stream.transform(lambda rows: rows.withColumns(columns))


CASTS = [
    ("date", [date(2013, 1, 1), date(1960, 2, 29)], "string", ["2013-01-01", "1960-02-29"]),
    (
        "date",
        [date(2013, 1, 1), date(1960, 2, 29)],
        "timestamp_ntz",
        ["2013-01-01 00:00:00", "1960-02-29 00:00:00"],
    ),
    ("int", [7, -7], "double", ["7.0", "-7.0"]),
    ("bigint", [2**62, -1], "decimal(20,1)", [f"{2**62}.0", "-1.0"]),
    ("boolean", [True, False], "string", ["true", "false"]),
    ("decimal(5,2)", ["1.50", "2.00"], "string", ["1.50", "2.00"]),
]


@pytest.mark.long
@pytest.mark.parametrize(("before", "keys", "after", "outputs"), CASTS, ids=[f"{c[0]}_{c[2]}" for c in CASTS])
def test_casts_are_those_of_spark(
    tmp_path: Path, spark: SparkSession, before: str, keys: list[Any], after: str, outputs: list[str]
) -> None:
    site = Site(tmp_path, spark).put({"k": keys, "v": [1, 2]})
    engine = site.engine()
    engine.run(site.job(through=cast(before)))
    new = site.job(through=lambda stream: cast(after)(cast(before)(stream)))
    engine.state_processor(new).change_key_type("sums")
    site.put({"k": keys, "v": [10, 20]}, "1")
    engine.run(new)
    assert sorted(site.state().values()) == [11, 22]
    assert {row[0] for row in site.outputs()} >= set(outputs)


@pytest.mark.long
def test_who_comes_second_gets_nothing(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path, spark).put({"k": [1], "v": [1]})
    engine, job = site.engine(), site.job(through=cast("string"))
    engine.run(site.job())
    commit, write_base = HeadOperations.commit, maintenance.write_base

    def slow(self: HeadOperations, *args: Any, **options: Any) -> Any:
        site.put({"k": [1], "v": [5]}, "1")
        site.engine().run(site.job())
        return commit(self, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(HeadOperations, "commit", slow)
        with pytest.raises(StaleParentError):
            engine.state_processor(job).change_key_type("sums")
    assert site.state() == {1: 6}

    def overtaken(*args: Any, **options: Any) -> Any:
        files = write_base(*args, **options)
        site.engine().state_processor(job).change_key_type("sums")
        return files

    with monkeypatch.context() as patch:
        patch.setattr(maintenance, "write_base", overtaken)
        assert engine.compact("tiny").committed_id is None, "it would bring the old keys back"
    assert site.state() == {"1": 6}

    def renamed(*args: Any, **options: Any) -> Any:
        files = write_base(*args, **options)
        site.engine().state_processor(job).change_key_type("sums", convert=lambda k: f"{k}!")
        return files

    with monkeypatch.context() as patch:
        patch.setattr(max_parallelism, "write_base", renamed)
        with pytest.raises(StaleParentError, match="moved the head while"):
            engine.rescale(job, max_parallelism=16)
    assert site.state() == {"1!": 6}
