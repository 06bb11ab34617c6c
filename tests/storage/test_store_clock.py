"""The clock of the storage: never ahead of it, whatever the machine's clock does, and asked rarely."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pyarrow.fs as pafs
import pytest

import state_engine
from state_engine.core.checkpoints.write_ids import written_at_ms
from state_engine.storage.stores import store_clock
from state_engine.storage.stores.store_clock import PROBE, StoreClock, same_store, written_ms

DAYS_MS = 2 * 24 * 3_600_000


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The machine's counter, in ns; set by the test."""
    at = [5_000_000_000]
    monkeypatch.setattr(store_clock, "_steady_ns", lambda: at[0])
    return at


def test_it_is_the_storages_time_whatever_the_machine_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steady: list[int]
) -> None:
    real_ms = time.time_ns() // 1_000_000
    for ahead_ms in (-DAYS_MS, DAYS_MS):
        monkeypatch.setattr(time, "time", lambda: 1.0)
        monkeypatch.setattr(time, "time_ns", lambda by=ahead_ms: (real_ms + by) * 1_000_000)
        store_ms = StoreClock(f"file://{tmp_path}/root").now_ms()
        assert abs(store_ms - real_ms) < 3_600_000
    monkeypatch.undo()


def test_it_goes_on_with_the_counter_and_asks_again_after_a_while(
    tmp_path: Path, steady: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def written(info: pafs.FileInfo) -> int:
        asked.append(info.base_name)
        return len(asked) * 1_000_000

    monkeypatch.setattr(store_clock, "written_ms", written)
    clock = StoreClock(f"file://{tmp_path}")
    assert clock.now_ms() == 1_000_000
    steady[0] += 600 * 1_000_000_000
    assert clock.now_ms() == 1_600_000
    steady[0] += 1
    assert clock.now_ms() == 2_000_000
    assert [name.startswith(PROBE) for name in asked] == [True, True]
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_a_file_that_was_seen_corrects_a_clock_that_stood_still(tmp_path: Path, steady: list[int]) -> None:
    clock = StoreClock(f"file://{tmp_path}")
    first = clock.now_ms()
    clock.saw(first - 1)
    assert clock.now_ms() == first
    clock.saw(first + DAYS_MS)
    assert clock.now_ms() == first + DAYS_MS


def test_attempts_are_named_by_it(tmp_path: Path, steady: list[int]) -> None:
    clock = StoreClock(f"file://{tmp_path}")
    one, other = clock.attempt(), clock.attempt()
    assert one.write_id != other.write_id
    assert written_at_ms(one.write_id) == clock.now_ms()
    assert one.created_at == clock.now()


def test_nothing_else_names_attempts() -> None:
    """A name by the machine's clock would make files look old to a collector, or too young for it."""
    texts = {file: file.read_text() for file in Path(state_engine.__file__).parent.rglob("*.py")}
    assert any("uuid4" in text for text in texts.values())
    assert [file for file, text in texts.items() if re.search("uuid[1678]", text)] == []


def test_asking_nothing_writes_nothing(tmp_path: Path) -> None:
    StoreClock(f"file://{tmp_path}/root")
    assert list(tmp_path.iterdir()) == []


def test_which_storage_has_one_clock(tmp_path: Path) -> None:
    here = f"file://{tmp_path}"
    assert same_store(here, "file:///") == (os.stat(tmp_path).st_dev == os.stat("/").st_dev)
    assert same_store(here, f"{here}/none") is False
    assert same_store("s3a://b/root", "s3a://b/sink")
    assert not same_store("s3a://b/root", "s3a://c/sink")
    assert not same_store("s3a://b/root", here)


def test_a_store_without_times_makes_every_file_young() -> None:
    class Untimed:
        mtime_ns = None

    assert written_ms(Untimed()) >= time.time_ns() // 1_000_000 - 1_000
