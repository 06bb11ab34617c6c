"""Parquet files: how they are compressed; and no damaged footer is parsed, nor a damaged page read as data."""

from __future__ import annotations

import random
import re
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from state_engine.core.errors import DamagedFileError, MissingFilesError
from state_engine.storage.stores import parquet_reading
from state_engine.storage.stores.files import WrittenFile, footer_bytes, write_parquet
from state_engine.storage.stores.parquet_reading import ReadSizes
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


ROWS = 5_000
TABLE = pa.table(
    {"n": range(ROWS), "text": [f"t{i % 97}" for i in range(ROWS)], "parts": [[i, None] for i in range(ROWS)]}
)


@pytest.fixture(params=["whole", "piece by piece"])
def file(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WrittenFile:
    """Small files are read whole, large ones are not."""
    if request.param != "whole":
        sizes = ReadSizes(whole=0, end=64)
        for name in ("open_parquet", "check_footer"):
            monkeypatch.setattr(parquet_reading, name, partial(getattr(parquet_reading, name), sizes=sizes))
    return write_parquet(TABLE, f"file://{tmp_path}/a/b.parquet")


def path_of(file: WrittenFile) -> Path:
    return Path(file.uri.removeprefix("file://"))


def flip(file: WrittenFile, at: int, bit: int = 0) -> None:
    content = bytearray(path_of(file).read_bytes())
    content[at] ^= 1 << bit
    path_of(file).write_bytes(content)


def read(file: WrittenFile) -> pa.Table:
    return parquet_reading.read_parquet(
        file.uri, size=file.bytes, footer=file.footer, of="checkpoint 7, operator 'sums'"
    )


def test_what_was_written_is_read(file: WrittenFile) -> None:
    assert read(file).equals(TABLE)
    opened = parquet_reading.open_parquet(file.uri, size=file.bytes, footer=file.footer, coded=["text"])
    assert opened.schema.field("text").type == pa.dictionary(pa.int32(), pa.string())
    assert pa.Table.from_batches(parquet_reading.open_parquet(file.uri).batches(999)).equals(TABLE)
    assert parquet_reading.open_parquet(file.uri).read_row_groups([0], ["n"]).equals(TABLE.select(["n"]))
    assert pq.read_table(path_of(file), page_checksum_verification=True).equals(TABLE)
    parquet_reading.check_footer(file.uri, size=file.bytes, footer=file.footer)


def test_columns_that_are_read_as_numbers_need_not_be_there(tmp_path: Path) -> None:
    table = pa.table(
        {"key": pa.array([{"op": "put"}]), "state": ["sums"]}
    )  # a column of that name inside another one
    file = write_parquet(table, f"file://{tmp_path}/one.parquet")
    opened = parquet_reading.open_parquet(file.uri, coded=["state", "op"])
    assert opened.read().to_pylist() == table.to_pylist()


def test_every_bit_of_a_footer_matters(file: WrittenFile) -> None:
    content = path_of(file).read_bytes()
    start = len(content) - footer_bytes(pa.py_buffer(content))
    assert content[-4:] == b"PAR1"
    for at in range(start, len(content), 7):
        flip(file, at, at % 8)
        for use in (read, lambda f: parquet_reading.check_footer(f.uri, size=f.bytes, footer=f.footer)):
            with pytest.raises(DamagedFileError, match="its footer is not the one that was written"):
                use(file)
        path_of(file).write_bytes(content)


def test_nothing_parses_a_footer_that_was_changed(file: WrittenFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def parses(*_: Any, **__: Any) -> None:
        raise AssertionError("the parser was given a damaged footer")

    flip(file, file.bytes - 40)
    monkeypatch.setattr(parquet_reading.pq, "ParquetFile", parses)
    monkeypatch.setattr(parquet_reading.pq, "read_metadata", parses)
    with pytest.raises(DamagedFileError):
        read(file)


def test_no_page_is_read_as_something_else(file: WrittenFile) -> None:
    content = path_of(file).read_bytes()
    start = len(content) - footer_bytes(pa.py_buffer(content))
    chance = random.Random(4)
    messages = []
    for _ in range(150):
        flip(file, chance.randrange(4, start), chance.randrange(8))
        try:
            rows = read(file)
        except DamagedFileError as error:
            messages.append(str(error))
        else:  # a flip in what nobody reads, as in the statistics of a page
            assert rows.equals(TABLE)
        path_of(file).write_bytes(content)
    assert len(messages) > 120
    form = re.compile(
        r"checkpoint 7, operator 'sums': file:.*/b\.parquet is damaged: it cannot be read .*savepoint into another root"
    )
    assert [m for m in messages if not form.fullmatch(m)] == []


def test_other_sizes_and_files_that_are_gone(file: WrittenFile) -> None:
    content = path_of(file).read_bytes()
    for kept in (0, 3, 11, len(content) // 2, len(content) - 1):
        path_of(file).write_bytes(content[:kept])
        with pytest.raises(DamagedFileError, match=f"it has {kept:,} bytes, {len(content):,} were recorded"):
            read(file)
        with pytest.raises(MissingFilesError, match="it cannot be read"):  # nothing was recorded
            parquet_reading.read_parquet(file.uri)
    path_of(file).unlink()
    with pytest.raises(FileNotFoundError):
        read(file)


def test_an_error_of_the_storage_is_not_damage(file: WrittenFile, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = parquet_reading.open_parquet(file.uri)

    def fails(*_: Any, **__: Any) -> None:
        raise OSError("When reading object: AWS Error NETWORK_CONNECTION during GetObject: no route")

    opened._in_memory = False
    monkeypatch.setattr(opened, "_file", type("File", (), {"read": fails})())
    with pytest.raises(OSError, match="NETWORK_CONNECTION"):
        opened.read()
