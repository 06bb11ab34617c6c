"""Rows of checkpoints: files of many rows replace many files, and all readers see the same rows."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from deltalake import DeltaTable

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.updates import AddCheckpoint, NewestIs
from state_engine.core.checkpoints.write_ids import write_id_at
from state_engine.core.errors import CommitFailedError, StaleParentError
from state_engine.storage import checkpoint_log
from state_engine.storage.checkpoint_log import CheckpointLog
from state_engine.storage.delta.kernel import DeltaKernel
from state_engine.storage.layout import JobLayout
from tests.core.checkpoints.rows import changes, checkpoint, operator

TOGETHER = 4


def append(log: CheckpointLog, row: CheckpointRow) -> None:
    log.commit([AddCheckpoint(row)], NewestIs(row.checkpoint_id - 1))


class Table:
    """A table of checkpoints, and logs on it as other processes would have them."""

    def __init__(self, directory: Path, kernel: DeltaKernel) -> None:
        self.kernel, self.layout = kernel, JobLayout(f"file://{directory}", "job")
        self.directory = directory / "job" / "checkpoints"
        self.log().create()

    def log(self) -> CheckpointLog:
        return CheckpointLog(self.kernel, self.layout, "root")

    def grow(self, log: CheckpointLog, first: int, last: int) -> None:
        log.load()
        for i in range(first, last + 1):
            part = operator(changes(0, (0, 63), rows=i), changes(1, (64, 127)))
            append(log, checkpoint(i, i - 1 or None, operators=[part], metrics={"n": float(i)}))

    def files(self) -> list[str]:
        return sorted(uri.rsplit("/", 1)[-1][:14] for uri in DeltaTable(str(self.directory)).file_uris())


@pytest.fixture
def table(tmp_path: Path, kernel: DeltaKernel, monkeypatch: pytest.MonkeyPatch) -> Table:
    monkeypatch.setattr(checkpoint_log, "_TOGETHER", TOGETHER)
    return Table(tmp_path, kernel)


def test_rows_are_the_same_in_fewer_files(table: Table) -> None:
    mine, beside = table.log(), table.log()
    table.grow(mine, 1, 3)
    assert mine.merge() == 0
    beside.load()
    rows = 3
    for merged in (4, 4, 4, 4 + 4):  # the fourth time, four merged files are merged, too
        table.grow(mine, rows + 1, rows + TOGETHER)
        rows += TOGETHER
        assert mine.merge() >= merged
        assert mine.load() == beside.load() == table.log().load()
        assert sorted(mine.history) == list(range(1, rows + 1))
    assert table.files() == ["checkpoints-2-"]
    assert mine.merge() == 0
    table.grow(beside, rows + 1, rows + 1)
    assert mine.load() == table.log().load()
    assert len(table.files()) == 2


def test_of_two_that_merge_one_does_and_rows_that_come_meanwhile_stay(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, rival = table.log(), table.log()
    table.grow(mine, 1, TOGETHER)
    rival.load()
    change = DeltaKernel.change

    def overtaken(self: DeltaKernel, uri: str, **options: Any) -> int:
        monkeypatch.setattr(DeltaKernel, "change", change)
        assert rival.merge() == TOGETHER
        table.grow(rival, TOGETHER + 1, TOGETHER + 1)
        return change(self, uri, **options)

    monkeypatch.setattr(DeltaKernel, "change", overtaken)
    assert mine.merge() == 0
    assert mine.load() == rival.load() == table.log().load()
    assert sorted(mine.load()) == [1, 2, 3, 4, 5]
    assert table.files() == ["checkpoint-000", "checkpoints-1-"]


def began(hours_ago: float) -> str:
    return write_id_at(time.time_ns() // 1_000_000 - int(hours_ago * 3_600_000), uuid4().int)


def test_late_and_overtaken_rows_have_their_files_looked_at_and_old_ones_are_refused(table: Table) -> None:
    seen: list[int] = []
    log = CheckpointLog(table.kernel, table.layout, "root", verify=lambda row: seen.append(row.checkpoint_id))
    append(log, checkpoint(1, write_id=began(0.9)))
    assert seen == []
    append(log, checkpoint(2, 1, write_id=began(1.1)))
    assert seen == [2], "late"

    table.grow(table.log(), 3, 3)
    mine = began(0)
    with pytest.raises(StaleParentError):
        append(log, checkpoint(3, 2, write_id=mine))
    append(log, checkpoint(4, 3, write_id=mine))
    assert seen == [2, 4], "overtaken"
    append(log, checkpoint(5, 4, write_id=began(0)))
    assert seen == [2, 4]

    with pytest.raises(CommitFailedError, match=r"began 12\.1 hours ago"):
        append(log, checkpoint(6, 5, write_id=began(12.1)))

    def gone(_: object) -> None:
        raise CommitFailedError("its files are gone")

    late = CheckpointLog(table.kernel, table.layout, "root", verify=gone)
    late.load()
    with pytest.raises(CommitFailedError, match="its files are gone"):
        append(late, checkpoint(6, 5, write_id=began(2)))
    assert sorted(table.log().load()) == [1, 2, 3, 4, 5]


def test_a_merge_that_breaks_off_loses_nothing(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = table.log()
    table.grow(mine, 1, TOGETHER)

    def fails(*_: Any, **__: Any) -> int:
        raise CommitFailedError("the storage does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(DeltaKernel, "change", fails)
        with pytest.raises(CommitFailedError):
            mine.merge()
    assert sorted(table.log().load()) == [1, 2, 3, 4]
    assert mine.merge() == TOGETHER
    assert mine.load() == table.log().load()
