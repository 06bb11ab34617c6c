"""Runs small jobs of several streams for tests: every named stream goes to files, which are read back in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from state_engine import DataStream, FileSink, StateEngine, StatefulJob
from state_engine.sinks.files import published_directory

Build = Callable[[StatefulJob], Mapping[str, DataStream]]


class Pipeline:
    """A job that is built anew for every run, as a scheduler would.

    Args:
        directory: of the root and of the outputs.
        build: adds sources and operators, and names the streams to look at.
        job: options of the job.
    """

    def __init__(self, directory: Path, spark: SparkSession, build: Build, **job: Any) -> None:
        self.directory, self._spark, self._build, self._options = directory, spark, build, job

    def job(self, **options: Any) -> StatefulJob:
        made = StatefulJob("pipeline", **(self._options | options))
        for name, stream in self._build(made).items():
            stream.sink(name, FileSink(str(self.directory / "out" / name)))
        return made

    def engine(self) -> StateEngine:
        return StateEngine(self.directory / "root", self._spark)

    def run(self, *, parallelism: int | None = None, **options: Any) -> Any:
        job = self.job() if parallelism is None else self.job(parallelism=parallelism)
        with self.engine() as engine:
            return engine.run(job, **options)

    def outputs(self) -> dict[str, list[Any]]:
        """By stream, its rows in the order of checkpoints and subtasks; rows of one column as bare values."""
        with self.engine() as engine:
            rows = engine.checkpoints("pipeline")
        found: dict[str, list[Any]] = {}
        for row in rows:
            for staged in row.sinks:
                if staged.kind != FileSink.kind:
                    continue
                for file in sorted(staged.files, key=lambda f: f.subtask or 0):
                    directory = Path(staged.path) / published_directory(row.checkpoint_id)
                    values = pq.ParquetFile(directory / Path(file.path).name).read().to_pylist()
                    plain = [tuple(v.values()) for v in values]
                    found.setdefault(staged.name, []).extend(v[0] if len(v) == 1 else v for v in plain)
        return found

    def state(self, operator: str, state: str) -> list[tuple[Any, ...]]:
        with self.engine() as engine:
            return sorted(
                (tuple(r) for r in engine.read_state("pipeline", operator, state).collect()), key=repr
            )
