"""Three small jobs that copy totals from one place to another: how they hang together is up to a test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from state_engine import (
    DeltaSink,
    DeltaSource,
    FileSource,
    KeyedProcessFunction,
    RuntimeContext,
    StatefulJob,
    ValueStateDescriptor,
)

COLUMNS = "key bigint, value bigint"


class Total(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", int))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        total = (self.total.value() or 0) + value.value
        self.total.update(total)
        yield value.key, total


def totals(name: str, source: FileSource | DeltaSource, directory: Path) -> StatefulJob:
    """A job that writes totals into the table ``directory / name``."""
    job = StatefulJob(name, parallelism=1, max_parallelism=2)
    stream = job.source("rows", source)
    stream.key_by("key").process(Total(), uid="total", output_type=COLUMNS).sink(
        "totals", DeltaSink(str(directory / name))
    )
    return job


def from_files(name: str, directory: Path) -> StatefulJob:
    return totals(name, FileSource(str(directory / "inbox"), schema=COLUMNS), directory)


def from_table(name: str, table: str, directory: Path) -> StatefulJob:
    return totals(name, DeltaSource(str(directory / table)), directory)


def arrive(directory: Path, name: str, rows: Sequence[tuple[int, int]]) -> None:
    (directory / "inbox").mkdir(exist_ok=True)
    keys, values = zip(*rows, strict=True)
    pq.write_table(pa.table({"key": keys, "value": values}), directory / "inbox" / f"{name}.parquet")
