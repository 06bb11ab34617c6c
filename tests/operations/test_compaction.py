"""Bases on the real engine: micro-batches and readers see the same state with and without them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from uuid6 import uuid7

from state_engine import (
    DeltaSink,
    FileSource,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    RuntimeContext,
    SortedMapStateDescriptor,
    StateEngine,
    StatefulJob,
    StateTtlConfig,
    ValueStateDescriptor,
)
from state_engine.core.checkpoints.checkpoint import (
    BaseFile,
    BaseRange,
    CheckpointRow,
    OperatorCheckpoint,
)
from state_engine.core.checkpoints.checkpoint_kind import CheckpointKind
from state_engine.core.checkpoints.updates import AddCheckpoint, NewestIs
from state_engine.core.errors import ConfigurationError, MissingFilesError
from state_engine.core.keys.key_groups import KeyGroupRange
from state_engine.operations import compaction
from state_engine.operations.compaction import compacted, write_base
from state_engine.storage.layout import JobLayout
from state_engine.storage.state.listed_files import ListedFile
from state_engine.storage.state.located_files import StateFile, state_files
from tests.core.checkpoints.rows import checkpoint
from tests.support.small_job import path_of

LAYOUT = JobLayout("file:///root", "job")
GROUPS = 8


# -- which files count -------------------------------------------------------------------------------------------------


def file(name: str, low: int, high: int) -> BaseFile:
    return BaseFile(name, 1, 1, 0, low, high, 0, 0)


def row(number: int, *, bases: Sequence[BaseRange] = (), **files: list[Any]) -> CheckpointRow:
    """A row of one operator with 8 key groups."""
    part = OperatorCheckpoint("sums", 2, GROUPS, "struct<`k`: bigint>", [], files.get("changelog", []),
                              list(bases), 0, base_files=files.get("base", []))  # fmt: skip
    return checkpoint(number, number - 1 or None, operators=[part])


def seen(path: list[CheckpointRow]) -> list[tuple[Any, ...]]:
    """Name, order, key groups inside, and those that count where not all do."""
    entries = []
    for f in state_files(LAYOUT, path, "sums"):
        counts = f.listed.counts and [(r.start, r.end) for r in f.listed.counts.ranges]
        name = f.listed.uri.removeprefix("file:///root/job/operators/sums/")
        entries.append((name, f.order, (f.key_group_min, f.key_group_max), counts))
    return entries


def test_without_bases_every_file_counts_as_a_whole() -> None:
    path = [row(1, changelog=[file("a", 0, 3), file("b", 4, 7)]), row(2, changelog=[file("c", 0, 3)])]
    assert seen(path) == [
        ("changelog/a", 1, (0, 3), None), ("changelog/b", 1, (4, 7), None), ("changelog/c", 2, (0, 3), None)
    ]  # fmt: skip


def test_changes_count_after_the_checkpoint_that_the_base_stands_for() -> None:
    """The base of the row w4 stands for checkpoint 2: what came in between counts, although it is older than w4."""
    bases = [BaseRange(0, 7, "w4", 2)]
    written = [file("g0", 0, 0), file("g5", 5, 5)]
    path = [row(n, changelog=[file(f"c{n}", 0, 7)]) for n in (1, 2, 3)]
    path += [row(4, bases=bases, base=written), row(5, bases=bases, changelog=[file("c5", 0, 7)])]
    assert seen(path) == [
        ("base/g0", 0, (0, 0), None),
        ("base/g5", 0, (5, 5), None),
        ("changelog/c3", 3, (0, 7), None),
        ("changelog/c5", 5, (0, 7), None),
    ]
    assert seen(path[:3]) == [(f"changelog/c{n}", n, (0, 7), None) for n in (1, 2, 3)]


def test_a_file_counts_for_the_key_groups_that_no_later_base_holds() -> None:
    first, second = BaseRange(0, 7, "w2", 1), BaseRange(2, 4, "w4", 3)
    kept = [replace(first, key_group_end=1), second, replace(first, key_group_start=5)]
    path = [
        row(1, changelog=[file("c1", 0, 7)]),
        row(2, bases=[first], base=[file(f"g{g}", g, g) for g in range(GROUPS)]),
        row(3, bases=[first], changelog=[file("low", 0, 3), file("high", 4, 7), file("in", 2, 4)]),
        row(4, bases=kept, base=[file("new3", 3, 3)]),
    ]
    assert seen(path) == [
        *[(f"base/g{g}", 0, (g, g), None) for g in (0, 1)],
        ("base/new3", 0, (3, 3), None),
        *[(f"base/g{g}", 0, (g, g), None) for g in (5, 6, 7)],
        ("changelog/low", 3, (0, 1), [(0, 1)]),
        ("changelog/high", 3, (5, 7), [(5, 7)]),
    ]


def test_key_groups_without_a_base_count_from_the_start() -> None:
    base = BaseRange(3, 4, "w2", 1)
    path = [row(1, changelog=[file("c1", 0, 7)]), row(2, bases=[base], base=[file("g3", 3, 3)])]
    assert seen(path)[-1] == ("changelog/c1", 1, (0, 7), [(0, 2), (5, 7)])


def test_a_base_that_no_row_of_the_path_wrote_is_reported() -> None:
    path = [row(1, bases=[BaseRange(0, 7, "w9", 1)])]
    with pytest.raises(MissingFilesError, match="rests on the base w9, and no checkpoint on the path wrote"):
        state_files(LAYOUT, path, "sums")


# -- the row -----------------------------------------------------------------------------------------------------------


def ranges(operator: OperatorCheckpoint) -> list[tuple[int, int, str, int]]:
    return [(b.key_group_start, b.key_group_end, b.base_id, b.checkpoint_id) for b in operator.bases]


def test_a_part_of_the_key_groups_takes_its_place_among_the_bases() -> None:
    before = row(3, bases=[BaseRange(0, 7, "w2", 1)], changelog=[file("c", 0, 1)]).operators[0]
    before = replace(before, changed_entries=1, next_timers_ms={"event": 5})
    new = [KeyGroupRange(6, 6), KeyGroupRange(2, 3)]
    operator = compacted(
        before, [file("g3", 3, 3)], base_id="w4", checkpoint_id=3, max_parallelism=GROUPS, key_groups=new
    )
    assert ranges(operator) == [
        (0, 1, "w2", 1), (2, 3, "w4", 3), (4, 5, "w2", 1), (6, 6, "w4", 3), (7, 7, "w2", 1)
    ]  # fmt: skip
    assert (operator.changelog, operator.changed_entries, operator.base_files) == ([], 0, [file("g3", 3, 3)])
    assert operator.next_timers_ms == before.next_timers_ms


def test_another_number_of_key_groups_replaces_all_bases() -> None:
    before = row(3, bases=[BaseRange(0, 7, "w2", 1)]).operators[0]
    operator = compacted(before, [], base_id="w4", checkpoint_id=3, max_parallelism=32)
    assert (ranges(operator), operator.max_parallelism) == ([(0, 31, "w4", 3)], 32)
    with pytest.raises(ConfigurationError, match="max parallelism changes from 8 to 32"):
        compacted(
            before, [], base_id="w", checkpoint_id=3, max_parallelism=32, key_groups=[KeyGroupRange(0, 1)]
        )


@pytest.mark.parametrize("wrong", [[(0, 3), (3, 4)], [(7, 8)]])
def test_key_groups_that_cannot_be_are_refused(wrong: list[tuple[int, int]]) -> None:
    given = [KeyGroupRange(*r) for r in wrong]
    with pytest.raises(ConfigurationError, match="must not overlap, and must be below 8"):
        compacted(
            row(1).operators[0], [], base_id="w", checkpoint_id=1, max_parallelism=GROUPS, key_groups=given
        )


@pytest.mark.parametrize(("before", "after"), [(8, 8), (8, 16), (16, 8), (6, 4), (7, 5)])
@pytest.mark.parametrize("at_once", [1, 3, 1000])
def test_every_hash_is_folded_once_with_all_files_that_may_hold_it(
    before: int, after: int, at_once: int
) -> None:
    files = [
        StateFile(ListedFile(str(n), 5), low, min(high, before - 1), n)
        for n, (low, high) in enumerate([(0, 0), (1, 1), (0, 2), (3, 9), (4, 4)])
    ]
    chunks = compaction._chunks(files, range(after), before=before, after=after, tasks=2, at_once=at_once)
    for h in range(before * after):
        holding = [f for f in files if f.key_group_min <= h % before <= f.key_group_max]
        having = [c for c in chunks if any(h % after in r for r in c.groups.ranges)]
        assert len(having) <= 1
        if holding:
            assert [f for f in having[0].files if f in holding] == holding  # in their order
    assert len(chunks) == 1 or at_once < 1000


# -- on the engine -----------------------------------------------------------------------------------------------------

OUTPUT = "k string, n bigint, what string"
CLOCK_MS, LIFE_MS = 1_000_000, 100


class Everything(KeyedProcessFunction):
    """Has a state of every kind, changes them as an element says, and emits all that it reads."""

    def open(self, runtime_context: RuntimeContext) -> None:
        hidden = StateTtlConfig.new_builder(timedelta(milliseconds=LIFE_MS)).build()
        shown = (
            StateTtlConfig.new_builder(timedelta(milliseconds=LIFE_MS))
            .return_expired_if_not_cleaned_up()
            .disable_cleanup_in_background()
            .build()
        )
        fresh, latest = ValueStateDescriptor("fresh", int), ListStateDescriptor("latest", int)
        stale = MapStateDescriptor("stale", str, int)
        fresh.enable_time_to_live(hidden)
        latest.enable_time_to_live(hidden)
        stale.enable_time_to_live(shown)
        self.total = runtime_context.get_state(ValueStateDescriptor("total", int))
        self.every = runtime_context.get_list_state(ListStateDescriptor("every", int))
        self.by = runtime_context.get_map_state(MapStateDescriptor("by", str, int))
        self.ranks = runtime_context.get_sorted_map_state(SortedMapStateDescriptor("ranks", int, str))
        self.fresh, self.latest = runtime_context.get_state(fresh), runtime_context.get_list_state(latest)
        self.stale = runtime_context.get_map_state(stale)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        n = value.n
        if value.op == "add":
            self.total.update((self.total.value() or 0) + n)
            self.every.add(n)
            self.by.put(f"m{n % 5}", n)
            self.ranks.put(-n, str(n))
            self.fresh.update(n)
            self.latest.add(n)
            self.stale.put(f"m{n % 3}", n)
            ctx.timer_service().register_processing_time_timer(CLOCK_MS + n * 10)
        elif value.op == "drop":
            self.by.remove(f"m{n % 5}")
            self.ranks.remove(-n)
            self.every.clear()
        elif value.op == "clear":
            for state in (self.total, self.every, self.by, self.ranks, self.fresh, self.latest, self.stale):
                state.clear()
        yield str(ctx.get_current_key()), n, self._all()

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        yield str(ctx.get_current_key()), -timestamp, str(self.total.value())

    def _all(self) -> str:
        lists = [list(self.every.get()), list(self.latest.get())]
        maps = [list(m.items()) for m in (self.by, self.ranks, self.stale)]
        return str((self.total.value(), self.fresh.value(), *lists, *maps))


STATES = ("total", "every", "by", "ranks", "fresh", "latest", "stale", "_timers")
KEYS = [f"k{i}" for i in range(12)]
Batch = list[tuple[str, str, int]]
BATCHES: list[Batch] = [
    [(k, "add", i + j) for i, k in enumerate(KEYS) for j in (3, 1, 2, 4)],
    [(k, "drop", i + 1) for i, k in enumerate(KEYS[:4])] + [(k, "clear", 0) for k in KEYS[4:6]],
    [(k, "add", i + 21) for i, k in enumerate(KEYS[2:8])]
    + [(k, "add", i + 1) for i, k in enumerate(KEYS[:3])]
    + [(k, "add", 31) for k in KEYS[8:11]],  # these were never cleared: repeating a change would show
    [(k, "look", 0) for k in [*KEYS, "new"]] + [(KEYS[0], "add", 50)],
]


class Everywhere:
    """The job in a directory of its own."""

    def __init__(self, directory: Path, spark: SparkSession) -> None:
        self.directory, self.spark, self.fed = directory, spark, 0
        self.engine = StateEngine(directory / "root", spark)
        (directory / "feed").mkdir(parents=True)

    def job(self, max_parallelism: int) -> StatefulJob:
        job = StatefulJob("small", parallelism=2, max_parallelism=max_parallelism)
        stream = job.source("events", FileSource(str(self.directory / "feed")), order_by=["at"])
        stream.key_by("k").process(Everything(), uid="sums", output_type=OUTPUT).sink(
            "out", DeltaSink(str(self.directory / "out"))
        )
        return job

    def run(self, batch: Batch, clock_ms: int, max_parallelism: int = GROUPS) -> None:
        k, op, n = zip(*batch, strict=True)
        at = list(range(len(batch)))
        self.fed += 1
        table = pa.table({"k": k, "op": op, "n": n, "at": at})
        pq.write_table(table, self.directory / "feed" / f"{self.fed}.parquet")
        report = self.engine.run(self.job(max_parallelism), clock=clock_ms)
        assert len(report.batches) == 1

    def compact(
        self, as_of: int, *, max_parallelism: int = GROUPS, key_groups: list[KeyGroupRange] | None = None
    ) -> list[BaseFile]:
        """Write a base as of a checkpoint, and commit it on the head."""
        path, tables = path_of(self.engine), self.engine.context.tables("small")
        head, base_id = path[-1], uuid7().hex
        rows = [r for r in path if r.checkpoint_id <= as_of]
        operator = head.operator("sums")
        assert operator is not None
        tables.ensure_base("sums", operator.key_schema, operator.states)
        files = write_base(
            self.spark, tables.layout, rows, "sums", base_id=base_id, max_parallelism=max_parallelism,
            key_groups=key_groups,
        ).files  # fmt: skip
        operator_after = compacted(
            operator, files, base_id=base_id, checkpoint_id=as_of, max_parallelism=max_parallelism,
            key_groups=key_groups,
        )  # fmt: skip
        sources = [replace(s, position_from=s.position_to, rows=0) for s in head.sources]
        row = replace(
            head,
            checkpoint_id=head.checkpoint_id + 1,
            parent_id=head.checkpoint_id,
            kind=CheckpointKind.COMPACTION if max_parallelism == GROUPS else CheckpointKind.RESCALE,
            write_id=base_id,
            operators=[operator_after],
            operator_state_files=[],
            sources=sources,
            sinks=[],
            rows_in=0,
        )
        tables.log.load()
        tables.log.commit([AddCheckpoint(row)], NewestIs(head.checkpoint_id))
        return files

    def outputs(self) -> list[tuple[Any, ...]]:
        rows = DeltaTable(str(self.directory / "out")).to_pyarrow_table().to_pylist()
        return sorted(tuple(r.values()) for r in rows)

    def states(self) -> dict[str, list[str]]:
        return {
            name: sorted(str(r) for r in self.engine.read_state("small", "sums", name).collect())
            for name in STATES
        }

    def used(self) -> list[StateFile]:
        return state_files(JobLayout(self.engine.root, "small"), path_of(self.engine), "sums")


def clocks(number: int) -> int:
    """Of a batch: the items of the first one have expired when the third comes."""
    return CLOCK_MS + number * 60


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Everywhere:
    """All batches without any base."""
    site = Everywhere(tmp_path_factory.mktemp("plain"), spark)
    for number, batch in enumerate(BATCHES):
        site.run(batch, clocks(number))
    return site


@pytest.mark.long
def test_results_are_the_same_with_bases_of_all_and_of_some_key_groups(
    tmp_path: Path, spark: SparkSession, plain: Everywhere
) -> None:
    site = Everywhere(tmp_path, spark)
    site.run(BATCHES[0], clocks(0))
    site.compact(1)
    assert all(f.is_base for f in site.used())
    site.run(BATCHES[1], clocks(1))
    site.run(BATCHES[2], clocks(2))
    before = site.states()
    # as of an earlier checkpoint, for some key groups: some files of changes count for the others only
    site.compact(4, key_groups=[KeyGroupRange(1, 2), KeyGroupRange(6, 6)])
    partly = [f for f in site.used() if f.listed.counts is not None]
    assert partly
    assert site.states() == before
    site.compact(3, key_groups=[KeyGroupRange(7, 7)])
    assert site.states() == before
    site.run(BATCHES[3], clocks(3))
    assert site.outputs() == plain.outputs()
    assert site.states() == plain.states()
    assert any(rows for rows in site.states().values())


@pytest.mark.long
def test_results_are_the_same_with_another_number_of_key_groups(
    tmp_path: Path, spark: SparkSession, plain: Everywhere
) -> None:
    site = Everywhere(tmp_path, spark)
    for number in (0, 1):
        site.run(BATCHES[number], clocks(number))
    files = site.compact(2, max_parallelism=12)
    assert {f.key_group_min for f in files} - set(range(GROUPS))
    for number in (2, 3):
        site.run(BATCHES[number], clocks(number), max_parallelism=12)
    assert site.outputs() == plain.outputs()
    assert site.states() == plain.states()


@pytest.mark.spark_tasks
def test_expired_entries_are_gone_unless_they_may_be_seen(tmp_path: Path, spark: SparkSession) -> None:
    site = Everywhere(tmp_path, spark)
    site.run(BATCHES[0], clocks(0))
    site.run([("other", "look", 0)], clocks(0) + LIFE_MS)
    site.compact(2)
    states = [r["state"] for f in site.used() for r in pq.ParquetFile(f.listed.uri[7:]).read().to_pylist()]
    assert set(states) == {"total", "every", "by", "ranks", "stale", "_timers"}
    # one row a key of a value or list, one a map entry
    assert states.count("total") == states.count("every") == len(KEYS)
    assert states.count("by") == 4 * len(KEYS)


def test_the_table_can_hold_what_is_written(tmp_path: Path, spark: SparkSession) -> None:
    site = Everywhere(tmp_path, spark)
    site.run(BATCHES[0], clocks(0))
    files = site.compact(1)
    table = DeltaTable(str(tmp_path / "root/small/operators/sums/base"))
    assert table.metadata().partition_columns == ["base_id", "key_group"]
    fields = {f.name: f.type for f in table.schema().fields}
    written = pq.read_schema(tmp_path / "root/small/operators/sums/base" / files[0].path)
    assert set(written.names) | {"base_id", "key_group"} == set(fields)
    rows = spark.read.parquet(str(tmp_path / "root/small/operators/sums/base")).collect()
    assert len(rows) == sum(f.rows for f in files)
    assert all(r["key_hash"] % GROUPS == r["key_group"] for r in rows)


def test_an_operator_that_is_not_there_is_reported(tmp_path: Path, spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match="no state of an operator 'nope'"):
        write_base(spark, LAYOUT, [row(1)], "nope", base_id="b")
