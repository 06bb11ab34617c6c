"""The state root: its id, its jobs, where it may not be, and the clock of its storage."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import pyarrow.fs as pafs
import pytest

import state_engine
from state_engine.core.checkpoints.write_ids import written_at_ms
from state_engine.core.errors import RootError
from state_engine.storage.layout import FORMAT_VERSION
from state_engine.storage.root import MARKER, open_root, write_marker
from state_engine.storage.stores import store_clock
from state_engine.storage.stores.files import normal_uri
from state_engine.storage.stores.store_clock import PROBE, StoreClock, same_store, written_ms


def test_a_root_gets_an_id_once(tmp_path: Path) -> None:
    uri = normal_uri(tmp_path / "root")
    root_id = open_root(uri, create=True)
    assert root_id is not None
    assert len(root_id) == 32
    assert open_root(uri, create=True) == root_id == open_root(uri, create=False)


def test_two_roots_have_two_ids(tmp_path: Path) -> None:
    assert open_root(normal_uri(tmp_path / "a"), create=True) != open_root(
        normal_uri(tmp_path / "b"), create=True
    )


def test_looking_makes_nothing(tmp_path: Path) -> None:
    assert open_root(normal_uri(tmp_path / "root"), create=False) is None
    assert list(tmp_path.iterdir()) == []


def mark(directory: Path, text: str) -> str:
    (directory / MARKER).write_text(text)
    return normal_uri(directory)


def test_an_older_format_is_refused(tmp_path: Path) -> None:
    uri = mark(tmp_path, json.dumps({"root_id": "x", "format": "5"}))
    with pytest.raises(RootError, match=r"of a Statelake before 0\.2\.0"):
        open_root(uri, create=False)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    uri = mark(tmp_path, json.dumps({"root_id": "x", "format": str(FORMAT_VERSION + 1)}))
    for create in (True, False):
        with pytest.raises(RootError, match="was written by a newer Statelake"):
            open_root(uri, create=create)


def test_an_older_format_with_a_digest_is_refused(tmp_path: Path) -> None:
    uri = normal_uri(tmp_path)
    write_marker(uri, {"root_id": "x", "format": str(FORMAT_VERSION - 1)})
    with pytest.raises(RootError, match="statelake upgrade"):
        open_root(uri, create=False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is damaged"),
        ("", "is damaged"),
        ("{}", "not written by this engine"),
        ("[]", "not written by this engine"),
    ],
)
def test_a_marker_that_is_not_ours_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(RootError, match=message):
        open_root(mark(tmp_path, text), create=True)


def flips(text: str) -> list[str]:
    """The text with one character replaced, at each of its places, by one that is close to it."""
    return [text[:i] + chr(ord(c) ^ 1) + text[i + 1 :] for i, c in enumerate(text)]


def with_a_job(directory: Path) -> str:
    """A root in which a job has a table, as far as its directories show."""
    uri = normal_uri(directory)
    open_root(uri, create=True)
    (directory / "tiny" / "checkpoints" / "_delta_log").mkdir(parents=True)
    return uri


@pytest.mark.parametrize("create", [True, False])
def test_a_root_with_jobs_that_lost_its_marker_gets_no_new_id(tmp_path: Path, create: bool) -> None:
    uri = with_a_job(tmp_path)
    (tmp_path / MARKER).unlink()
    with pytest.raises(RootError, match=r"holds the jobs \['tiny'\].*is gone.*statelake doctor --repair"):
        open_root(uri, create=create)
    assert not (tmp_path / MARKER).exists()


def test_a_directory_with_other_things_in_it_still_becomes_a_root(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "readme.txt").write_text("mine")
    assert open_root(normal_uri(tmp_path), create=True) is not None


def test_every_flip_of_a_bit_in_a_marker_is_noticed(tmp_path: Path) -> None:
    uri = with_a_job(tmp_path)
    text = (tmp_path / MARKER).read_text()
    for flipped in flips(text):
        (tmp_path / MARKER).write_text(flipped)
        with pytest.raises(RootError) as refused:
            open_root(uri, create=True)
        assert "statelake doctor --repair" in str(refused.value), flipped
    (tmp_path / MARKER).write_text(text)
    assert open_root(uri, create=True)


def test_a_marker_without_its_digest_is_refused_from_format_6_on(tmp_path: Path) -> None:
    for number in (6, FORMAT_VERSION):
        with pytest.raises(RootError, match="was altered"):
            open_root(mark(tmp_path, json.dumps({"root_id": "x", "format": str(number)})), create=True)


def test_a_marker_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = normal_uri(tmp_path)
    before = open_root(uri, create=True)

    def crash(*_: object) -> None:
        raise OSError("out of power")

    with monkeypatch.context() as patch:
        patch.setattr("state_engine.storage.stores.durability.os.fsync", crash)
        with pytest.raises(OSError, match="out of power"):
            write_marker(uri, {"root_id": "other", "format": "6"})
    assert open_root(uri, create=False) == before


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
