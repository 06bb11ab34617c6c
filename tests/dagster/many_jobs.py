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
    """Keeps the total of a key in a state of a given name."""

    def __init__(self, state: str = "total") -> None:
        self.state = state

    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor(self.state, int))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        total = (self.total.value() or 0) + value.value
        self.total.update(total)
        yield value.key, total


def totals(
    name: str, source: FileSource | DeltaSource, directory: Path, *, state: str = "total"
) -> StatefulJob:
    """A job that writes totals into the table ``directory / name``."""
    job = StatefulJob(name, parallelism=1, max_parallelism=2)
    stream = job.source("rows", source)
    stream.key_by("key").process(Total(state), uid="total", output_type=COLUMNS).sink(
        "totals", DeltaSink(str(directory / name))
    )
    return job


def from_files(name: str, directory: Path, *, state: str = "total") -> StatefulJob:
    return totals(name, FileSource(str(directory / "inbox"), schema=COLUMNS), directory, state=state)


def from_table(name: str, table: str, directory: Path) -> StatefulJob:
    return totals(name, DeltaSource(str(directory / table)), directory)


def arrive(directory: Path, name: str, rows: Sequence[tuple[int, int]]) -> None:
    (directory / "inbox").mkdir(exist_ok=True)
    keys, values = zip(*rows, strict=True)
    pq.write_table(pa.table({"key": keys, "value": values}), directory / "inbox" / f"{name}.parquet")
