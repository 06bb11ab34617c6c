"""Damaged Parquet files: nothing parses a footer that is not the recorded one, and no damaged page is read as data."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from state_engine.core.errors import DamagedFileError, MissingFilesError
from state_engine.storage.stores import parquet_reading
from state_engine.storage.stores.files import WrittenFile, footer_bytes, write_parquet
from state_engine.storage.stores.parquet_reading import check_footer, open_parquet, read_parquet

ROWS = 5_000
TABLE = pa.table(
    {"n": range(ROWS), "text": [f"t{i % 97}" for i in range(ROWS)], "parts": [[i, None] for i in range(ROWS)]}
)


@pytest.fixture(params=["whole", "piece by piece"])
def file(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WrittenFile:
    """Small files are read whole, large ones are not."""
    if request.param != "whole":
        monkeypatch.setattr(parquet_reading, "_WHOLE_BYTES", 0)
        monkeypatch.setattr(parquet_reading, "_END_BYTES", 64)
    return write_parquet(TABLE, f"file://{tmp_path}/a/b.parquet")


def path_of(file: WrittenFile) -> Path:
    return Path(file.uri.removeprefix("file://"))


def flip(file: WrittenFile, at: int, bit: int = 0) -> None:
    content = bytearray(path_of(file).read_bytes())
    content[at] ^= 1 << bit
    path_of(file).write_bytes(content)


def read(file: WrittenFile) -> pa.Table:
    return read_parquet(file.uri, size=file.bytes, footer=file.footer, of="checkpoint 7, operator 'sums'")


def test_what_was_written_is_read(file: WrittenFile) -> None:
    assert read(file).equals(TABLE)
    opened = open_parquet(file.uri, size=file.bytes, footer=file.footer, coded=["text"])
    assert opened.schema.field("text").type == pa.dictionary(pa.int32(), pa.string())
    assert pa.Table.from_batches(open_parquet(file.uri).batches(999)).equals(TABLE)
    assert open_parquet(file.uri).read_row_groups([0], ["n"]).equals(TABLE.select(["n"]))
    assert pq.read_table(path_of(file), page_checksum_verification=True).equals(TABLE)
    check_footer(file.uri, size=file.bytes, footer=file.footer)


def test_every_bit_of_a_footer_matters(file: WrittenFile) -> None:
    content = path_of(file).read_bytes()
    start = len(content) - footer_bytes(pa.py_buffer(content))
    assert content[-4:] == b"PAR1"
    for at in range(start, len(content), 7):
        flip(file, at, at % 8)
        for use in (read, lambda f: check_footer(f.uri, size=f.bytes, footer=f.footer)):
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
        r"checkpoint 7, operator 'sums': file:.*/b\.parquet is damaged: it cannot be read .*savepoint"
    )
    assert [m for m in messages if not form.fullmatch(m)] == []


def test_other_sizes_and_files_that_are_gone(file: WrittenFile) -> None:
    content = path_of(file).read_bytes()
    for kept in (0, 3, 11, len(content) // 2, len(content) - 1):
        path_of(file).write_bytes(content[:kept])
        with pytest.raises(DamagedFileError, match=f"it has {kept:,} bytes, {len(content):,} were recorded"):
            read(file)
        with pytest.raises(MissingFilesError, match="it cannot be read"):  # nothing was recorded
            read_parquet(file.uri)
    path_of(file).unlink()
    with pytest.raises(FileNotFoundError):
        read(file)


def test_an_error_of_the_storage_is_not_damage(file: WrittenFile, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_parquet(file.uri)

    def fails(*_: Any, **__: Any) -> None:
        raise OSError("When reading object: AWS Error NETWORK_CONNECTION during GetObject: no route")

    opened._in_memory = False
    monkeypatch.setattr(opened, "_file", type("File", (), {"read": fails})())
    with pytest.raises(OSError, match="NETWORK_CONNECTION"):
        opened.read()
