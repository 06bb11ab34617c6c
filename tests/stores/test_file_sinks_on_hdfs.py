"""A ``FileSink`` on a real HDFS, and that it renames as the tests without one take it for.

pyarrow reaches it as ``tests/support/hadoop.py`` says: by the calls of Java that ``libhdfs`` makes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow.fs as pafs
import pytest
from pyspark.sql import SparkSession

from state_engine import DeltaSink, FileSink, FileSource, StateEngine, StatefulJob
from state_engine.sinks import file_owner
from state_engine.storage.delta.kernel import DeltaKernel
from state_engine.storage.stores import files
from tests.sinks.file_world import Around, FileWorld, runners_that_stop
from tests.support.hadoop import HadoopFiles, hdfs
from tests.support.hdfs_like import HdfsLike
from tests.support.small_job import Totals, write_feed

OUTPUT = "seq bigint, name string, parity string, total bigint, recent string"

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600), pytest.mark.xdist_group("hdfs")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with hdfs(tmp_path_factory.mktemp("hdfs")) as uri:
        yield uri


@pytest.fixture
def real(
    cluster: str, spark: SparkSession, kernel: DeltaKernel, monkeypatch: pytest.MonkeyPatch
) -> HadoopFiles:
    """The cluster, which the engine reaches by its URI."""
    fs = HadoopFiles(spark, cluster, kernel.write_new)
    monkeypatch.setattr(files, "_remote", fs.location)
    return fs


def tree(fs: pafs.FileSystem, base: str) -> list[tuple[str, str]]:
    infos = fs.get_file_info(pafs.FileSelector(base, recursive=True))
    return sorted((info.path.removeprefix(base), info.type.name) for info in infos)


def test_it_renames_creates_and_deletes_as_the_one_in_memory(real: HadoopFiles) -> None:
    """Any operations on a few names: what is refused and what is there afterwards is the same."""
    base = f"/{uuid4().hex}"
    both = [pafs.PyFileSystem(HdfsLike()), pafs.PyFileSystem(real)]
    names = [f"{base}/{path}" for path in ("a", "b", "a/a", "a/b", "b/a", "b/b", "a/a/a", "b/a/b")]
    operations: dict[str, Callable[[pafs.FileSystem, str, str], Any]] = {
        "rename": lambda fs, one, other: fs.move(one, other),
        "mkdirs": lambda fs, one, _: fs.create_dir(one),
        "write": lambda fs, one, _: fs.open_output_stream(one).close(),
        "delete": lambda fs, one, _: (
            fs.delete_dir(one) if fs.get_file_info(one).type.name == "Directory" else None
        ),
    }
    dice = random.Random(7)
    for fs in both:
        fs.create_dir(base)
    refused = 0
    for step in range(400):
        what = dice.choices(list(operations), weights=(6, 2, 2, 1))[0]
        one, other = dice.sample(names, 2)
        done = [_succeeds(operations[what], fs, one, other) for fs in both]
        assert done[0] == done[1], (step, what, one, other)
        assert tree(both[0], base) == tree(both[1], base), (step, what, one, other)
        refused += not done[0]
    assert 50 < refused < 350


def _succeeds(operation: Callable[..., Any], *arguments: Any) -> bool:
    try:
        operation(*arguments)
    except OSError:
        return False
    return True


@pytest.mark.parametrize("seed", range(1))
def test_runners_that_stand_still_at_any_step(seed: int, real: HadoopFiles, cluster: str) -> None:
    @contextmanager
    def world_with(around: Around, _: int) -> Iterator[FileWorld]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(file_owner.time, "sleep", lambda _: None)
            yield FileWorld(around, real, f"{cluster}/{uuid4().hex}/out")

    runners_that_stop(seed, world_with)


def test_a_job_with_everything_on_hdfs(
    real: HadoopFiles, cluster: str, tmp_path: Path, spark: SparkSession
) -> None:
    feed = write_feed(tmp_path / "feed")

    def shown(place: str) -> list[dict[str, list[tuple[Any, ...]]]]:
        def job() -> StatefulJob:
            new = StatefulJob("small", parallelism=2, max_parallelism=8)
            events = new.source("events", FileSource(str(feed), max_rows_per_batch=80)).key_by("name")
            totals = events.process(Totals(), uid="totals", output_type=OUTPUT)
            totals.sink("files", FileSink(f"{place}/files"))
            totals.sink("table", DeltaSink(f"{place}/table"))
            return new

        def read() -> dict[str, list[tuple[Any, ...]]]:
            rows = spark.read.parquet(f"{place}/files").drop("checkpoint_id")
            table = spark.read.format("delta").load(f"{place}/table")
            return {"files": sorted(map(tuple, rows.collect())), "table": sorted(map(tuple, table.collect()))}

        def do(what: Callable[[StateEngine], Any]) -> dict[str, list[tuple[Any, ...]]]:
            with StateEngine(f"{place}/root", spark) as engine:
                what(engine)
            return read()

        return [
            do(lambda engine: engine.run(job(), max_batches=2)),
            do(lambda engine: engine.restore("small", checkpoint_id=1)),
            do(lambda engine: engine.run(job())),
        ]

    on_hdfs = shown(f"{cluster}/{uuid4().hex}")
    assert on_hdfs == shown(str(tmp_path))
    assert all(step["files"] == step["table"] for step in on_hdfs)
