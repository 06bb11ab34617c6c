"""Sinks with ``key=``: the last row of each key, in a Delta table and in SQLite, through restores and backfills."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession

from state_engine import (
    DeltaSink,
    FileSource,
    Row,
    RowKind,
    SqlSink,
    StateEngine,
    StatefulJob,
    StateTtlConfig,
    Time,
)
from state_engine.core.errors import ConfigurationError, SinkError, SinkIdentityError

pytestmark = pytest.mark.spark

COLUMNS = "id bigint, city string, at bigint"


@dataclass
class Place:
    """A table, as a sink writes to it and as its user reads it."""

    directory: Path
    kind: str
    options: dict[str, Any] = field(default_factory=dict)

    def sink(self, **options: Any) -> DeltaSink | SqlSink:
        given: dict[str, Any] = {"key": ["id"]} | self.options | options
        if self.kind == "delta":
            return DeltaSink(str(self.directory / "latest"), **given)
        return SqlSink(f"sqlite:///{self.directory}/out.db", "latest", **given)

    def rows(self, columns: str = "id, city, at") -> list[tuple[Any, ...]]:
        if self.kind == "delta":
            read = pl.read_delta(str(self.directory / "latest"))
            return sorted(read.select(columns.split(", ")).rows())
        return self.run(f"SELECT {columns} FROM latest ORDER BY id")

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        engine = sa.create_engine(f"sqlite:///{self.directory}/out.db", poolclass=sa.NullPool)
        with engine.begin() as connection:
            result = connection.execute(sa.text(statement))
            return [tuple(row) for row in result] if result.returns_rows else []


@pytest.fixture(params=["delta", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(tmp_path, request.param)


@pytest.fixture
def engine(tmp_path: Path, spark: SparkSession) -> StateEngine:
    return StateEngine(tmp_path / "root", spark=spark)


def job_of(rows: list[Any], sink: DeltaSink | SqlSink, *, changing: bool = False, cut: int = 2) -> StatefulJob:
    job = StatefulJob("towns", parallelism=2)
    stream = job.from_collection(rows, COLUMNS, name="rows", changing=changing, max_rows_per_batch=cut)
    stream.sink("latest", sink)
    return job


ROWS = [(1, "Turin", 5), (2, "Rome", 6), (1, "Bari", 3), (3, "Pisa", 1), (2, "Como", 9)]


def test_the_last_row_of_each_key_by_the_total_order(place: Place, engine: StateEngine) -> None:
    engine.run(job_of(ROWS, place.sink()), max_batches=1)
    assert place.rows() == [(1, "Turin", 5), (2, "Rome", 6)]
    engine.run(job_of(ROWS, place.sink()))
    assert place.rows() == [(1, "Bari", 3), (2, "Como", 9), (3, "Pisa", 1)]


def test_the_last_row_of_each_key_by_a_sequence(place: Place, engine: StateEngine) -> None:
    engine.run(job_of([*ROWS, (2, "Lodi", 7)], place.sink(sequence=["at"])))
    assert place.rows() == [(1, "Turin", 5), (2, "Como", 9), (3, "Pisa", 1)]
