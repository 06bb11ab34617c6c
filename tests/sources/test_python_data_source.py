"""PySpark's Python data sources as sources of a job: both kinds of stream readers, offsets, commits, failures."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)

from state_engine import DataStream, PythonDataSource, StatefulJob
from state_engine.core.errors import ConfigurationError, SourceError
from state_engine.sources.base import Element, Slice
from tests.support.pipelines import Pipeline

pytestmark = pytest.mark.spark
NO_SPARK: Any = None

LIMITS = "pyspark.sql.streaming.datasource"
KNOWS_LIMITS = find_spec(LIMITS) is not None
"""Whether this is Spark 4.2 or later."""


class Range(InputPartition):
    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end


class NumbersReader(DataSourceStreamReader):
    """Numbers up to what a file says, in two partitions; commits are appended to another file."""

    def __init__(self, directory: Path, *, batches: bool) -> None:
        self.directory, self.batches = directory, batches

    def initialOffset(self) -> dict[str, int]:
        return {"next": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        there = int((self.directory / "there").read_text())
        most = getattr(limit, "max_rows", getattr(limit, "maxRows", None))
        return {"next": there if most is None else min(there, start["next"] + most)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Range]:
        middle = (start["next"] + end["next"]) // 2
        return [Range(start["next"], middle), Range(middle, end["next"])]

    def read(self, partition: Any) -> Iterator[Any]:
        if self.batches:
            numbers = list(range(partition.start, partition.end))
            yield pa.RecordBatch.from_pydict(
                {"text": [str(n) for n in numbers], "n": pa.array(numbers, pa.int64())}
            )
            return
        for n in range(partition.start, partition.end):
            if n == 13:
                raise RuntimeError("on purpose")
            yield n, str(n)

    def commit(self, end: dict[str, int]) -> None:
        with (self.directory / "commits").open("a") as file:
            file.write(json.dumps(end) + "\n")


class AllNumbersReader(NumbersReader):
    """Knows no limits, as all readers before Spark 4.2."""

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]
        return {"next": int((self.directory / "there").read_text())}


class Numbers(DataSource):
    def schema(self) -> str:
        return "n int, text string"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        kind = AllNumbersReader if self.options.get("limits") == "no" else NumbersReader
        return kind(Path(self.options["directory"]), batches=self.options.get("batches") == "yes")


class SimpleReader(SimpleDataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"next": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[Any], dict[str, int]]:
        end = min(start["next"] + 2, 5)
        return iter([(n,) for n in range(start["next"], end)]), {"next": end}

    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[Any]:
        if end["next"] > 5:
            raise ValueError("forgotten")
        return iter([(n,) for n in range(start["next"], end["next"])])


class Simple(DataSource):
    def schema(self) -> str:
        return "n bigint"

    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:
        return SimpleReader()


class Batch(DataSource):
    def schema(self) -> str:
        return "n int"


def pipeline_of(directory: Path, spark: SparkSession, source: PythonDataSource) -> Pipeline:
    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        return {"out": job.source("numbers", source).map(lambda row: row.n, output_type="int")}

    return Pipeline(directory, spark, build, parallelism=2)


def test_a_reader_that_knows_no_limits_gives_all(tmp_path: Path, spark: SparkSession) -> None:
    (tmp_path / "there").write_text("5")
    options = {"directory": str(tmp_path), "limits": "no"}
    pipeline = pipeline_of(tmp_path, spark, PythonDataSource(Numbers, options, max_rows_per_batch=3))
    assert len(pipeline.run().batches) == 1
    (tmp_path / "there").write_text("11")
    assert len(pipeline.run().batches) == 1
    assert sorted(pipeline.outputs()["out"]) == list(range(11))


def test_limits_of_a_newer_spark_are_refused_by_name(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, LIMITS, None)
    pipeline = pipeline_of(tmp_path, spark, PythonDataSource(Numbers, {"directory": str(tmp_path)}))
    with pytest.raises(ConfigurationError, match=r"takes a limit, .* from Spark 4\.2 on.*: define"):
        pipeline.run()


@pytest.mark.skipif(not KNOWS_LIMITS, reason="limits came with Spark 4.2")
@pytest.mark.parametrize("batches", ["yes", "no"])
def test_offsets_are_the_position(tmp_path: Path, spark: SparkSession, batches: str) -> None:
    (tmp_path / "there").write_text("5")
    options = {"directory": str(tmp_path), "batches": batches}
    pipeline = pipeline_of(tmp_path, spark, PythonDataSource(Numbers, options, max_rows_per_batch=3))
    assert len(pipeline.run().batches) == 2
    assert sorted(pipeline.outputs()["out"]) == list(range(5))
    (tmp_path / "there").write_text("11")
    assert len(pipeline.run().batches) == 2
    assert sorted(pipeline.outputs()["out"]) == list(range(11))
    with pipeline.engine() as engine:
        sources = [row.sources[0] for row in engine.checkpoints("pipeline")]
    assert [json.loads(s.position_to)["offset"]["next"] for s in sources] == [3, 5, 8, 11]
    assert [s.rows for s in sources] == [3, 2, 3, 3]
    shown = [json.loads(line)["next"] for line in (tmp_path / "commits").read_text().split("\n") if line]
    assert sorted(set(shown)) == [3, 5, 8, 11]
    assert shown == sorted(shown)


def test_a_simple_reader(tmp_path: Path, spark: SparkSession) -> None:
    pipeline = pipeline_of(tmp_path, spark, PythonDataSource(Simple))
    assert len(pipeline.run().batches) == 3
    assert sorted(pipeline.outputs()["out"]) == list(range(5))


def test_what_fails_is_reported_and_nothing_is_lost(tmp_path: Path, spark: SparkSession) -> None:
    (tmp_path / "there").write_text("15")
    pipeline = pipeline_of(
        tmp_path, spark, PythonDataSource(Numbers, {"directory": str(tmp_path), "limits": "no"})
    )
    with pytest.raises(Exception, match="on purpose"):
        pipeline.run()
    assert pipeline.outputs() == {}
    (tmp_path / "there").unlink()
    with pytest.raises(SourceError, match=r"the reader of data source 'Numbers' failed \(FileNotFoundError"):
        pipeline.run()
    with pytest.raises(ConfigurationError, match="has no stream reader: define streamReader or"):
        pipeline_of(tmp_path, spark, PythonDataSource(Batch)).run()
    with pytest.raises(ConfigurationError, match="takes a class of DataSource"):
        PythonDataSource(Batch({}))  # type: ignore[arg-type]


def offsets(*numbers: int) -> list[Element]:
    return [{"split": "0", "position": {"next": n}} for n in numbers]


def numbers_of(part: Slice | None) -> tuple[list[Element], list[int]]:
    """The offset of a slice of two partitions, and what they have."""
    assert part is not None
    return part.elements, [n for partition in part.detail[2] for n in range(partition.start, partition.end)]


def test_a_replay_reads_between_offsets_and_commits_none(tmp_path: Path) -> None:
    source, simple = PythonDataSource(Numbers, {"directory": str(tmp_path)}), PythonDataSource(Simple)
    for before, appended, expected in ((offsets(), offsets(3), [0, 1, 2]), (offsets(3), offsets(5), [3, 4])):
        assert numbers_of(source.replan(NO_SPARK, before, appended)) == (appended, expected)
        part = simple.replan(NO_SPARK, before, appended)
        assert (part.elements, part.detail) == (appended, ("rows", [(n,) for n in expected]))
    assert numbers_of(source.rebatch(NO_SPARK, [], offsets(3, 5))) == (offsets(5), [0, 1, 2, 3, 4])
    assert source.rebatch(NO_SPARK, offsets(5), offsets(3, 5)) is None
    assert not list(tmp_path.iterdir())
    with pytest.raises(SourceError, match=r"the reader of data source 'Simple' failed .*forgotten"):
        simple.replan(NO_SPARK, [], offsets(6))
