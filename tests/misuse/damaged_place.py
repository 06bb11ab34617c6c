"""A root with a job that ran, its input, its outputs and a savepoint; damaged, and put back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from state_engine import (
    CheckpointedFunction,
    DeltaSink,
    DeltaStateTable,
    FileSink,
    FileSource,
    KeyedProcessFunction,
    ListStateDescriptor,
    SqlSink,
    StateEngine,
    StatefulJob,
    ValueStateDescriptor,
)

ROWS, OUT = "k string, v bigint", "k string, total bigint"


class Sums(KeyedProcessFunction, CheckpointedFunction):
    """The sum of each key, and operator state with the number of rows; a negative row is refused."""

    def initialize_state(self, context: Any) -> None:
        self.seen = context.get_operator_state_store().get_union_list_state(ListStateDescriptor("seen", int))

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", int, default=0))

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        if value.v < 0:
            raise ValueError("a negative row")
        self.total.update(self.total.value() + value.v)
        self.seen.update([sum(self.seen.get()) + 1])
        yield value.k, self.total.value()

    def snapshot_state(self, context: Any) -> None:
        """Everything is in the states already."""


class DamagedPlace:
    """Directories of one test: ``in``, ``root``, ``files``, ``rows``, ``shown``, ``kept`` and the database ``rows.db``.

    The job ran twice, each time with a row that was refused, and has a third file to read.

    Attributes:
        whole: a backup.
    """

    def __init__(self, directory: Path, spark: SparkSession) -> None:
        self.at, self.spark = directory / "place", spark
        for number in range(2):
            self.arrive(number, number)
        with self.engine() as engine:
            engine.run(self.job())
            engine.savepoints(self.job()).create("kept", self.at / "kept")
        self.arrive(2, 2)
        self.whole = directory / "whole"
        shutil.copytree(self.at, self.whole)

    def put_back(self) -> DamagedPlace:
        """Everything as it was."""
        shutil.rmtree(self.at)
        shutil.copytree(self.whole, self.at)
        return self

    def arrive(self, number: int, value: int) -> Path:
        path = self.at / "in" / f"{number}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [{"k": k, "v": v} for k, v in (("a", value), ("b", value + 1), ("c", -1))]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    def engine(self, **options: Any) -> StateEngine:
        return StateEngine(self.at / "root", self.spark, **options)

    def job(self, on_change: Any = "fail", **names: str) -> StatefulJob:
        """The job; ``files="other"`` gives the sink of that name, or the table, another name and place."""
        named = {name: names.get(name, name) for name in ("files", "rows", "base", "shown")}
        job = StatefulJob("sums", on_error="dead_letter")
        source = FileSource(
            str(self.at / "in"), schema=ROWS, format="json", max_files_per_batch=1, on_change=on_change
        )
        sums = job.source("input", source).key_by("k").process(Sums(), uid="sums", output_type=OUT)
        sums.sink(named["files"], FileSink(str(self.at / named["files"])))
        sums.sink(named["rows"], DeltaSink(str(self.at / named["rows"]), lineage=True))
        sums.sink(named["base"], SqlSink(f"sqlite:///{self.at}/rows.db", named["base"], lineage=True))
        sums.publish_state("total", DeltaStateTable(str(self.at / named["shown"])), name=named["shown"])
        return job

    def all(self, pattern: str) -> list[Path]:
        """Files by a pattern below the place, oldest name first."""
        return sorted(path for path in self.at.glob(pattern) if path.is_file())
