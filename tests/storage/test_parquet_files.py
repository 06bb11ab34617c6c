"""How Parquet files are compressed: by how many rows they have, where they are, and how long they live."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from state_engine.storage.stores.files import write_parquet
from tests.support.tiny import Site

MANY = pa.table({"n": range(1_000)})


def codec(file: Path | pa.BufferReader) -> str:
    groups = pq.read_metadata(file).to_dict()["row_groups"]
    kinds = {column["compression"] for group in groups for column in group["columns"]}
    (kind,) = kinds
    return str(kind)


@pytest.mark.parametrize(
    ("rows", "short_lived", "kind"), [(1_000, True, "SNAPPY"), (1_000, False, "ZSTD"), (100, False, "SNAPPY")]
)
def test_on_a_disk_time_counts_for_a_short_life(
    tmp_path: Path, rows: int, short_lived: bool, kind: str
) -> None:
    write_parquet(MANY.slice(0, rows), (tmp_path / "0.parquet").as_uri(), short_lived=short_lived)
    assert codec(tmp_path / "0.parquet") == kind


def test_in_a_store_size_counts() -> None:
    written: dict[str, pa.Buffer] = {}
    write_parquet(MANY, "s3a://bucket/0.parquet", short_lived=True, put=written.__setitem__)
    assert codec(pa.BufferReader(written["s3a://bucket/0.parquet"])) == "ZSTD"


def test_changes_live_until_a_compaction_and_bases_and_outputs_longer(
    tmp_path: Path, spark: SparkSession
) -> None:
    site = Site(tmp_path, spark).put({"k": list(map(str, range(1_000))), "v": [1] * 1_000})
    engine, job = site.engine(), site.job(parallelism=1, max_parallelism=1)
    engine.run(job)
    engine.compact(job)
    operator = tmp_path / "root/tiny/operators/sums"
    places = [operator / "changelog", operator / "base", site.sink]
    written = [[codec(file) for file in place.rglob("*.parquet")] for place in places]
    assert written == [["SNAPPY"], ["ZSTD"], ["ZSTD"]]
