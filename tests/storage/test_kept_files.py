"""Little files are opened once by a process, and what is wrong with one is the same error as ever."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from state_engine.core.errors import DamagedFileError, MissingFilesError
from state_engine.storage.state.listed_files import ListedFile, open_state_file
from state_engine.storage.stores import kept_files
from state_engine.storage.stores.files import WrittenFile, write_parquet
from state_engine.storage.stores.kept_files import KeptFiles
from state_engine.storage.stores.parquet_reading import OpenParquet, open_parquet

ROWS = 300


def written(directory: Path, name: str = "a.parquet", rows: int = ROWS) -> WrittenFile:
    return write_parquet(pa.table({"n": range(rows)}), f"file://{directory}/{name}")


def decoded(file: WrittenFile) -> int:
    return open_parquet(file.uri).read().nbytes


class Opening:
    def __init__(self, file: WrittenFile) -> None:
        self.file, self.times = file, 0

    def __call__(self) -> OpenParquet:
        self.times += 1
        return open_parquet(self.file.uri, size=self.file.bytes, footer=self.file.footer)

    def through(self, kept: KeptFiles) -> list[int]:
        numbers: list[int] = kept.opened(self.file.uri, (), self).read()["n"].to_pylist()
        return numbers


def test_a_file_is_opened_and_decoded_once(tmp_path: Path) -> None:
    kept, opening = KeptFiles(), Opening(written(tmp_path))
    for _ in range(3):
        assert opening.through(kept) == list(range(ROWS))
    assert opening.times == 1
    file = kept.opened(opening.file.uri, (), opening)
    assert file.read() is file.read_row_groups([0])
    assert file.read(["n"]).equals(file.read())
    assert kept.bytes >= ROWS * 8
    kept.opened(opening.file.uri, ("state",), opening)  # decoded in another way
    assert opening.times == 2


def test_rows_are_kept_by_their_size_when_decoded(tmp_path: Path) -> None:
    """A file says little of it: one text stands there once, however often it is repeated."""
    kept = KeptFiles()
    file = write_parquet(pa.table({"text": ["x" * 30_000] * 100}), f"file://{tmp_path}/a.parquet")
    opening = Opening(file)
    rows = [kept.opened(file.uri, (), opening).read() for _ in range(2)]
    assert rows[0].nbytes > 2**20 > file.bytes
    assert (opening.times, kept.bytes) == (1, file.bytes)
    assert rows[0] is not rows[1]


def test_rows_are_not_kept_beyond_the_limit(tmp_path: Path) -> None:
    files = [written(tmp_path, name) for name in ("a.parquet", "b.parquet")]
    limit = 2 * files[0].bytes + decoded(files[0])
    kept = KeptFiles(max_bytes=limit)
    opened = [kept.opened(file.uri, (), Opening(file)) for file in files]  # both, before any row is decoded
    for file in opened:
        file.read()
    assert [file.kept_bytes for file in opened] == [decoded(files[0]), 0]
    assert kept.bytes == limit


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (os.unlink, MissingFilesError),
        (flipped, DamagedFileError),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), DamagedFileError),
    ],
    ids=["gone", "flipped", "cut"],
)
def test_it_hides_no_file_that_is_gone_or_was_changed(
    tmp_path: Path, change: Callable[[Path], object], error: type[Exception]
) -> None:
    file = written(tmp_path)
    listed = ListedFile(file.uri, ROWS, bytes=file.bytes, footer=file.footer, kept=True)
    assert open_state_file(listed).read() is open_state_file(listed).read()
    change(tmp_path / "a.parquet")
    with pytest.raises(error):
        open_state_file(listed).read()


def test_only_files_that_are_to_be_kept_are(tmp_path: Path) -> None:
    file = written(tmp_path)
    listed = ListedFile(file.uri, ROWS, bytes=file.bytes, footer=file.footer)
    assert open_state_file(listed).read() is not open_state_file(listed).read()


def test_a_file_that_became_another_one_is_read_anew(tmp_path: Path) -> None:
    kept, opening = KeptFiles(), Opening(written(tmp_path))
    opening.through(kept)
    opening.file = written(tmp_path, rows=7)
    assert opening.through(kept) == list(range(7))
    assert opening.through(kept) == list(range(7))
    assert opening.times == 2


def test_files_that_are_not_listed_go(tmp_path: Path) -> None:
    kept = KeptFiles()
    here, there, other = (Opening(written(tmp_path / name)) for name in ("one", "two", "one-more"))
    for opening in (here, there, other):
        opening.through(kept)
    kept.keep_only({there.file.uri}, below=[f"file://{tmp_path}/one"])
    for opening in (here, there, other):
        opening.through(kept)
    assert [opening.times for opening in (here, there, other)] == [2, 1, 1]


def test_where_there_is_no_room_a_file_is_opened_each_time_until_others_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]
    monkeypatch.setattr(kept_files.time, "monotonic", lambda: now_s[0])
    first, second = Opening(written(tmp_path)), Opening(written(tmp_path, "b.parquet"))
    kept = KeptFiles(max_bytes=first.file.bytes + decoded(first.file) + 1)
    for opening in (first, second, first, second):
        opening.through(kept)
    assert (first.times, second.times) == (1, 2)
    now_s[0] = 601.0
    for opening in (second, second, first):
        opening.through(kept)
    assert (first.times, second.times) == (2, 3)


def test_a_large_file_is_not_kept(tmp_path: Path) -> None:
    kept, opening = KeptFiles(largest_bytes=100), Opening(written(tmp_path))
    opening.through(kept)
    opening.through(kept)
    assert (opening.times, kept.bytes) == (2, 0)


class Rows:
    """What ``KeptFiles`` asks of an open file, without anything to read."""

    row_groups, kept_bytes = 0, 1

    def decoded_bytes(self, groups: range) -> int:
        return len(groups)

    def keep_rows(self, may_keep: Callable[[int], bool]) -> None:
        self.may_keep = may_keep


def test_threads_may_open_and_read_at_once(tmp_path: Path) -> None:
    """A file asks whether its rows may be kept while other threads open files."""
    files = [tmp_path / f"{n}.parquet" for n in range(400)]
    for file in files:
        file.touch()
    kept, first, before = KeptFiles(), Rows(), sys.getswitchinterval()
    opening: Any = Rows

    def open_all(half: list[Path]) -> list[OpenParquet]:
        return [kept.opened(f"file://{file}", (), opening) for file in half]

    kept.opened(f"file://{files[0]}", (), lambda: cast("OpenParquet", first))
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(3) as threads:
            opened = [threads.submit(open_all, half) for half in (files[1::2], files[2::2])]
            while not all(one.done() for one in opened):
                assert first.may_keep(1)
            assert sum(len(one.result()) for one in opened) == len(files) - 1
    finally:
        sys.setswitchinterval(before)
    assert kept.bytes == len(files)
