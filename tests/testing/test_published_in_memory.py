"""Published tables of a job in memory: they show what real ones do, and move with the head."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine import (
    DeltaStateTable,
    FileSource,
    KeyedProcessFunction,
    MapStateDescriptor,
    Row,
    RuntimeContext,
    SqlStateTable,
    StateEngine,
    StatefulJob,
    ValueStateDescriptor,
    count,
    max_,
    sum_,
)
from state_engine.core.errors import ConfigurationError, SinkError
from state_engine.testing import KeyedHarness, run_in_memory
from tests.state_tables.histories import Balances, model, random_rows

ROW = "k string, n bigint, shop string"


def shops(**options: Any) -> StatefulJob:
    job = StatefulJob("shops", max_parallelism=8, **options)
    rows = job.source("rows", FileSource("/nowhere", schema=ROW))
    outputs = rows.key_by("k").process(Balances(), output_type=ROW, uid="balances")
    outputs.publish_state("balance", DeltaStateTable("/nowhere/balance"))
    outputs.publish_state(
        "shops", SqlStateTable("sqlite:////nowhere.db", "shops"), name="per_shop", map_key="shop"
    )
    outputs.publish_state("numbers", DeltaStateTable("/nowhere/numbers"), name="all_numbers")
    return job


def tables(run: Any) -> dict[str, list[tuple[Any, ...]]]:
    return {name: sorted(map(tuple, run.table(name))) for name in ("balance", "per_shop", "all_numbers")}


@pytest.mark.parametrize("parallelism", [1, 3])
def test_tables_show_the_states_after_every_micro_batch_and_move_with_the_head(parallelism: int) -> None:
    rows = random_rows(random.Random(7), 40)
    with run_in_memory(shops(parallelism=parallelism)) as run:
        assert tables(run) == model([])
        for at in range(0, 40, 4):
            run.process({"rows": rows[at : at + 4]})
            assert tables(run) == model(rows[: at + 4])
        for to in (2, 9, 1):
            report = run.restore(to)
            assert {move.name for move in report.tables} <= {"balance", "per_shop", "all_numbers"}
            assert tables(run) == model(rows[: 4 * to])


def test_rows_have_the_columns_of_the_real_table_and_stand_by_key() -> None:
    with run_in_memory(shops()) as run:
        run.process({"rows": [("b", 1, "x"), ("a", 2, "y"), ("a", 4, "x")]})
        assert run.table("balance") == [Row(k="a", value=6), Row(k="b", value=1)]
        assert run.table("per_shop")[0] == Row(k="a", shop="x", value=4)
        assert list(run.table("per_shop")[0].as_dict()) == ["k", "shop", "value"]


def test_policies_of_a_restore_are_those_of_real_tables() -> None:
    with run_in_memory(shops()) as run:
        run.process({"rows": [("a", 1, "x")]})
        run.process({"rows": [("a", 2, "x"), ("b", 5, "x")]})
        run.restore(1, outputs={"balance": "keep", "per_shop": "rebuild"})
        assert tables(run) == {
            "balance": [("a", 3), ("b", 5)],
            "per_shop": [("a", "x", 1)],
            "all_numbers": [("a", [1])],
        }
        run.process({"rows": [("a", 6, "x")]})
        assert run.table("balance") == [("a", 7), ("b", 5)]


class Newest(KeyedProcessFunction):
    """The newest number of each key."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def open(self, runtime_context: RuntimeContext) -> None:
        self.newest = runtime_context.get_state(ValueStateDescriptor("newest", self.kind))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.newest.update(value.n)
        yield value


def newest(kind: str, table: Any) -> StatefulJob:
    job = StatefulJob("newest")
    rows = job.source("rows", FileSource("/nowhere", schema=ROW))
    rows.key_by("k").process(Newest(kind), output_type=ROW, uid="newest").publish_state("newest", table)
    return job


def test_a_state_with_other_columns_is_refused_as_by_the_real_table() -> None:
    with run_in_memory(newest("int", DeltaStateTable("/nowhere/newest"))) as run:
        run.process({"rows": [("a", 1, "x"), ("b", 2, "x")]})
        run.restart(newest("bigint", DeltaStateTable("/nowhere/newest")))
        with pytest.raises(SinkError, match="has the columns k string, value integer, the state has k"):
            run.process({"rows": [("a", 2, "x")]})
        run.restart(newest("bigint", DeltaStateTable("/nowhere/another")))
        run.process({"rows": [("a", 3, "x")]})
        assert run.table("newest") == [("a", 3), ("b", 2)]
        with pytest.raises(ConfigurationError, match="no state to a table 'per_shop'; its tables"):
            run.table("per_shop")


class Typed(KeyedProcessFunction):
    """States of types whose stored form is another one."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.last = runtime_context.get_state(
            ValueStateDescriptor("last", "day date, price decimal(10,2), part struct<x: int, d: date>")
        )
        self.days = runtime_context.get_map_state(MapStateDescriptor("days", "date", "array<decimal(10,2)>"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.last.update((value.day, value.price, Row(x=1, d=value.day)))
        self.days.put(value.day, [*(self.days.get(value.day) or []), value.price])
        yield value


DAYS = [date(2026, 1, 2), date(1969, 12, 31), date(2026, 1, 2)]
PRICES = [
    Row("day", "id", "price")(day, number % 2, Decimal(number) / 4) for number, day in enumerate(DAYS * 3)
]
PRICE = "day date, id int, price decimal(10,2)"


def typed(directory: Path | str) -> StatefulJob:
    job = StatefulJob("typed", max_parallelism=8, parallelism=2)
    prices = job.from_collection(PRICES, PRICE, max_rows_per_batch=4)
    outputs = prices.key_by("id", "day").process(Typed(), output_type=PRICE, uid="typed")
    outputs.publish_state("last", DeltaStateTable(f"{directory}/last"))
    outputs.publish_state(
        "days", DeltaStateTable(f"{directory}/days", deletion_vectors=False), map_key="map_day"
    )
    totals = prices.key_by("id").aggregate(n=count(), total=sum_("price"), most=max_("day")).uid("totals")
    totals.publish_state("aggregates", DeltaStateTable(f"{directory}/totals"), name="totals")
    return job


@pytest.mark.spark
def test_tables_in_memory_are_the_tables_on_spark(tmp_path: Path, spark: SparkSession) -> None:
    with StateEngine(tmp_path / "root", spark) as engine, run_in_memory(typed("/nowhere")) as run:
        engine.run(typed(tmp_path), max_batches=2)
        run.run(max_batches=2)
        for _ in range(2):
            for name in ("last", "days", "totals"):
                real = spark.read.format("delta").load(str(tmp_path / name))
                shown = run.table(name)
                assert real.columns == list(shown[0].as_dict())
                assert sorted(map(plain, shown)) == sorted(map(plain, real.collect())), name
            engine.restore("typed", checkpoint_id=1)
            run.restore(1)


def plain(row: Any) -> str:
    """A row of either kind, for a comparison."""
    return repr(tuple(plain(part) if isinstance(part, tuple) else part for part in row))


def test_a_harness_shows_a_state_as_its_table() -> None:
    harness = KeyedHarness(Balances(), key_by=lambda row: row.k, input_type=ROW)
    harness.process([("b", 1, "x"), ("a", 2, "y"), ("a", 4, "x")])
    assert harness.table("balance", key="k string") == [Row(k="a", value=6), Row(k="b", value=1)]
    assert harness.table("shops", key="k string", map_key="shop") == [
        ("a", "x", 4),
        ("a", "y", 2),
        ("b", "x", 1),
    ]
    assert harness.table("numbers", key="k string") == [("a", [2, 4]), ("b", [1])]
    harness.process([("a", 9, "x")])
    assert harness.table("balance", key="k string") == [("b", 1)]
    harness.process([("b", 9, "x")])
    assert harness.table("balance", key="k string") == []


def test_a_table_of_a_harness_is_that_of_the_job() -> None:
    harness = KeyedHarness(
        Typed(), key_by=lambda row: (row.id, row.day), key_type="id int, day date", input_type=PRICE
    )
    harness.process(PRICES)
    with run_in_memory(typed("/nowhere")) as run:
        run.run()
        for name, map_key in (("last", "map_key"), ("days", "map_day")):
            shown = harness.table(name, map_key=map_key)
            assert [row.as_dict() for row in shown] == [row.as_dict() for row in run.table(name)]
            assert len(shown) == 4


def test_a_harness_says_what_a_table_needs() -> None:
    harness = KeyedHarness(Balances(), key_by=lambda row: row.k, input_type=ROW)
    with pytest.raises(ConfigurationError, match=r"no keyed state 'balance' yet; states by key: \[\]"):
        harness.table("balance", key="k string")
    harness.process([("a", 2, "y")])
    with pytest.raises(ConfigurationError, match=r"so name them.*table\('balance', key='account string'\)"):
        harness.table("balance")
    with pytest.raises(ConfigurationError, match=r"would have two columns \['k'\]. Rename the field; for"):
        harness.table("shops", key="k string", map_key="k")
