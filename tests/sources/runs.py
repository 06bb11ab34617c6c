"""A tiny job that shows what a source delivers: every row in its total order, numbered across batches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from state_engine import (
    BatchReport,
    DeltaSink,
    KeyedProcessFunction,
    Row,
    RuntimeContext,
    StateEngine,
    StatefulJob,
    ValueStateDescriptor,
)
from state_engine.sources.base import Source


class Numbered(KeyedProcessFunction):
    """Emits every row as text, with the number of rows so far."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", int, default=0))

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[int, str]]:
        number = self.count.value() + 1
        self.count.update(number)
        fields = {k: v for k, v in value.as_dict().items() if k != "one_key"}
        yield number, json.dumps(fields, default=str)


def with_one_key(rows: DataFrame) -> DataFrame:
    return rows.withColumn("one_key", F.lit(1))


class SourceRun:
    """One job over one source, in a directory of its own."""

    def __init__(self, spark: SparkSession, directory: Path, source: Source, **options: Any) -> None:
        self.sink = directory / "numbered"
        self.engine = StateEngine(directory / "root", spark)
        self.use(source, **options)

    def use(self, source: Source, **options: Any) -> None:
        """The same job with another configuration of its source."""
        self.job = StatefulJob("numbered", **options)
        stream = self.job.source("input", source).transform(with_one_key).key_by("one_key")
        out = stream.process(Numbered(), uid="count", output_type="n bigint, fields string")
        out.sink("numbered", DeltaSink(str(self.sink)))

    def run(self, **options: Any) -> list[BatchReport]:
        """Run until caught up; the reports of the batches."""
        return self.engine.run(self.job, clock=0, **options).batches

    def rows(self) -> list[dict[str, Any]]:
        """All rows so far, in the order in which the function saw them; every number is there once."""
        rows = sorted(DeltaTable(str(self.sink)).to_pyarrow_table().to_pylist(), key=lambda r: r["n"])
        assert [r["n"] for r in rows] == list(range(1, len(rows) + 1))
        return [json.loads(r["fields"]) for r in rows]

    def ids(self) -> list[int]:
        return [r["id"] for r in self.rows()]

    def heads(self) -> int:
        return len(self.engine.checkpoints("numbered"))


def write_ids(path: Path, start: int, count: int, **columns: list[Any]) -> None:
    """A Parquet file with ids, and other columns."""
    import pyarrow as pa

    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": pa.array(range(start, start + count), pa.int64()), **columns}), path)
