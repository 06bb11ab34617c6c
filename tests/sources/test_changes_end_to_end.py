"""Random histories of a Delta table with change data feed through whole jobs: what they remember is the final table."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from state_engine import (
    DeltaSource,
    KeyedProcessFunction,
    RowKind,
    StateEngine,
    StatefulJob,
    ValueStateDescriptor,
)
from tests.sources.test_delta_changes import grown

GIVEN = (RowKind.INSERT, RowKind.UPDATE_AFTER)


class Kept(KeyedProcessFunction):
    """The row of each id; what is taken away must be there, what comes must not."""

    accepts_changes = True

    def open(self, runtime_context: Any) -> None:
        self.row = runtime_context.get_state(ValueStateDescriptor("row", "part string, v int"))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        plain = (value.part, value.v)
        if ctx.row_kind() in GIVEN:
            assert self.row.value() is None
            self.row.update(plain)
        else:
            assert tuple(self.row.value()) == plain
            self.row.clear()
        yield value.id


class Sums(KeyedProcessFunction):
    """The sum and the number of the rows of a part; a part without rows has no state."""

    accepts_changes = True

    def open(self, runtime_context: Any) -> None:
        self.held = runtime_context.get_state(ValueStateDescriptor("held", "total bigint, rows bigint"))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        sign = 1 if ctx.row_kind() in GIVEN else -1
        total, rows = self.held.value() or (0, 0)
        self.held.update((total + sign * value.v, rows + sign) if rows + sign else None)
        yield value.part


def job_over(source: DeltaSource, parallelism: int) -> StatefulJob:
    job = StatefulJob("mirror", parallelism=parallelism)
    rows = job.source("rows", source)
    rows.key_by("id").process(Kept(), "bigint", uid="kept")
    rows.filter(lambda row: row.v >= 0).key_by("part").process(Sums(), "string", uid="sums")
    return job


def of_table(table: str) -> tuple[dict[Any, Any], dict[Any, Any]]:
    rows = DeltaTable(table).to_pyarrow_table().to_pylist()
    sums: dict[Any, Any] = defaultdict(lambda: (0, 0))
    for row in rows:
        total, count = sums[row["part"]]
        sums[row["part"]] = (total + row["v"], count + 1)
    return {r["id"]: (r["part"], r["v"]) for r in rows}, dict(sums)


def of_state(engine: StateEngine, job: StatefulJob) -> tuple[dict[Any, Any], dict[Any, Any]]:
    kept = engine.read_state(job, "kept", "row").collect()
    sums = engine.read_state(job, "sums", "held").collect()
    return {r["id"]: tuple(r["value"]) for r in kept}, {r["part"]: tuple(r["value"]) for r in sums}


@pytest.mark.parametrize("seed", [0, *[pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 8)]])
def test_what_a_job_remembers_is_the_final_table(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    random, table = Random(seed), str(tmp_path / "rows")
    grown(table, random, 2)
    engine = StateEngine(tmp_path / "root", spark)
    while DeltaTable(table).version() < (10 if seed == 0 else 25):
        grown(table, random, random.randrange(1, 6))
        bounds: Any = random.choice(
            [{"max_files_per_batch": random.randrange(2, 6)}, {"max_rows_per_batch": 6}, {}]
        )
        job = job_over(DeltaSource(table, changes=True, **bounds), 2)
        engine.run(job, max_batches=random.choice([1, 3, None]))
    job = job_over(DeltaSource(table, changes=True), 2)
    engine.run(job)
    assert of_state(engine, job) == of_table(table)
    report = engine.replay(job, rebatch=True)
    engine.promote(job, report.branch)
    assert of_state(engine, job) == of_table(table)
