"""Small jobs of several streams for tests: on the engine, with sinks of files, or in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from state_engine import DataStream, FileSink, StateEngine, StatefulJob
from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.sinks.files import published_directory
from state_engine.testing import CollectSink, MemoryRun, run_in_memory

Build = Callable[[StatefulJob], Mapping[str, DataStream]]


class Pipeline:
    """A job that is built anew for every run, as a scheduler would."""

    def __init__(self, directory: Path, spark: SparkSession, build: Build, **job: Any) -> None:
        self.directory, self._spark, self._build, self._options = directory, spark, build, job

    def job(self, **options: Any) -> StatefulJob:
        pipeline = StatefulJob("pipeline", **(self._options | options))
        for name, stream in self._build(pipeline).items():
            stream.sink(name, FileSink(str(self.directory / "out" / name)))
        return pipeline

    def engine(self) -> StateEngine:
        return StateEngine(self.directory / "root", self._spark)

    def run(self, *, parallelism: int | None = None, **options: Any) -> Any:
        job = self.job() if parallelism is None else self.job(parallelism=parallelism)
        with self.engine() as engine:
            return engine.run(job, **options)

    def outputs(self) -> dict[str, list[Any]]:
        """By stream, its rows in the order of checkpoints and subtasks; rows of one column as bare values."""
        rows = self.checkpoints()
        outputs: dict[str, list[Any]] = {}
        for row in rows:
            for staged in row.sinks:
                if staged.kind != FileSink.kind:
                    continue
                for file in sorted(staged.files, key=lambda f: f.subtask or 0):
                    directory = Path(staged.path) / published_directory(row.checkpoint_id)
                    values = pq.ParquetFile(directory / Path(file.path).name).read().to_pylist()
                    plain = [tuple(v.values()) for v in values]
                    outputs.setdefault(staged.name, []).extend(v[0] if len(v) == 1 else v for v in plain)
        return outputs

    def checkpoints(self) -> list[CheckpointRow]:
        with self.engine() as engine:
            return engine.checkpoints("pipeline")

    def state(self, operator: str, state: str) -> list[tuple[Any, ...]]:
        with self.engine() as engine:
            return sorted(
                (tuple(r) for r in engine.read_state("pipeline", operator, state).collect()), key=repr
            )


class MemoryPipeline:
    """The same as ``Pipeline`` in memory, without Spark: for what operators compute, however batches are cut."""

    def __init__(self, run: MemoryRun, build: Build, **job: Any) -> None:
        self._run, self._build, self._options = run, build, job

    @classmethod
    @contextmanager
    def of(cls, build: Build, **job: Any) -> Iterator[MemoryPipeline]:
        """A pipeline with options of its job; it forgets all in the end."""
        with run_in_memory(_collecting(build, job)) as run:
            yield cls(run, build, **job)

    def run(self, *, parallelism: int | None = None, build: Build | None = None, **options: Any) -> Any:
        """Run the job, built anew, or another one that takes its place."""
        self._build = build or self._build
        changed = {} if parallelism is None else {"parallelism": parallelism}
        self._run.restart(_collecting(self._build, self._options | changed))
        return self._run.run(**options)

    def outputs(self) -> dict[str, list[Any]]:
        job = _collecting(self._build, self._options)
        outputs = {name: list(map(_plain, self._run.sink(name))) for name in job.sinks}
        return {name: values for name, values in outputs.items() if values}

    def state(self, operator: str, state: str) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        for key, value in self._run.state(operator, state).items():
            names = key if isinstance(key, tuple) else (key,)
            rows += [(*names, *entry) for entry in (value.items() if isinstance(value, dict) else [(value,)])]
        return sorted(rows, key=repr)

    def checkpoints(self) -> list[CheckpointRow]:
        return self._run.checkpoints()


def _collecting(build: Build, options: Mapping[str, Any]) -> StatefulJob:
    job = StatefulJob("pipeline", **options)
    for name, stream in build(job).items():
        stream.sink(name, CollectSink())
    return job


def _plain(element: Any) -> Any:
    """A row as a tuple, one of a single column as its bare value."""
    if not isinstance(element, tuple):
        return element
    return element[0] if len(element) == 1 else tuple(element)
