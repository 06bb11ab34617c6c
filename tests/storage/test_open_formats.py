"""Other readers open every table: delta-rs and polars, with native types and only with features that they support."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from state_engine import StateEngine
from tests.microbatch.test_bad_input import raises
from tests.support.small_job import CLOCK_MS, build, folded, write_feed
from tests.support.tiny import ROWS, Site, Sum

READABLE = {"timestampNtz"}
"""Reader features that delta-rs has and our tables may need."""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> tuple[Path, StateEngine]:
    directory = tmp_path_factory.mktemp("open")
    engine = StateEngine(directory / "root", spark)
    engine.run(build(write_feed(directory / "feed"), directory / "sinks"), clock=CLOCK_MS)
    bad = Site(directory / "bad", spark).put(ROWS)
    bad.engine().run(bad.job(Sum(raises), on_error="dead_letter"))
    engine.close()
    return directory, engine


def tables(directory: Path) -> dict[str, Path]:
    return {str(log.parent.relative_to(directory)): log.parent for log in directory.rglob("_delta_log")}


def test_every_table_is_there(ran: tuple[Path, StateEngine]) -> None:
    assert set(tables(ran[0])) == {
        "root/small/checkpoints",
        "root/small/operator_state",
        "root/small/operators/totals/changelog",
        "root/small/operators/ranks/changelog",
        "sinks/totals",
        "bad/root/tiny/checkpoints",
        "bad/root/tiny/operator_state",
        "bad/root/tiny/operators/sums/changelog",
        "bad/root/tiny/dead_letters",
        "bad/sink",
    }


def test_delta_rs_polars_and_spark_read_the_same_rows(
    ran: tuple[Path, StateEngine], spark: SparkSession
) -> None:
    for name, path in tables(ran[0]).items():
        counted = DeltaTable(str(path)).to_pyarrow_table().num_rows
        assert counted > 0, name
        assert pl.scan_delta(str(path)).collect().height == counted, name
        assert spark.read.format("delta").load(str(path)).count() == counted, name


def test_no_table_needs_a_feature_that_others_lack(ran: tuple[Path, StateEngine]) -> None:
    for name, path in tables(ran[0]).items():
        protocol = DeltaTable(str(path)).protocol()
        assert protocol.min_reader_version in (1, 3), name
        assert set(protocol.reader_features or ()) <= READABLE, name
        metadata = DeltaTable(str(path)).metadata().configuration
        assert metadata.get("delta.columnMapping.mode", "none") == "none", name
        assert metadata.get("delta.enableDeletionVectors", "false") == "false", name


def test_state_columns_have_native_types(ran: tuple[Path, StateEngine]) -> None:
    schema = DeltaTable(str(ran[0] / "root/small/operators/totals/changelog")).to_pyarrow_table().schema
    kinds = {f.name: str(f.type) for f in schema}
    assert kinds["v_total"] == "int64"
    assert kinds["v_parities"] == "struct<key: string, value: int64>"
    assert pa.types.is_list(schema.field("v_recent").type)
    assert schema.field("v_recent").type.value_type.field("value").type == pa.int64()
    assert kinds["key"] == "struct<name: string>"
    assert (kinds["key_group"], kinds["key_hash"], kinds["op"]) == ("int64", "int64", "string")
    ranks = DeltaTable(str(ran[0] / "root/small/operators/ranks/changelog")).to_pyarrow_table().schema
    assert str(ranks.field("v_seen").type) == "struct<f0: int64, f1: int64>"


def test_state_can_be_taken_with_polars_alone(ran: tuple[Path, StateEngine]) -> None:
    """The last change of every key of a value state, in the order of the checkpoints' attempts."""
    changes = pl.scan_delta(str(ran[0] / "root/small/operators/totals/changelog"))
    ids = pl.scan_delta(str(ran[0] / "root/small/checkpoints")).select("checkpoint_id", "write_id")
    last = (
        changes.filter(pl.col("state") == "total")
        .join(ids, on="write_id")
        .sort("checkpoint_id")
        .group_by(pl.col("key").struct.field("name"))
        .agg(pl.col("v_total").last(), pl.col("op").last())
        .collect()
    )
    puts = {("total", name): value for name, value, op in last.rows() if op == "put"}
    assert puts == {k: v for k, v in folded(ran[1], "totals").items() if k[0] == "total"}


def test_files_have_statistics_for_skipping(ran: tuple[Path, StateEngine]) -> None:
    log = ran[0] / "root/small/operators/totals/changelog/_delta_log"
    adds = [
        json.loads(line)["add"]
        for f in log.glob("*.json")
        for line in f.read_text().splitlines()
        if '"add"' in line
    ]
    assert adds
    for add in adds:
        stats = json.loads(add["stats"])
        assert {"key_group", "key_hash"} <= set(stats["minValues"]) & set(stats["maxValues"])
        assert stats["minValues"]["key_group"] <= stats["maxValues"]["key_group"] < 128
