"""Keyed state as a DataFrame: equal to an independent fold as of any checkpoint, an error where files are missing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from state_engine import StateEngine
from tests.support.small_job import CLOCK_MS, build, folded, write_feed
from tests.support.tiny import Site


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> StateEngine:
    directory = tmp_path_factory.mktemp("read")
    engine_of_feed = StateEngine(directory / "root", spark)
    engine_of_feed.run(build(write_feed(directory / "feed"), directory / "sinks"), clock=CLOCK_MS)
    return engine_of_feed


def test_each_state_is_what_an_independent_fold_gives(engine: StateEngine) -> None:
    expected = folded(engine, "totals") | folded(engine, "ranks")
    rows = engine.read_state("small", "totals", "total").collect()
    assert {r["name"]: r["value"] for r in rows} == {k[1]: v for k, v in expected.items() if k[0] == "total"}

    rows = engine.read_state("small", "totals", "recent").collect()
    assert {r["name"]: r["value"] for r in rows} == {k[1]: v for k, v in expected.items() if k[0] == "recent"}

    parities: dict[str, dict[str, int]] = {}
    for row in engine.read_state("small", "totals", "parities").collect():
        parities.setdefault(row["name"], {})[row["map_key"]] = row["value"]
    assert parities == {k[1]: v for k, v in expected.items() if k[0] == "parities" and v}

    rows = engine.read_state("small", "ranks", "seen").collect()
    assert {r["parity"]: r["value"].asDict() for r in rows} == {
        k[1]: v for k, v in expected.items() if k[0] == "seen"
    }


def test_columns_are_the_key_then_the_value(engine: StateEngine) -> None:
    assert engine.read_state("small", "totals", "total").dtypes == [("name", "string"), ("value", "bigint")]
    assert engine.read_state("small", "totals", "parities").columns == ["name", "map_key", "value"]
    assert engine.read_state("small", "totals", "recent").dtypes[-1] == ("value", "array<bigint>")


def test_state_of_an_older_checkpoint(tmp_path: Path, spark: SparkSession) -> None:
    site = Site(tmp_path, spark)
    for n in range(3):
        site.put({"k": ["a", f"only_{n}"], "v": [1, n]}, str(n)).engine().run(site.job())
    seen = [
        {
            r["k"]: r["value"]
            for r in site.engine().read_state("tiny", "sums", "total", checkpoint_id=n).collect()
        }
        for n in (1, 2, 3)
    ]
    assert seen == [
        {"a": 1, "only_0": 0},
        {"a": 2, "only_0": 0, "only_1": 1},
        {"a": 3, "only_0": 0, "only_1": 1, "only_2": 2},
    ]


def test_files_that_no_checkpoint_lists_are_never_seen(tmp_path: Path, spark: SparkSession) -> None:
    """Orphans of a crashed attempt lie in the table's directory, and even in its log."""
    site = Site(tmp_path, spark).put({"k": list("abcd"), "v": [1, 2, 3, 4]})
    site.engine().run(site.job())
    changelog = tmp_path / "root/tiny/operators/sums/changelog"
    (partition,) = changelog.glob("write_id=*")
    shutil.copytree(partition, changelog / "write_id=00000000000000000000000000000000")
    assert site.state() == {"a": 1, "b": 2, "c": 3, "d": 4}
    site.put({"k": ["a"], "v": [1]}, "1").engine().run(site.job())
    assert site.state() == {"a": 2, "b": 2, "c": 3, "d": 4}
