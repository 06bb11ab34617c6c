"""A job whose states Delta tables show, a plain model of it, and what may happen to it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import polars as pl
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from state_engine import (
    DeltaStateTable,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    RetentionPolicy,
    RuntimeContext,
    StateEngine,
    StatefulJob,
    ValueStateDescriptor,
)
from state_engine.core.checkpoints.checkpoint import CheckpointRow
from tests.state_tables.crashes import dying

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
