"""Looks at a local directory within one run: what did not change is not read again, and nothing is overlooked."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_engine import FileSource
from state_engine.core.errors import SourceError
from state_engine.sources import file
from state_engine.sources.changes.change_format import DebeziumFormat
from state_engine.sources.changes.decoded_source import DecodedSource
from state_engine.sources.delta_table import kept_newest
from state_engine.sources.listing import Looks
from state_engine.sources.local_listing import InputFile, Memory

NO_SPARK: Any = None
TICK_S = 0.02
"""Longer than the time in which a kernel gives two changes the same time."""


def looks() -> Looks:
    """Those of a run; directories settle within a tick, so that tests need not wait for seconds."""
    return Looks(Memory(int(TICK_S * 1e9) // 2))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each directory was read, by its name."""
    counts: Counter[str] = Counter()
    scandir = os.scandir

    def counting(path: str) -> Iterator[os.DirEntry[str]]:
        counts[Path(path).name] += 1
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counting)
    return counts


def files(directory: Path, looks: Looks) -> list[InputFile]:
    """A look of a run, after what was done before has settled."""
    time.sleep(TICK_S)
    return looks.files(f"file://{directory}", "*", ())


def look(directory: Path, looks: Looks, consumed: Sequence[str] = ()) -> dict[str, int]:
    """The sizes of files that a look finds."""
    time.sleep(TICK_S)
    start = f"file://{directory}/"
    listed = looks.files(f"file://{directory}", "*", {start + name for name in consumed})
    return {one.uri.removeprefix(start): one.size for one in listed}


def put(file: Path, size: int = 1) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"x" * size)


def test_a_directory_that_did_not_change_is_read_once(tmp_path: Path, read: Counter[str]) -> None:
    feed = tmp_path / "feed"
    for name in ("a/1", "a/2", "b/1"):
        put(feed / name)
    run = looks()
    assert look(feed, run) == look(feed, run) == {"a/1": 1, "a/2": 1, "b/1": 1}
    assert read == {"feed": 1, "a": 1, "b": 1}
    put(feed / "b/2")
    put(feed / "c/1")
    assert look(feed, run) == {"a/1": 1, "a/2": 1, "b/1": 1, "b/2": 1, "c/1": 1}
    assert read == {"feed": 2, "a": 1, "b": 2, "c": 1}
    look(feed, looks())
    assert read == {"feed": 3, "a": 2, "b": 3, "c": 2}  # every run begins with a whole look


def test_a_directory_that_may_change_without_another_time_is_read_again(
    tmp_path: Path, read: Counter[str]
) -> None:
    put(tmp_path / "a/1")
    run = Looks(Memory(3_600 * 10**9))
    assert look(tmp_path, run) == look(tmp_path, run)
    assert read["a"] == 2


def test_sizes_of_files_that_are_not_consumed_are_looked_at_again(tmp_path: Path) -> None:
    for name in ("consumed", "grows", "new"):
        put(tmp_path / name)
    run = looks()
    look(tmp_path, run)
    for name in ("consumed", "grows"):
        put(tmp_path / name, 5)
    assert look(tmp_path, run, ["consumed"]) == {"consumed": 1, "grows": 5, "new": 1}
    assert look(tmp_path, run, ["consumed", "grows"])["grows"] == 5  # as it was when it was consumed
    next_run = look(tmp_path, looks(), ["consumed"])
    assert next_run == {"consumed": 5, "grows": 5, "new": 1}


def test_a_file_that_another_runner_consumed_after_it_grew(tmp_path: Path) -> None:
    source = FileSource(str(tmp_path), schema="text string", format="csv").for_run()
    put(tmp_path / "grows")
    time.sleep(TICK_S)
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
    stat = os.stat

    def gone(path: Any, **options: Any) -> os.stat_result:
        if path == str(tmp_path / "b"):
            raise FileNotFoundError(path)
        return stat(path, **options)

    run = looks()
    assert look(tmp_path, run) == {"a": 1, "b": 1}
    monkeypatch.setattr(os, "stat", gone)
    assert look(tmp_path, run) == {"a": 1}


def test_what_links_lead_to_may_change_without_their_directory(tmp_path: Path) -> None:
    feed, outside = tmp_path / "feed", tmp_path / "outside"
    put(outside / "1")
    put(feed / "file")
    (feed / "later").symlink_to(outside / "2")
    (feed / "linked").symlink_to(outside)
    run = looks()
    assert look(feed, run) == {"file": 1, "linked/1": 1}
    put(outside / "2")
    assert look(feed, run) == {"file": 1, "later": 1, "linked/1": 1}  # the file is there under two names


def test_a_directory_behind_a_link_that_leads_elsewhere(tmp_path: Path) -> None:
    feed, before, after = tmp_path / "feed", tmp_path / "before", tmp_path / "after"
    put(before / "below/1")
    feed.mkdir()
    (feed / "linked").symlink_to(before)
    run = looks()
    assert [one.real for one in files(feed, run)] == [f"{before}/below/1"]
    before.rename(after)
    (feed / "linked").unlink()
    (feed / "linked").symlink_to(after)
    assert [one.real for one in files(feed, run)] == [f"{after}/below/1"]


def test_what_waits_is_what_the_plan_at_that_position_saw(tmp_path: Path) -> None:
    start = f"file://{tmp_path}"
    consumed, others, run = {f"{start}/a": 1}, {f"{start}/b": 1}, looks()
    put(tmp_path / "a")
    before = run.files(start, "*", consumed)
    put(tmp_path / "new")
    assert run.again(start, "*", consumed) is before
    assert len(run.again(start, "*", consumed)) == 2  # once only
    before = run.files(start, "*", consumed)
    put(tmp_path / "newer")
    assert len(run.again(start, "*", others)) == 3  # another position, later


def test_each_run_of_a_source_begins_with_a_whole_look(
    tmp_path: Path, read: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the source is wrapped; in memory of the run, so runs in two threads share nothing."""
    monkeypatch.setattr(file, "Looks", looks)
    put(tmp_path / "feed/a")
    source = FileSource(str(tmp_path / "feed"), schema="text string", format="csv")
    for each in (source, DecodedSource("rows", source, DebeziumFormat())):
        read.clear()
        time.sleep(TICK_S)
        first, second = each.for_run(), each.for_run()
        assert [first.plan(NO_SPARK, []) is None for _ in range(3)] == [False] * 3
        assert read == {"feed": 1}
        second.plan(NO_SPARK, [])
        assert read == {"feed": 2}


NAMES = st.sampled_from(["a", "b", "d/a", "d/e/a", "d/e/b", "f/a", ".h/a", "f/_b"])
TREES = st.sampled_from(["d", "d/e", "f", "a"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), NAMES, NAMES),
        st.tuples(st.just("replace"), NAMES, NAMES),
        st.tuples(st.just("remove"), NAMES, NAMES),
        st.tuples(st.just("move"), TREES, TREES),
        st.tuples(st.just("link"), TREES, NAMES),
    ),
    min_size=3,
    max_size=8,
)


def step(directory: Path, what: str, name: str, other: str) -> None:
    """One change, where the file system allows it."""
    here, there = directory / name, directory / other
    does: dict[str, Callable[[], object]] = {
        "put": lambda: put(here, 3),
        "replace": lambda: here.replace(there),
        "remove": here.unlink,
        "move": lambda: here.rename(there),
        "link": lambda: there.symlink_to(here),
    }
    try:
        does[what]()
    except OSError:
        return


@given(steps=STEPS)
@settings(max_examples=25, deadline=None)
def test_a_look_within_a_run_finds_what_a_whole_look_finds(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, str]]
) -> None:
    feed = tmp_path_factory.mktemp("feed")
    for name in ("a", "d/a", "d/e/b", "f/a"):
        put(feed / name)
    run = looks()
    files(feed, run)
    for one in steps:
        step(feed, *one)
        assert files(feed, run) == files(feed, looks())


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
