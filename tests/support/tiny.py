"""Tiny jobs of one operator: rows are given as a list, the function as a callable."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from pyspark.sql import SparkSession

from state_engine import (
    DataStream,
    DeltaSink,
    FileSource,
    KeyedProcessFunction,
    RuntimeContext,
    StateEngine,
    StatefulJob,
    ValueStateDescriptor,
    open_state,
)

ROWS = {"k": ["a", "b", "a", "c"], "v": [1, 2, 3, 4]}
OUTPUT = "k string, v bigint, total bigint"
Body = Callable[[Any, int], Any]
"""Makes the outputs of an element from it and the sum of its key so far, this one included."""


class Sum(KeyedProcessFunction):
    """Keeps the sum of ``v`` per key, times a factor; what happens next is up to ``then``."""

    def __init__(
        self, then: Body | None = None, *, state: str = "total", kind: Any = int, factor: int = 1
    ) -> None:
        self.then, self.state, self.kind, self.factor = then, state, kind, factor

    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor(self.state, self.kind))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        total = (self.total.value() or 0) + value.v * self.factor
        self.total.update(total)
        if self.then is not None:
            return self.then(value, total)
        return [(str(ctx.get_current_key()), value.v, total)]


class Site:
    """A directory with an input, a root and a sink."""

    def __init__(self, directory: Path, spark: SparkSession) -> None:
        self.directory, self.spark = directory, spark
        self.feed, self.sink = directory / "feed", directory / "sink"
        self.feed.mkdir(parents=True, exist_ok=True)
        self._engines: list[StateEngine] = []

    def put(self, rows: Any, name: str = "0") -> Site:
        """Add an input file: a table, or columns."""
        pq.write_table(rows if isinstance(rows, pa.Table) else pa.table(rows), self.feed / f"{name}.parquet")
        return self

    def engine(self) -> StateEngine:
        """A new engine on the root."""
        engine = StateEngine(self.directory / "root", self.spark)
        self._engines.append(engine)
        return engine

    def close(self) -> None:
        """Close all its engines, which may still write behind their commits."""
        while self._engines:
            self._engines.pop().close()

    def job(
        self,
        function: KeyedProcessFunction | None = None,
        *,
        uid: str = "sums",
        key_by: Sequence[str] = ("k",),
        output: Any = OUTPUT,
        order_by: Sequence[str] = (),
        on_error: str = "fail",
        max_parallelism: int | None = None,
        parallelism: int = 2,
        batch_rows: int | None = None,
        through: Callable[[DataStream], DataStream] | None = None,
    ) -> StatefulJob:
        """source → [through] → key_by → function → Delta sink."""
        job = StatefulJob("tiny", parallelism=parallelism, max_parallelism=max_parallelism, on_error=on_error)
        stream = job.source(
            "events", FileSource(str(self.feed), max_rows_per_batch=batch_rows), order_by=order_by
        )
        stream = through(stream) if through else stream
        stream.key_by(*key_by).process(function or Sum(), uid=uid, output_type=output).sink(
            "out", DeltaSink(str(self.sink))
        )
        return job

    def outputs(self) -> list[tuple[Any, ...]]:
        """Published rows, sorted."""
        if not (self.sink / "_delta_log").exists():
            return []
        return sorted((tuple(row.values()) for row in rows_of(self.sink)), key=repr)

    def dead_letters(self) -> list[dict[str, Any]]:
        """Rows of the job's table of dead letters, in order of their position."""
        table = self.directory / "root" / "tiny" / "dead_letters"
        if not (table / "_delta_log").exists():
            return []
        return sorted(rows_of(table), key=lambda row: str(row["position"]))

    def state(self, name: str = "total", operator: str = "sums") -> dict[Any, Any]:
        """A value state by key."""
        rows = open_state.read_state(self.directory / "root", "tiny", operator, name).to_pylist()
        values_of_rows = ([*row.values()] for row in rows)
        return {
            values[0] if len(values) == 2 else tuple(values[:-1]): values[-1] for values in values_of_rows
        }

    def nothing_happened(self, checkpoints: int = 0) -> bool:
        """Whether no checkpoint was added, and no row published or set aside."""
        return (
            len(self.engine().checkpoints("tiny")) == checkpoints
            and not self.outputs()
            and not self.dead_letters()
        )


def rows_of(table: Path) -> list[dict[str, Any]]:
    """The rows of a Delta table, by Arrow's own file system.

    That of ``deltalake`` calls Python in threads of Arrow's; where a process ends just then, it aborts: 17 of 100 did.
    """
    directory = SubTreeFileSystem(str(table), LocalFileSystem())
    rows: list[dict[str, Any]] = DeltaTable(str(table)).to_pyarrow_table(filesystem=directory).to_pylist()
    return rows


class SavedSite:
    """A site that many tests begin with: its history runs once, and each of them gets it as it was.

    That is always in the same directory, as sources and sinks are recorded by path.
    """

    def __init__(self, site: Site) -> None:
        site.close()
        self._site, self._saved = site, site.directory.with_name(f"{site.directory.name}-saved")
        shutil.copytree(site.directory, self._saved)

    def anew(self) -> Site:
        """The site with the content that was saved."""
        directory = self._site.directory
        self._site.close()
        shutil.rmtree(directory)
        shutil.copytree(self._saved, directory)
        self._site = Site(directory, self._site.spark)
        return self._site
