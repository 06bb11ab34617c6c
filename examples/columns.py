"""Functions over columns: what a shop has sold, counted and summed without making Python values of rows.

Two operators read the same sales. One declares its aggregates, and gives a result for every sale. The other one is a
``VectorizedKeyedFunction``: it gets the sales of a micro-batch and the state of their shops as Arrow tables, and gives
one row for every shop that sold more than ever.

    python -m examples.columns
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.compute as pc

from state_engine import (
    DeltaSink,
    FileSource,
    RuntimeContext,
    StateEngine,
    StatefulJob,
    Types,
    ValueStateDescriptor,
    VectorizedKeyedFunction,
    VectorizedResult,
    count,
    sum_,
)

SALES = [[("north", 300), ("south", 200), ("north", 50)], [("north", 120), ("south", 900)]]
"""The sales of each run: shop and cents."""


class Records(VectorizedKeyedFunction):
    """Gives (shop, its largest sale, by how much) once in a micro-batch, for shops that sold more than ever."""

    def open(self, runtime_context: RuntimeContext) -> None:
        runtime_context.get_state(ValueStateDescriptor("record", Types.LONG(), default=0))

    def process_batch(
        self, rows: pa.Table, state: pa.Table, ctx: VectorizedKeyedFunction.Context
    ) -> VectorizedResult:
        best = rows.group_by("_key").aggregate([("cents", "max")])
        both = state.join(best, "_key")
        broken = both.filter(pc.greater(both["cents_max"], both["record"]))
        above = pc.subtract(broken["cents_max"], broken["record"])
        return VectorizedResult(
            outputs=pa.table({"shop": broken["shop"], "record": broken["cents_max"], "above": above}),
            state=pa.table({"_key": broken["_key"], "record": broken["cents_max"]}),
        )


def build(directory: Path) -> StatefulJob:
    """The job, with its input and its outputs in a directory."""
    job = StatefulJob("columns", parallelism=2)
    source = FileSource(str(directory / "sales"), schema="shop string, cents bigint", format="json")
    by_shop = job.source("sales", source).key_by("shop")
    turnover = by_shop.aggregate(n=count(), cents=sum_("cents"), uid="turnover")
    turnover.sink("turnover", DeltaSink(str(directory / "turnover")))
    schema = "shop string, record bigint, above bigint"
    records = by_shop.process(Records(), uid="records", output_type=schema)
    records.sink("records", DeltaSink(str(directory / "records")))
    return job


def arrive(directory: Path, name: str, sales: Iterable[tuple[str, int]]) -> None:
    """Write sales as one file of the source."""
    (directory / "sales").mkdir(exist_ok=True)
    lines = [json.dumps({"shop": shop, "cents": cents}) + "\n" for shop, cents in sales]
    (directory / "sales" / name).write_text("".join(lines))


def main(
    directory: Path, engine: StateEngine
) -> tuple[dict[str, tuple[int, int]], list[tuple[str, int, int]]]:
    """Run the job once for each file; the sales and cents of each shop, and all records."""
    for number, sales in enumerate(SALES):
        arrive(directory, f"{number}.json", sales)
        engine.run(build(directory))
    turnover = engine.spark.read.format("delta").load(str(directory / "turnover")).collect()
    totals = {
        row["shop"]: (row["n"], row["cents"]) for row in sorted(turnover, key=lambda row: int(row["n"]))
    }
    records = engine.spark.read.format("delta").load(str(directory / "records")).collect()
    return totals, sorted((row["shop"], row["record"], row["above"]) for row in records)


if __name__ == "__main__":
    with TemporaryDirectory() as scratch, StateEngine(f"{scratch}/state") as own:
        totals, records = main(Path(scratch), own)
        for shop, (sales, cents) in sorted(totals.items()):
            print(f"{shop}: {sales} sales, {cents} cents")
        for shop, record, above in records:
            print(f"{shop}: {record} cents, {above} more than before")
