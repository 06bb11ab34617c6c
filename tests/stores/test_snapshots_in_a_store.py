"""Full copies of a table in a store: their changes are those of a plain program, and again in a replay."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from state_engine import StateEngine
from state_engine.storage.stores.files import open_location
from tests.sources.test_snapshots import DAYS, DUMPS, Rows, dump, expected_of, job_of, shown


def put(local: Path, uri: str, day: str, rows: Rows) -> None:
    """A copy that is a directory of objects."""
    location = open_location(f"{uri}/{day}")
    for file in sorted(dump(local / day, rows).iterdir()):
        with location.fs.open_output_stream(f"{location.path}/{file.name}") as stream:
            stream.write(file.read_bytes())


@pytest.mark.usefixtures("store")
def test_versions_of_daily_dumps_in_a_store(uri: str, tmp_path: Path, spark: SparkSession) -> None:
    engine, dumps = StateEngine(tmp_path / "root", spark=spark), f"{uri}/dumps"
    for at, (day, rows) in enumerate(zip(DAYS, DUMPS, strict=True), start=1):
        put(tmp_path / "local", dumps, day, rows)
        engine.run(job_of(tmp_path, dumps))
        assert shown(tmp_path) == expected_of(DUMPS[:at])
    replayed = engine.replay(job_of(tmp_path, dumps), rebatch=True)
    assert engine.compare("customers", replayed.branch).is_equal
