"""Files of sorted rows in blocks: what is looked for is in what is read, and damage is never data."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_engine.storage.state import sorted_blocks
from state_engine.storage.state.sorted_blocks import (
    BlockFile,
    SortedRun,
    UnreadableBlocksError,
    write_blocks,
)

PAIR = pa.struct([("a", pa.bool_()), ("b", pa.string())])
NUMBERS = st.lists(st.integers(-6, 6), max_size=12).map(sorted)


def run(numbers: list[int]) -> SortedRun:
    """Numbers, and of what stands beside them texts, lists, structs and nulls."""
    table = {
        "n": pa.array(numbers, pa.int64()),
        "text": pa.array([None if n == 0 else f"é{n}" for n in numbers], pa.string()),
        "list": pa.array([[n] * abs(n) for n in numbers], pa.list_(pa.int64())),
        "struct": pa.array([{"a": n % 2 == 0, "b": str(n)} for n in numbers], PAIR),
    }
    return SortedRun(pa.table(table), "n")


def written(directory: Path, **runs: list[int]) -> Path:
    path = directory / "some.blocks"
    size = write_blocks({name: run(numbers) for name, numbers in runs.items()}, path, of="me", rows=3)
    assert path.stat().st_size == size
    return path


@given(
    first=NUMBERS,
    second=NUMBERS,
    wanted=st.sets(st.integers(-7, 7)),
    span=st.tuples(st.integers(-7, 7), st.integers(-7, 7)),
)
def test_blocks_hold_what_is_looked_for(
    first: list[int], second: list[int], wanted: set[int], span: tuple[int, int]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        blocks = BlockFile(written(Path(directory), first=first, second=second), of="me")
        for name, numbers in (("first", first), ("second", second)):
            of_run = run(numbers).rows
            for table, is_asked in (
                (blocks.with_any(name, np.array(sorted(wanted), np.int64)), lambda n: n in wanted),
                (blocks.between(name, *span), lambda n: span[0] <= n <= span[1]),
            ):
                assert kept(table, is_asked) == kept(of_run, is_asked)
                assert table.schema == of_run.schema


def kept(table: pa.Table, is_asked: Any) -> list[dict[str, Any]]:
    return [row for row in table.to_pylist() if is_asked(row["n"])]


def test_only_blocks_that_may_hold_it_are_read(tmp_path: Path) -> None:
    blocks = BlockFile(written(tmp_path, numbers=list(range(100))), of="me")
    assert blocks.with_any("numbers", np.array([50]))["n"].to_pylist() == [48, 49, 50]
    # a value that begins a block may end the one before, too
    assert blocks.with_any("numbers", np.array([51, 99]))["n"].to_pylist() == [
        48,
        49,
        50,
        51,
        52,
        53,
        96,
        97,
        98,
        99,
    ]
    assert blocks.between("numbers", -5, 1)["n"].to_pylist() == [0, 1, 2]
    assert blocks.between("numbers", -5, -1).num_rows == 0


def test_wherever_a_byte_changes_it_is_an_error_or_changes_nothing(tmp_path: Path) -> None:
    path = written(tmp_path, numbers=list(range(20)))
    whole, refused = path.read_bytes(), 0
    places = [*range(0, len(whole), 11), *range(len(whole) - 20, len(whole))]
    for at in places:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            blocks = BlockFile(path, of="me")
            assert blocks.between("numbers", 0, 20).equals(run(list(range(20))).rows)
        except UnreadableBlocksError:
            refused += 1
    assert refused == len(places)  # no byte of the file is of no account


@pytest.mark.parametrize("left", [0, 1, 19, 20, 21, 200, -1])
def test_a_file_that_is_cut_is_refused(tmp_path: Path, left: int) -> None:
    path = written(tmp_path, numbers=list(range(20)))
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(UnreadableBlocksError, match="does not end as"):
        BlockFile(path, of="me")


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, numbers=[1])
    with pytest.raises(UnreadableBlocksError, match="of something else"):
        BlockFile(path, of="you")
    with pytest.raises(FileNotFoundError):
        BlockFile(tmp_path / "nothing", of="me")


def test_a_file_is_written_whole_or_not_at_all_and_is_its_owners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, numbers=[1])
    assert path.stat().st_mode & 0o777 == 0o600

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sorted_blocks.os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_blocks({"more": run([1, 2])}, path, of="me", rows=3)
    assert list(tmp_path.iterdir()) == [path]
    assert BlockFile(path, of="me").runs == ["numbers"]
