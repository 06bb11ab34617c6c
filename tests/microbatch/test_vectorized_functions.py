"""Functions over columns on the engine: their state is like any other, on disk and in every operation."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from state_engine import (
    DeltaSink,
    FileSource,
    KeyedProcessFunction,
    OutputTag,
    StateEngine,
    StatefulJob,
    ValueStateDescriptor,
    VectorizedKeyedFunction,
    VectorizedResult,
)
from state_engine.testing import CollectSink, run_in_memory

STATE = tuple[int, float]


class Totals(VectorizedKeyedFunction):
    """Number and sum of the values of a key, once a micro-batch."""

    def open(self, runtime_context: Any) -> None:
        runtime_context.get_state(ValueStateDescriptor("total", STATE))

    def process_batch(self, rows: pa.Table, state: pa.Table, ctx: Any) -> VectorizedResult:
        added = (
            rows.group_by("_key").aggregate([("v", "count"), ("v", "sum"), ("_row", "max")]).sort_by("_key")
        )
        count, total = (pc.fill_null(pc.struct_field(state["total"], at), 0) for at in (0, 1))
        count, total = pc.add(count, added["v_count"]), pc.add(total, added["v_sum"])
        outputs = {
            "day": state["day"],
            "k": state["k"],
            "n": count,
            "total": total,
            "_row": added["_row_max"],
        }
        stored = pa.StructArray.from_arrays(
            [count.combine_chunks(), total.combine_chunks()], names=["number", "sum"]
        )
        return VectorizedResult(pa.table(outputs), state=pa.table({"_key": state["_key"], "total": stored}))


class Total(KeyedProcessFunction):
    """The same per element."""

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", STATE))

    def process_element(self, value: Any, ctx: Any) -> Any:
        count, total = self.total.value() or (0, 0.0)
        self.total.update((count + 1, total + value.v))
        yield value.day, value.k, count + 1, total + value.v


class Site:
    """A job upon a directory."""

    def __init__(self, directory: Path, spark: SparkSession) -> None:
        self.directory, self.engine, self.files = directory, StateEngine(directory / "root", spark), 0
        (directory / "in").mkdir()

    def job(self, function: Any, parallelism: int = 2) -> StatefulJob:
        job = StatefulJob("totals", parallelism=parallelism)
        source = FileSource(str(self.directory / "in"), schema="day date, k int, v double")
        keyed = job.source("rows", source).key_by("day", "k")
        keyed.process(function, uid="total", output_type="day date, k int, n bigint, total double").sink(
            "out", DeltaSink(str(self.directory / "out"))
        )
        return job

    def feed(self, days: int, keys: int) -> None:
        rows = [(20_000 + n % days, n % keys, float(n)) for n in range(200)]
        table = pa.table(
            {name: [row[at] for row in rows] for at, name in enumerate(("day", "k", "v"))},
            schema=pa.schema([("day", pa.int32()), ("k", pa.int32()), ("v", pa.float64())]),
        )
        table = table.set_column(0, "day", table["day"].cast(pa.date32()))
        self.files += 1
        pq.write_table(table, self.directory / "in" / f"{self.files}.parquet")

    def state(self, job: StatefulJob) -> list[tuple[Any, ...]]:
        rows = self.engine.read_state(job, "total", "total").collect()
        return sorted((str(row.day), row.k, *row.value) for row in rows)


@pytest.mark.spark_tasks
def test_it_shares_its_state_with_functions_per_element_through_every_operation(
    tmp_path: Path, spark: SparkSession
) -> None:
    (tmp_path / "columns").mkdir()
    (tmp_path / "elements").mkdir()
    columns, elements = Site(tmp_path / "columns", spark), Site(tmp_path / "elements", spark)

    def both(function: Any, parallelism: int = 2, *, days: int, keys: int) -> None:
        """One micro-batch on each site, of which one always runs per element."""
        for site, runs in ((columns, function), (elements, Total())):
            site.feed(days, keys)
            site.engine.run(site.job(runs, parallelism))
        assert columns.state(columns.job(function, parallelism)) == elements.state(elements.job(Total()))

    both(Totals(), days=3, keys=7)
    both(Total(), days=4, keys=5)
    both(Totals(), days=2, keys=9)
    for site in (columns, elements):
        site.engine.compact(site.job(Totals()))
        site.engine.rescale(site.job(Totals(), 3), parallelism=3)
    both(Totals(), 3, days=5, keys=5)
    for site in (columns, elements):
        site.engine.restore(site.job(Totals(), 3), checkpoint_id=2)
    assert columns.state(columns.job(Totals(), 3)) == elements.state(elements.job(Total(), 3))
    shown = columns.engine.sql(columns.job(Totals(), 3), "SELECT count(*) AS n FROM total").collect()
    assert shown[0].n == len(columns.state(columns.job(Totals(), 3)))


LATE = OutputTag("late", "k string, at timestamp")


class Times(VectorizedKeyedFunction):
    """Puts out when each row was, and the watermark before it."""

    def process_batch(self, rows: pa.Table, state: pa.Table, ctx: Any) -> pa.Table:
        return pa.table(
            {"k": rows["k"], "ms": ctx.timestamps, "before": ctx.watermarks, "_row": rows["_row"]}
        )


def test_late_rows_pass_by_it_and_it_sees_event_time() -> None:
    job = StatefulJob("late", parallelism=1)
    source = FileSource("/none", schema="k string, at timestamp")
    rows = job.source("rows", source, event_time="at", late_to=LATE)
    times = rows.key_by("k").process(Times(), uid="times", output_type="k string, ms bigint, before bigint")
    times.sink("times", CollectSink())
    times.get_side_output(LATE).sink("late", CollectSink())

    def at(key: str, second: int) -> tuple[str, datetime]:
        return key, datetime(1970, 1, 1, 0, 0, second, tzinfo=UTC)

    with run_in_memory(job) as run:
        out = run.process({"rows": [at("a", 10), at("a", 5), at("b", 12), at("b", 11), at("a", 13)]})
        assert out["times"][1:] == [("b", 12_000, 9_999), ("a", 13_000, 11_999)]
        assert [row.k for row in out["late"]] == ["a", "b"]


class Backwards(VectorizedKeyedFunction):
    """Gives the rows themselves, the last one first."""

    def process_batch(self, rows: pa.Table, state: pa.Table, ctx: Any) -> pa.Table:
        return rows.select(["k", "v", "_row"]).take(list(range(len(rows)))[::-1])


def test_outputs_take_the_places_of_their_rows_in_sinks_and_in_the_next_step() -> None:
    job = StatefulJob("order", parallelism=1)
    rows = job.source("rows", FileSource("/none", schema="k string, v bigint"))
    same = rows.key_by("k").process(Backwards(), uid="same", output_type="k string, v bigint")
    same.sink("same", CollectSink())
    same.key_by("k").process(Backwards(), uid="again", output_type="k string, v bigint").sink(
        "again", CollectSink()
    )
    given = [(key, number) for number, key in enumerate("abcab")]
    with run_in_memory(job) as run:
        assert run.process({"rows": given}) == {"same": given, "again": given}
