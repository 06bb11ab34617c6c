"""A job whose states Delta tables show, a plain model of it, and what may happen to it."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from sqlalchemy.engine import Engine

from state_engine import (
    DeltaStateTable,
    FileSource,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    RetentionPolicy,
    RuntimeContext,
    SqlStateTable,
    StateEngine,
    StatefulJob,
    StateTtlConfig,
    Time,
    ValueStateDescriptor,
)
from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.time.partitions import TimePartitions
from state_engine.publishing.published_tables import PublishedTables
from state_engine.state_tables import delta, delta_files
from state_engine.storage.delta.kernel import DeltaKernel
from tests.support.killed import Killed


class Steps:
    """Counts the steps of publishing, and dies at one of them; None for none.

    Steps are each file and commit of a Delta table, before and after it, and each statement and commit of a database.
    """

    def __init__(self, dies_at: int | None) -> None:
        self.dies_at, self.taken, self._depth = dies_at, list[str](), 0

    def next(self, name: str) -> None:
        if not self._depth:
            return
        self.taken.append(name)
        if self.dies_at is not None and len(self.taken) > self.dies_at:
            raise Killed

    def around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **options: Any) -> Any:
            self.next(f"before {name}")
            done = call(*given, **options)
            self.next(f"after {name}")
            return done

        return counted

    def inside(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*given: Any, **options: Any) -> Any:
            self._depth += 1
            try:
                return call(*given, **options)
            finally:
                self._depth -= 1

        return counting


@contextmanager
def dying(at: int | None) -> Iterator[Steps]:
    """Publishers in this process die at a step; the error is swallowed, as the process would be gone."""
    steps = Steps(at)

    def statement(*_: Any) -> None:
        steps.next("statement")

    def commit(*_: Any) -> None:
        steps.next("commit of a database")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PublishedTables, "follow", steps.inside(PublishedTables.follow))
        for name in ("create_table", "commit_upon"):
            patch.setattr(DeltaKernel, name, steps.around(name, getattr(DeltaKernel, name)))
        patch.setattr(delta, "write_parquet", steps.around("data file", delta.write_parquet))
        patch.setattr(delta_files, "written", steps.around("deletion vectors", delta_files.written))
        sa.event.listen(Engine, "before_cursor_execute", statement)
        sa.event.listen(Engine, "commit", commit)
        try:
            yield steps
        except Killed:
            pass
        finally:
            sa.event.remove(Engine, "before_cursor_execute", statement)
            sa.event.remove(Engine, "commit", commit)


Row = tuple[str, int, str]
CUT = 3
TABLES = ("balance", "per_shop", "all_numbers")
RESET = 9
"""A number that clears all state of its key."""


class Balances(KeyedProcessFunction):
    """Per key: the sum, the sum by shop, all numbers."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.balance = runtime_context.get_state(ValueStateDescriptor("balance", int))
        self.shops = runtime_context.get_map_state(MapStateDescriptor("shops", str, int))
        self.numbers = runtime_context.get_list_state(ListStateDescriptor("numbers", int))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        if value.n == RESET:
            self.balance.clear()
            self.shops.clear()
            self.numbers.clear()
            return
        self.balance.update((self.balance.value() or 0) + value.n)
        if value.n % 4 == 3:
            self.shops.remove(value.shop)
        else:
            self.shops.put(value.shop, (self.shops.get(value.shop) or 0) + value.n)
        self.numbers.add(value.n)
        yield value


def random_rows(chance: random.Random, count: int) -> list[Row]:
    return [(chance.choice("abcdefgh"), chance.randrange(10), chance.choice("xyz")) for _ in range(count)]


def model(rows: list[Row]) -> dict[str, list[tuple[Any, ...]]]:
    """What the tables show when these rows were read, by a plain loop."""
    balance: dict[str, int] = {}
    shops: dict[tuple[str, str], int] = {}
    numbers: dict[str, list[int]] = {}
    for key, n, shop in rows:
        if n == RESET:
            balance.pop(key, None)
            numbers.pop(key, None)
            shops = {place: total for place, total in shops.items() if place[0] != key}
            continue
        balance[key] = balance.get(key, 0) + n
        if n % 4 == 3:
            shops.pop((key, shop), None)
        else:
            shops[key, shop] = shops.get((key, shop), 0) + n
        numbers.setdefault(key, []).append(n)
    return {
        "balance": sorted(balance.items()),
        "per_shop": sorted((*place, total) for place, total in shops.items()),
        "all_numbers": sorted(numbers.items()),
    }


@dataclass
class Site:
    """A root, tables beside it, and a job that reads rows."""

    directory: Path
    rows: list[Row]
    engine: StateEngine
    chance: random.Random
    done: list[str] = field(default_factory=list)

    @classmethod
    def begun(cls, directory: Path, spark: SparkSession, *, seed: int, rows: int) -> Self:
        """A site of some random rows, of which none was read yet."""
        chance = random.Random(seed)
        return cls(directory, random_rows(chance, rows), StateEngine(directory / "root", spark=spark), chance)

    def job(self) -> StatefulJob:
        job = StatefulJob("shops", max_parallelism=8, compaction=None)
        events = job.from_collection(
            self.rows, "k string, n bigint, shop string", name="events", max_rows_per_batch=CUT
        )
        outputs = events.key_by("k").process(
            Balances(), output_type="k string, n bigint, shop string", uid="balances"
        )
        outputs.publish_state("balance", DeltaStateTable(self.table("balance")))
        outputs.publish_state(
            "shops",
            DeltaStateTable(self.table("per_shop"), deletion_vectors=False),
            name="per_shop",
            map_key="shop",
        )
        outputs.publish_state("numbers", DeltaStateTable(self.table("all_numbers")), name="all_numbers")
        return job

    def table(self, name: str) -> str:
        return str(self.directory / "tables" / name)

    # -- what is there ---------------------------------------------------------------------------------------------

    @property
    def path(self) -> list[CheckpointRow]:
        return path_of(self.engine, "shops")

    def expected(self) -> dict[str, list[tuple[Any, ...]]]:
        return model(self.rows[: sum(row.rows_in for row in self.path)])

    def shown(self) -> dict[str, list[tuple[Any, ...]]]:
        """As polars reads the tables; what has no deletion vectors also as delta-rs does."""
        shown = {name: rows_of(pl.read_delta(self.table(name))) for name in TABLES}
        without = pl.from_arrow(DeltaTable(self.table("per_shop")).to_pyarrow_table())
        assert isinstance(without, pl.DataFrame)
        assert rows_of(without) == shown["per_shop"]
        return shown

    def check(self) -> None:
        assert self.shown() == self.expected(), self.done

    # -- what happens ----------------------------------------------------------------------------------------------

    @property
    def steps(self) -> list[Callable[[], None]]:
        """What may happen; what stands twice does so more often."""
        return [
            self.run, self.run, self.run, self.restore, self.compact, self.promote, self.rescale,
            self.crash, self.crash, self.expire, self.optimize, self.tidy, self.vanish, self.put_root_back,
        ]  # fmt: skip

    def step(self) -> None:
        step = self.chance.choice(self.steps)
        self.done.append(step.__name__)
        step()

    def opened_anew(self) -> None:
        """Another process goes on."""
        self.engine.close()
        self.engine = StateEngine(self.directory / "root", spark=self.engine.context.session)
        self.engine.publish_pending("shops")

    def run(self) -> None:
        self.engine.run(self.job(), max_batches=self.chance.randint(1, 3))

    def restore(self) -> None:
        kept = [row for row in self.engine.checkpoints("shops") if row.branch == "main"]
        target = self.chance.choice(kept)
        retired = {i for row in kept for i in row.retired}
        if target.checkpoint_id not in retired and target is not kept[-1]:
            self.engine.restore(self.job(), checkpoint_id=target.checkpoint_id)

    def compact(self) -> None:
        self.engine.compact("shops")

    def expire(self) -> None:
        self.engine.expire_checkpoints("shops", RetentionPolicy(self.chance.randint(1, 3)))

    def promote(self) -> None:
        ids = [row.checkpoint_id for row in self.path if row.kind == "checkpoint"]
        retired = {i for row in self.engine.checkpoints("shops") for i in row.retired}
        if len(ids) > 2 and ids[-3] not in retired:
            replayed = self.engine.replay(self.job(), from_checkpoint=ids[-3])
            self.engine.promote(self.job(), replayed.branch)

    def rescale(self) -> None:
        self.engine.rescale(self.job(), parallelism=self.chance.randint(1, 3))

    def crash(self) -> None:
        """A publish ends at any of its steps."""
        with dying(self.chance.randrange(70)):  # or has fewer
            self.run()
        self.opened_anew()

    def optimize(self) -> None:
        """Somebody puts the files of a table together."""
        DeltaTable(self.table("per_shop")).optimize.compact()

    def tidy(self) -> None:
        self.engine.published("shops").tidy()

    def vanish(self) -> None:
        """A table is deleted; the next look makes it anew."""
        shutil.rmtree(self.table(self.chance.choice(TABLES)))
        self.opened_anew()

    def put_root_back(self) -> None:
        """The root is put back from a backup; its tables are ahead of it, or show other checkpoints of its numbers."""
        root, backup = self.directory / "root", self.directory / "backup"
        self.engine.close()
        if backup.exists():
            shutil.rmtree(root)
            backup.rename(root)
        else:
            shutil.copytree(root, backup)
        self.opened_anew()


def path_of(engine: StateEngine, job: str) -> list[CheckpointRow]:
    """The rows that lead to the head of ``main``, oldest first."""
    rows = {row.checkpoint_id: row for row in engine.checkpoints(job)}
    heads = [row for row in rows.values() if row.branch == "main"]
    path, at = [], heads[-1].checkpoint_id if heads else None
    while at is not None:
        path.append(rows[at])
        at = rows[at].parent_id
    return path[::-1]


def rows_of(frame: pl.DataFrame) -> list[tuple[Any, ...]]:
    return sorted(frame.rows())


def vacuum(spark: SparkSession, table: str, *, retained_hours: int | None = None) -> None:
    """Spark's VACUUM, in few tasks."""
    few = {
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "1",
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    }
    before = {name: spark.conf.get(name, None) for name in few}
    for name, value in few.items():
        spark.conf.set(name, value)
    retain = "" if retained_hours is None else f" RETAIN {retained_hours} HOURS"
    spark.sql(f"VACUUM delta.`{table}`{retain}")
    for name, known in before.items():
        spark.conf.unset(name) if known is None else spark.conf.set(name, known)


MINUTE = 60_000
DAY = 86_400_000
START_MS = 1_356_998_400_000
DAYS = [f"2013-01-{day:02}" for day in range(1, 9)]
TTL_MS = 10 * MINUTE
SCHEMA = "k string, n bigint, shop string"


class BalancesInTime(Balances):
    """And the sum of what came without a break of ten minutes."""

    def __init__(self, factor: int = 1) -> None:
        self.factor = factor

    def open(self, runtime_context: RuntimeContext) -> None:
        super().open(runtime_context)
        descriptor = ValueStateDescriptor("recent", int)
        descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.milliseconds(TTL_MS)).build())
        self.recent = runtime_context.get_state(descriptor)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        n = times(value.n, self.factor)
        yield from super().process_element(_Number(n, value.shop), ctx)
        if n == RESET:
            self.recent.clear()
        else:
            self.recent.update((self.recent.value() or 0) + n)


@dataclass(frozen=True)
class _Number:
    n: int
    shop: str


def times(n: int, factor: int) -> int:
    """What a formula makes of a number: one that clears stays, and no other becomes one."""
    return n if n == RESET or n * factor == RESET else n * factor


@dataclass(frozen=True)
class Batch:
    """What a checkpoint on the path of the head read, and when."""

    rows: list[Row]
    clock_ms: int
    is_compaction: bool = False


def recent_of(batches: list[Batch]) -> tuple[dict[str, int], dict[str, int]]:
    """What the table of recent sums must show, and what it may show besides: expired since the last compaction."""
    sums: dict[str, tuple[int, int]] = {}
    now_ms = 0
    for batch in batches:
        now_ms = batch.clock_ms
        if batch.is_compaction:
            sums = {key: (n, at) for key, (n, at) in sums.items() if at + TTL_MS > now_ms}
        for key, n, _ in batch.rows:
            before, at = sums.pop(key, (0, now_ms))
            if n != RESET:
                sums[key] = ((before if at + TTL_MS > now_ms else 0) + n, now_ms)
    alive = {key: n for key, (n, at) in sums.items() if at + TTL_MS > now_ms}
    return alive, {key: n for key, (n, _) in sums.items() if key not in alive}


@dataclass
class WideSite(Site):
    """A site with more states and tables."""

    databases: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    passwords: Mapping[str, str] = field(default_factory=dict)
    now_ms: int = START_MS + 20 * DAY
    by_spark: bool = False
    factor: int = 1

    def stream(self, job: StatefulJob) -> Any:
        return job.from_collection(self.rows, SCHEMA, name="events", max_rows_per_batch=CUT)

    def empty_job(self) -> StatefulJob:
        return StatefulJob("shops", max_parallelism=8, compaction=None, code_version=str(self.factor))

    def job(self) -> StatefulJob:
        job = self.empty_job()
        outputs = self.stream(job).key_by("k").process(
            BalancesInTime(self.factor), output_type="n bigint, shop string", uid="balances"
        )  # fmt: skip
        plain, maps = DeltaStateTable(self.table("balance")), {"map_key": "shop"}
        outputs.publish_state("balance", plain)
        without = DeltaStateTable(self.table("per_shop"), deletion_vectors=False)
        outputs.publish_state("shops", without, name="per_shop", **maps)
        outputs.publish_state("numbers", DeltaStateTable(self.table("all_numbers")), name="all_numbers")
        outputs.publish_state("recent", DeltaStateTable(self.table("recent")))
        for word, options in self.databases.items():
            outputs.publish_state(
                "balance", SqlStateTable(table="balance", **options), name=f"{word}_balance"
            )
            shops = SqlStateTable(table="per_shop", **options)
            outputs.publish_state("shops", shops, name=f"{word}_per_shop", **maps)
            outputs.publish_state("recent", SqlStateTable(table="recent", **options), name=f"{word}_recent")
        return job

    # -- what is there ---------------------------------------------------------------------------------------------

    def batches(self) -> list[Batch]:
        """What the path to the head read."""
        path, at = list[Batch](), 0
        for row in self.path:
            path.append(Batch(self.rows[at : at + row.rows_in], row.clock_ms, row.kind == "compaction"))
            at += row.rows_in
        return path

    def expected_by_path(self) -> dict[str, list[tuple[Any, ...]]]:
        return model([row for batch in self.batches() for row in batch.rows])

    def check(self) -> None:
        batches, expected = self.batches(), self.expected_by_path()
        assert self.shown() == expected, self.done
        alive, also = recent_of(batches)
        recents = {"delta": dict(rows_of(pl.read_delta(self.table("recent"))))}
        for word in self.databases:
            assert self.of_database(word, "balance") == expected["balance"], (word, self.done)
            assert self.of_database(word, "per_shop") == expected["per_shop"], (word, self.done)
            recents[word] = dict(self.of_database(word, "recent"))
        for word, recent in recents.items():
            assert alive.items() <= recent.items() <= (alive | also).items(), (word, self.done)
        if self.by_spark:
            name = self.chance.choice(TABLES)
            self.check_by_spark({name: expected[name]})

    def check_by_spark(self, expected: Mapping[str, Any]) -> None:
        for name, rows in expected.items():
            spark = self.engine.context.session
            assert spark is not None
            read = spark.read.format("delta").load(self.table(name)).collect()
            assert sorted(map(tuple, read)) == rows, (name, self.done)

    def of_database(self, word: str, table: str) -> list[tuple[Any, ...]]:
        names = {"balance": "k, value", "per_shop": "k, shop, value", "recent": "k, value"}[table]
        return sorted(self.query(word, f"SELECT {names} FROM {table}"))

    def query(self, word: str, statement: str) -> list[tuple[Any, ...]]:
        url = str(self.databases[word]["url"])
        if url.startswith("sqlite:///"):
            with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as lite:
                rows = lite.execute(statement).fetchall()
                lite.commit()
                return rows
        engine = sa.create_engine(
            sa.make_url(url).set(drivername="postgresql+psycopg", password=self.passwords[word]),
            poolclass=sa.NullPool,
        )
        with engine.begin() as connection:
            result = connection.execute(sa.text(statement))
            return [tuple(row) for row in result] if result.returns_rows else []

    # -- what happens ----------------------------------------------------------------------------------------------

    @property
    def steps(self) -> list[Callable[[], None]]:
        return [*super().steps, self.drop_in_database, self.verify, self.wait, self.dies_at_a_move]

    def run(self) -> None:
        self.now_ms += self.chance.randrange(8) * MINUTE
        self.engine.run(self.job(), max_batches=self.chance.randint(1, 3), clock=self.now_ms)

    def wait(self) -> None:
        """Everything recent expires, and a compaction leaves it out."""
        self.now_ms += 2 * TTL_MS
        self.engine.run(self.job(), max_batches=1, clock=self.now_ms)
        self.compact()

    def compact(self) -> None:
        super().compact()
        self.engine.publish_pending("shops")

    def dies_at_a_move(self) -> None:
        """A restore or a promotion is committed, and its publish ends at any of its steps."""
        with dying(self.chance.randrange(70)):
            self.chance.choice([self.restore, self.promote])()
        self.opened_anew()

    def drop_in_database(self) -> None:
        for word in self.databases:
            self.query(word, f"DROP TABLE {self.chance.choice(['balance', 'per_shop', 'recent'])}")
        self.opened_anew()

    def lose_tables(self) -> None:
        """All tables are deleted."""
        for name in (*TABLES, "recent"):
            shutil.rmtree(self.table(name))
        for word in self.databases:
            for name in ("balance", "per_shop", "recent"):
                self.query(word, f"DROP TABLE {name}")

    def verify(self) -> None:
        name = self.chance.choice([*TABLES, *(f"{word}_balance" for word in self.databases)])
        move = self.engine.published("shops").verify(name)
        assert (move.rows, move.deleted) == (0, 0), (name, self.done)


@dataclass
class PartitionedSite(WideSite):
    """A site that reads days, which are backfilled with other code."""

    def __post_init__(self) -> None:
        self.days: dict[str, list[Row]] = {day: [] for day in DAYS}
        for i, row in enumerate(self.rows):
            self.days[DAYS[i % len(DAYS)]].append(row)
        feed = self.directory / "feed"
        feed.mkdir(parents=True)
        at, rows = list[datetime](), list[Row]()
        for n, day in enumerate(DAYS):
            for minute, row in enumerate(self.days[day]):
                at.append(datetime.fromtimestamp((START_MS + n * DAY + minute * MINUTE) / 1000, UTC))
                rows.append(row)
        columns = {name: [row[i] for row in rows] for i, name in enumerate(("k", "n", "shop"))}
        pq.write_table(
            pa.table({**columns, "at": pa.array(at, pa.timestamp("us", "UTC"))}), feed / "all.parquet"
        )

    def empty_job(self) -> StatefulJob:
        partitions = TimePartitions("at", start=DAYS[0], end="2013-01-09")
        version = str(self.factor)
        return StatefulJob(
            "shops", max_parallelism=8, compaction=None, partitions=partitions, code_version=version
        )

    def stream(self, job: StatefulJob) -> Any:
        feed = FileSource(str(self.directory / "feed"))
        return job.source("events", feed, order_by=["at"], event_time="at")

    def batches(self) -> list[Batch]:
        return [
            Batch(self._read(row) if row.rows_in else [], row.clock_ms, row.kind == "compaction")
            for row in self.path
        ]

    def _read(self, row: CheckpointRow) -> list[Row]:
        rows = self.days[row.partition]
        assert len(rows) == row.rows_in
        return [(key, times(n, int(row.code_version)), shop) for key, n, shop in rows]

    @property
    def steps(self) -> list[Callable[[], None]]:
        return [
            self.run, self.run, self.restore, self.compact, self.rescale, self.crash, self.wait,
            self.dies_at_a_backfill, self.backfill, self.backfill, self.backfill_and_stop,
            self.backfill_and_stop, self.branch,
        ]  # fmt: skip

    def promote(self) -> None:
        self.branch()

    def restore(self) -> None:
        super().restore()
        self.factor = self.chance.randint(1, 3)

    def backfill(self) -> None:
        self._backfill("roll_forward")

    def backfill_and_stop(self) -> None:
        """The table shows the state at the end of the range; later days are run again, or not yet."""
        last = self._backfill("stop")
        if last and self.path[-1].kind == "promote":
            assert [row.partition for row in self.path if row.partition][-1] == last

    def branch(self) -> None:
        """A backfill on a branch changes no table, until it is promoted."""
        before = self.shown()
        branches = {row.branch for row in self.engine.checkpoints("shops")}
        if not self._backfill("branch"):
            return
        assert self.shown() == before
        (branch,) = {row.branch for row in self.engine.checkpoints("shops")} - branches
        planned = self.engine.promote(self.job(), branch, dry_run=True)
        done = self.engine.promote(self.job(), branch)
        assert done.tables == planned.tables, (done.tables, planned.tables)

    def _backfill(self, mode: str) -> str:
        """Run some of the days again with another formula; the last one of the range, or nothing."""
        days = [row.partition for row in self.path if row.partition and row.kind == "checkpoint"]
        if not days:
            return ""
        first = self.chance.choice(days)
        last = self.chance.choice([day for day in days if day >= first])
        before = self.factor
        self.factor = self.chance.randint(1, 3)
        code, self.factor = self.job(), before
        report = self.engine.backfill(self.job(), first, last, mode, code=code)
        self.factor = int(code.code_version)
        return last if report.batches else ""

    def dies_at_a_backfill(self) -> None:
        with dying(self.chance.randrange(70)):
            self._backfill(self.chance.choice(["roll_forward", "stop"]))
        self.opened_anew()
