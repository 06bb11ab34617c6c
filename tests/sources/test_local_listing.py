"""Looks at a local directory: nothing is overlooked. And versions of tables, of which the newest are kept."""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from state_engine import FileSource
from state_engine.core.errors import SourceError
from state_engine.sources.delta_table import kept_newest
from state_engine.sources.listing import Looks
from state_engine.sources.local_listing import InputFile

NO_SPARK: Any = None


def files(directory: Path, looks: Looks) -> list[InputFile]:
    return looks.files(f"file://{directory}", "*", ())


def look(directory: Path, looks: Looks, consumed: Sequence[str] = ()) -> dict[str, int]:
    """The sizes of files that a look finds."""
    start = f"file://{directory}/"
    listed = looks.files(f"file://{directory}", "*", {start + name for name in consumed})
    return {one.uri.removeprefix(start): one.size for one in listed}


def put(file: Path, size: int = 1) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"x" * size)


def test_a_file_that_another_runner_consumed_after_it_grew(tmp_path: Path) -> None:
    source = FileSource(str(tmp_path), schema="text string", format="csv").for_run()
    put(tmp_path / "grows")
    source.plan(NO_SPARK, [])
    put(tmp_path / "grows", 5)
    consumed = source.for_run().consumed(NO_SPARK, "all")
    assert source.plan(NO_SPARK, consumed) is None
    put(tmp_path / "grows", 6)
    with pytest.raises(SourceError, match="after it was consumed"):
        source.plan(NO_SPARK, consumed)


def test_a_file_that_vanishes_while_it_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "a")
    put(tmp_path / "b")
    scandir = os.scandir

    class Listed:
        """A listing, between which and the look at its files one of them goes."""

        def __init__(self, path: str) -> None:
            self.entries = list(scandir(path))
            (tmp_path / "b").unlink()

        def __enter__(self) -> list[os.DirEntry[str]]:
            return self.entries

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(os, "scandir", Listed)
    assert look(tmp_path, Looks()) == {"a": 1}


def test_what_links_lead_to_may_change_without_their_directory(tmp_path: Path) -> None:
    feed, outside = tmp_path / "feed", tmp_path / "outside"
    put(outside / "1")
    put(feed / "file")
    (feed / "later").symlink_to(outside / "2")
    (feed / "linked").symlink_to(outside)
    run = Looks()
    assert look(feed, run) == {"file": 1, "linked/1": 1}
    put(outside / "2")
    assert look(feed, run) == {"file": 1, "later": 1, "linked/1": 1}  # the file is there under two names


def test_a_directory_behind_a_link_that_leads_elsewhere(tmp_path: Path) -> None:
    feed, before, after = tmp_path / "feed", tmp_path / "before", tmp_path / "after"
    put(before / "below/1")
    feed.mkdir()
    (feed / "linked").symlink_to(before)
    run = Looks()
    assert [one.real for one in files(feed, run)] == [f"{before}/below/1"]
    before.rename(after)
    (feed / "linked").unlink()
    (feed / "linked").symlink_to(after)
    assert [one.real for one in files(feed, run)] == [f"{after}/below/1"]


def test_what_waits_is_what_the_plan_at_that_position_saw(tmp_path: Path) -> None:
    start = f"file://{tmp_path}"
    consumed, others, run = {f"{start}/a": 1}, {f"{start}/b": 1}, Looks()
    put(tmp_path / "a")
    before = run.files(start, "*", consumed)
    put(tmp_path / "new")
    assert run.again(start, "*", consumed) is before
    assert len(run.again(start, "*", consumed)) == 2  # once only
    before = run.files(start, "*", consumed)
    put(tmp_path / "newer")
    assert len(run.again(start, "*", others)) == 3  # another position, later


def test_the_newest_values_are_kept() -> None:
    kept: OrderedDict[int, str] = OrderedDict()
    made: list[int] = []

    def value(key: int) -> str:
        def make() -> str:
            made.append(key)
            return str(key)

        return kept_newest(kept, key, make, most=2)

    assert [value(key) for key in (1, 2, 2, 3, 1)] == ["1", "2", "2", "3", "1"]
    assert made == [1, 2, 3, 1]
    assert list(kept) == [3, 1]


def test_threads_may_ask_at_once() -> None:
    """One lets go of what another one has just made."""
    kept: OrderedDict[int, int] = OrderedDict()

    def ask(first: int) -> bool:
        return all(kept_newest(kept, n, partial(int, n), most=1) == n for n in range(first, first + 4000))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            assert all(threads.map(ask, range(1, 40_000, 10_000)))
    finally:
        sys.setswitchinterval(before)
