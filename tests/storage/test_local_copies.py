"""Local copies of files of bases: they give what the files hold, and what is wrong with them costs time and no rows."""

from __future__ import annotations

import errno
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_engine.core.errors import DamagedFileError, MissingFilesError
from state_engine.core.keys.canonical import key_hash
from state_engine.core.keys.key_groups import KeyGroupRange
from state_engine.core.state.state_table import KeyedEntries
from state_engine.core.time.timers import EVENT, PROCESSING, TimersDescriptor
from state_engine.storage.layout import JobLayout
from state_engine.storage.state import copy_directory, local_copies
from state_engine.storage.state.changelog import TouchedState
from state_engine.storage.state.copy_directory import LocalCopies
from state_engine.storage.state.listed_files import AllKeys, KeyGroups, KeyHashes, ListedFile
from state_engine.storage.state.local_copies import OperatorCopies
from state_engine.storage.state.located_files import StateFile
from state_engine.storage.state.stored_timers import StoredTimers
from state_engine.storage.stores.parquet_reading import OpenParquet
from tests.storage.test_base import ALL, GROUPS, base, one_hash_a_number
from tests.storage.test_changelog import KEY, KEYS, STATES, Log, apply, batches
from tests.storage.test_stored_timers import timers_in
from tests.support.forced_copies import forced

LAYOUT = JobLayout("file:///root", "job")
TIMERS = TimersDescriptor()
DOMAINS = (EVENT, PROCESSING)
OF_KEY = st.dictionaries(st.tuples(st.integers(0, 9), st.sampled_from(DOMAINS)), st.just(True), max_size=3)
HISTORIES = st.tuples(batches(), st.lists(st.dictionaries(KEYS, OF_KEY, max_size=4), min_size=4, max_size=4))
"""Per batch the new entries of keys, and the timers that they have from then on."""


def in_one_group(key: Any) -> int:
    return GROUPS * int(key[0])


class Site:
    """A base of all that some batches wrote, and the changes after it."""

    def __init__(self, directory: Path, history: tuple[Any, Any], cut: int, hash_of: Any = key_hash) -> None:
        self.directory, self.hash_of, self.log = directory, hash_of, Log(directory, hash_of)
        entries: dict[str, dict[Any, Any]] = {name: {} for name in (*STATES, "timers")}
        files: list[StateFile] = []
        for number, (batch, timers) in enumerate(zip(*history, strict=False)):
            if number == cut:
                files = self.based(files)
            changes = []
            for name, descriptor in (*STATES.items(), ("timers", TIMERS)):
                table = KeyedEntries(descriptor, {k: type(v)(v) for k, v in entries[name].items()})
                for key, new in (timers if name == "timers" else batch[name]).items():
                    if name == "timers":
                        table.entries[key] = dict(new)
                        if not new:
                            del table.entries[key]
                    else:
                        apply(table, key, new)
                changes.append((descriptor, list(table.changes())))
                entries[name] = dict(table.entries)
            if self.log.write(changes) is not None:
                listed = replace(self.log.files[-1], max_parallelism=GROUPS)
                files.append(StateFile(listed, 0, GROUPS - 1, len(self.log.files)))
        self.files = files

    def based(self, files: Sequence[StateFile], *, groups: KeyGroups = ALL) -> list[StateFile]:
        at = self.directory / f"base-{len(files)}"
        written = base(at, [f.listed for f in files], *STATES.values(), TIMERS, groups=groups)
        return [
            StateFile(
                ListedFile(f"file://{at}/{f.path}", f.rows, None, f.bytes, f.footer, "checkpoint 7"),
                f.key_group_min or 0, f.key_group_max or 0, 0,
            )
            for f in written
        ]  # fmt: skip

    @property
    def keys(self) -> set[Any]:
        return {(n, "a") for n in range(KEPT)}

    @property
    def bases(self) -> list[Path]:
        return [Path(f.listed.uri.removeprefix("file://")) for f in self.files if f.is_base]

    def attached(self, copies: LocalCopies | None) -> list[StateFile]:
        if copies is None:
            return self.files
        return OperatorCopies(copies, LAYOUT, "op", self.files, GROUPS).attached(self.files)

    def load(self, keys: set[Any], copies: LocalCopies | None) -> dict[str, dict[Any, Any]]:
        hashes = np.array(sorted(self.hash_of(k) for k in keys), np.int64)
        groups = set(np.mod(hashes, GROUPS).tolist())
        files = [f.listed for f in self.attached(copies) if not f.is_base or f.key_group_min in groups]
        state = TouchedState(files, hashes, KEY)
        return {d.name: state.load(d) for d in (*STATES.values(), TIMERS)}

    def timers(self, copies: LocalCopies | None, own: Any = AllKeys()) -> StoredTimers:  # noqa: B008
        return StoredTimers(self.attached(copies), own, KEY.storage, GROUPS)


def plain(entries: dict[str, dict[Any, Any]]) -> dict[str, list[Any]]:
    """With the order of the entries of maps."""
    return {
        name: sorted(((k, list(v.items()) if isinstance(v, dict) else v) for k, v in of.items()), key=repr)
        for name, of in entries.items()
    }


def stored_in(copies: LocalCopies) -> list[Path]:
    return sorted(p for p in copies.place.rglob("*") if p.is_file())


@settings(max_examples=40)
@given(
    history=HISTORIES,
    cut=st.integers(1, 3),
    keys=st.sets(KEYS),
    window=st.dictionaries(st.sampled_from(DOMAINS), st.tuples(st.integers(0, 9), st.integers(0, 9))),
    since=st.integers(0, 9),
    own=st.integers(0, GROUPS - 1),
    hash_of=st.sampled_from([key_hash, one_hash_a_number, in_one_group]),
)
def test_state_and_timers_are_the_same_with_and_without_copies(
    history: Any, cut: int, keys: set[Any], window: Any, since: int, own: int, hash_of: Any
) -> None:
    """When copies are made, and when they are there."""
    with tempfile.TemporaryDirectory() as name, forced(Path(name) / "copies") as copies:
        site = Site(Path(name), history, cut, hash_of)
        without = KeyHashes(np.array([hash_of(key) for key in keys], np.int64))
        groups = KeyGroups(GROUPS, (KeyGroupRange(0, own),))
        for _ in range(2):
            assert plain(site.load(keys, copies)) == plain(site.load(keys, None))
            for counting in (AllKeys(), groups):
                of_files, of_copies = site.timers(None, counting), site.timers(copies, counting)
                assert timers_in(of_copies.within(window)) == timers_in(of_files.within(window))
                for domain in DOMAINS:
                    first = of_files.first(domain, since, without)
                    assert of_copies.first(domain, since, without) == first


@pytest.mark.parametrize("timers", [2, 40, 1000])
def test_the_first_timer_is_found_however_many_blocks_hold_timers_that_are_gone(
    tmp_path: Path, timers: int
) -> None:
    moved = {(n, "a"): {(n, EVENT): True} for n in range(timers)}
    later = {(n, "a"): {(5000 + n, EVENT): True} for n in range(timers - 1)}
    with forced(tmp_path / "copies") as copies:
        site = Site(tmp_path, ([{name: {} for name in STATES}] * 3, [moved, later, {}]), 1)
        nothing, last = (KeyHashes(np.array(h, np.int64)) for h in ([], [key_hash((timers - 1, "a"))]))
        assert site.timers(copies).first(EVENT, 0, nothing) == timers - 1
        assert site.timers(copies).first(EVENT, 0, last) == 5000
        assert site.timers(copies).first(PROCESSING, 0, nothing) is None
        assert stored_in(copies)


def test_each_timer_is_the_first_one_once_those_before_it_are_left_out(tmp_path: Path) -> None:
    """Also where a stretch of blocks ends, and the next one begins."""
    timers = {(n, "a"): {(n, EVENT): True} for n in range(60)}
    with forced(tmp_path / "copies") as copies:
        history = [timers, {(60, "a"): {(99, EVENT): True}}]
        site = Site(tmp_path, ([{name: {} for name in STATES}] * 2, history), 1, in_one_group)
        stored = site.timers(copies)
        for first in range(60):
            before = KeyHashes(np.array([in_one_group((n, "a")) for n in range(first)], np.int64))
            assert stored.first(EVENT, 0, before) == first
        assert stored_in(copies)


# -- one base with many keys, and changes after it ---------------------------------------------------------------

KEPT = 300
FEW = {(n, "a") for n in range(3)}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    values = {(n, "a"): [n] for n in range(KEPT)}
    timers = {(n, "a"): {(n, EVENT): True} for n in range(KEPT)}
    rest: dict[str, Any] = {"list": {}, "map": {}}
    return Site(tmp_path, ([{"value": values, **rest}, {"value": {(0, "a"): [-1]}, **rest}], [timers, {}]), 1)


@pytest.fixture
def copies(tmp_path: Path) -> Iterator[LocalCopies]:
    with forced(tmp_path / "copies") as there:
        yield there


def limited(copies: LocalCopies, **limits: int) -> LocalCopies:
    return replace(copies, limits=replace(copies.limits, **limits))


class Decoded:
    """Counts the Parquet files that are opened to be decoded."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.files, original = list[str](), OpenParquet.__init__

        def watched(file: OpenParquet, uri: str, *args: Any, **more: Any) -> None:
            self.files.append(uri)
            original(file, uri, *args, **more)

        patch.setattr(OpenParquet, "__init__", watched)

    def of_bases(self) -> int:
        bases, self.files = [uri for uri in self.files if "/base-" in uri], []
        return len(bases)


def test_a_file_is_decoded_once(site: Site, copies: LocalCopies, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded, expected = Decoded(monkeypatch), site.load(FEW, None)
    bases = len(site.bases)
    decoded.of_bases()
    assert site.load(FEW, copies) == expected
    touched = decoded.of_bases()
    assert 0 < touched <= bases
    assert len(stored_in(copies)) == touched
    assert site.load(FEW, copies) == expected
    assert timers_in(site.timers(copies).within({EVENT: (10, 12)})) == {
        ((n, "a"), n, EVENT) for n in (10, 11, 12)
    }
    assert decoded.of_bases() == bases - touched  # the others, for their timers
    assert site.timers(copies).first(EVENT, 200, KeyHashes(np.array([], np.int64))) == 200
    assert decoded.of_bases() == 0
    assert {path.stat().st_mode & 0o777 for path in stored_in(copies)} == {0o600}
    assert copies.place.stat().st_mode & 0o777 == 0o700


def test_a_base_that_is_read_the_first_time_gets_no_copies(site: Site, copies: LocalCopies) -> None:
    site.files = [f for f in site.files if f.is_base]
    site.load(FEW, copies)
    assert stored_in(copies) == []


def test_small_files_get_none_and_where_many_rows_are_wanted_the_file_is_read(
    site: Site, copies: LocalCopies
) -> None:
    site.load(FEW, limited(copies, least_rows=10_000))
    assert stored_in(copies) == []
    site.load(FEW, limited(copies, least_blocks=1000))
    assert stored_in(copies) == []


def test_what_is_too_large_to_be_in_memory_is_not_copied(site: Site, copies: LocalCopies) -> None:
    assert site.load(FEW, limited(copies, largest_bytes=100)) == site.load(FEW, None)
    assert stored_in(copies) == []


def test_without_size_there_are_none(site: Site, copies: LocalCopies) -> None:
    off = replace(copies, max_bytes=0)
    assert site.load(FEW, off) == site.load(FEW, None)
    assert not copies.place.exists()
    site.load(FEW, copies)
    assert stored_in(copies)
    assert site.load(FEW, off) == site.load(FEW, None)
    assert stored_in(copies) == []  # those that were there are gone


def test_copies_go_though_the_files_are_not_worth_any_more(site: Site, copies: LocalCopies) -> None:
    site.load(FEW, copies)
    site.load(FEW, limited(copies, least_rows=10_000))
    assert stored_in(copies) == []


# -- what is wrong with the file ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("of_timers", [False, True])
@pytest.mark.parametrize(
    ("change", "error"),
    [("gone", MissingFilesError), ("cut", DamagedFileError), ("flipped", DamagedFileError)],
)
def test_a_copy_hides_no_file_that_is_gone_or_was_changed(
    site: Site, copies: LocalCopies, change: str, error: type[Exception], of_timers: bool
) -> None:
    site.load(site.keys, copies)
    assert len(stored_in(copies)) == len(site.bases)
    for path in site.bases:
        content = path.read_bytes()
        if change == "gone":
            path.unlink()
        else:
            cut = change == "cut"
            path.write_bytes(content[:-9] if cut else content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    nothing = KeyHashes(np.array([], np.int64))
    with pytest.raises(error):
        site.timers(copies).first(EVENT, 0, nothing) if of_timers else site.load(site.keys, copies)


# -- what is wrong with copies -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["empty", "cut", "start", "end", "other"])
def test_a_damaged_copy_is_made_anew(site: Site, copies: LocalCopies, damage: str) -> None:
    expected, nothing = site.load(FEW, None), KeyHashes(np.array([], np.int64))
    due = timers_in(site.timers(None).within({EVENT: (0, 9)}))
    site.timers(copies).first(EVENT, 0, nothing)
    whole = {path: path.read_bytes() for path in stored_in(copies)}
    assert whole
    others = [*list(whole.values())[1:], next(iter(whole.values()))]
    for (path, content), other in zip(whole.items(), others, strict=True):
        path.write_bytes({
            "empty": b"", "cut": content[:-100], "start": _flipped(content, range(0, 200, 50)),
            "end": _flipped(content, [len(content) - 30]), "other": other,
        }[damage])  # fmt: skip
    assert timers_in(site.timers(copies).within({EVENT: (0, 9)})) == due
    assert site.timers(copies).first(EVENT, 3, nothing) == 3
    assert site.load(FEW, copies) == expected
    site.load(site.keys, copies)
    site.timers(copies).first(EVENT, 0, nothing)
    assert {path: path.read_bytes() for path in stored_in(copies)} == whole


def _flipped(content: bytes, places: Any) -> bytes:
    changed = bytearray(content)
    for at in places:
        changed[at] ^= 1
    return bytes(changed)


def test_copies_that_are_damaged_while_they_are_read_are_read_from_the_file(
    site: Site, copies: LocalCopies
) -> None:
    nothing = KeyHashes(np.array([], np.int64))
    site.timers(copies).first(EVENT, 0, nothing)
    timers = site.timers(copies)
    assert timers.first(EVENT, 10**9, nothing) is None  # their indexes are known
    for path in stored_in(copies):
        path.write_bytes(_flipped(path.read_bytes(), range(0, 2000, 50)))
    assert timers.first(EVENT, 100, nothing) == 100
    assert timers_in(timers.within({EVENT: (70, 71)})) == {
        ((70, "a"), 70, EVENT),
        ((71, "a"), 71, EVENT),
    }


def test_copies_that_go_while_they_are_read_are_read_from_the_file(site: Site, copies: LocalCopies) -> None:
    nothing = KeyHashes(np.array([], np.int64))
    site.timers(copies).first(EVENT, 0, nothing)
    timers = site.timers(copies)
    assert timers.first(EVENT, 10**9, nothing) is None
    copies.drop(LAYOUT)
    assert stored_in(copies) == []
    assert timers.first(EVENT, 100, nothing) == 100


# -- the directory -----------------------------------------------------------------------------------------------------


def test_a_full_disk_fails_nothing(site: Site, copies: LocalCopies, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def full(*_: Any, **__: Any) -> int:
        tried.append(1)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(local_copies, "write_blocks", full)
    assert site.load(site.keys, copies) == site.load(site.keys, None)
    assert len(tried) == 1  # one try, not one a file
    assert stored_in(copies) == []


def test_a_directory_that_others_may_write_to_is_not_used(
    site: Site, copies: LocalCopies, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = site.load(FEW, None)
    copies.place.mkdir(mode=0o700)
    theirs = copies.of_job(LAYOUT) / "theirs"
    theirs.parent.mkdir()
    theirs.touch()
    copies.place.chmod(0o777)
    assert site.load(FEW, copies) == expected
    assert stored_in(copies) == [theirs]
    copies.drop(LAYOUT)
    copies.place.chmod(0o700)
    with monkeypatch.context() as patch:
        patch.setattr(copy_directory.os, "geteuid", lambda: os.getuid() + 1)
        assert site.load(FEW, copies) == expected
    link = copies.place.with_name("link")
    link.symlink_to(copies.place)
    assert site.load(FEW, replace(copies, directory=str(link))) == expected
    assert stored_in(copies) == [theirs]
    assert len({r.getMessage() for r in caplog.records}) == 2
    assert "make it a directory of your own" in caplog.text


@pytest.mark.parametrize("directory", ["relative", "/proc/nothing/here", "/dev/null/here"])
def test_a_directory_that_cannot_be_made_fails_nothing(
    site: Site, copies: LocalCopies, directory: str
) -> None:
    assert site.load(FEW, replace(copies, directory=directory)) == site.load(FEW, None)


def test_copies_keep_to_their_size_and_those_that_are_unused_go_first(
    site: Site, copies: LocalCopies
) -> None:
    site.load(site.keys, copies)
    all_of_them = stored_in(copies)
    size = sum(p.stat().st_size for p in all_of_them)
    bounded = replace(copies, max_bytes=size // 2)
    copies.drop(LAYOUT)
    site.load(site.keys, bounded)
    few = stored_in(copies)
    assert 0 < len(few) < len(all_of_them)
    assert sum(p.stat().st_size for p in few) <= size * 0.6  # how large one will be is guessed
    # they are in use, and stay; when nobody used them for an hour, they make room
    other = JobLayout("file:///root", "other")
    assert _made_for(other, site, bounded) < len(all_of_them) - len(few)
    copies.drop(other)
    for number, path in enumerate(few):
        hours_ago = time.time() - 3600 * (2 if number else 3)
        os.utime(path, (hours_ago, hours_ago))
    assert _made_for(other, site, bounded) > 0
    assert few[0] not in stored_in(copies)
    assert sum(p.stat().st_size for p in stored_in(copies)) <= size * 0.6


def _made_for(layout: JobLayout, site: Site, copies: LocalCopies) -> int:
    """Has another job copy the same files; the number of its copies."""
    for file in OperatorCopies(copies, layout, "op", site.files, GROUPS).attached(site.files):
        if file.listed.copy is not None:
            file.listed.copy.is_there()
    return len(list(copies.of_job(layout).rglob("*.blocks")))


def test_copies_leave_room_on_the_disk(site: Site, copies: LocalCopies) -> None:
    assert site.load(FEW, limited(copies, left_free=2**60)) == site.load(FEW, None)
    assert stored_in(copies) == []


def test_use_is_noted(site: Site, copies: LocalCopies) -> None:
    site.load(FEW, copies)
    (path, *_) = stored_in(copies)
    os.utime(path, (1000, 1000))
    site.load(site.keys, copies)
    assert path.stat().st_mtime > time.time() - 600


def test_copies_of_files_that_the_path_does_not_list_go(site: Site, copies: LocalCopies) -> None:
    site.load(site.keys, copies)
    before = stored_in(copies)
    ended, running = (before[0].with_name(name) for name in (".x.blocks.1", ".x.blocks.2"))
    for path in (ended, running):
        path.touch()
    os.utime(ended, (1000, 1000))
    half = len(site.bases) // 2
    site.files = site.files[half:]
    site.attached(copies)
    assert len(stored_in(copies)) == len(before) - half + 1
    assert running in stored_in(copies)
    assert site.load(site.keys, copies) == site.load(site.keys, None)


def test_jobs_and_operators_have_copies_of_their_own(copies: LocalCopies) -> None:
    other = JobLayout("file:///root", "job2")
    places = {copies.of_operator(layout, uid) for layout in (LAYOUT, other) for uid in ("op", "op2")}
    assert len(places) == 4
    for place in places:
        place.mkdir(parents=True)
        (place / "1.blocks").touch()
    copies.drop(LAYOUT)
    assert {p.parent.parent for p in stored_in(copies)} == {copies.of_job(other)}


def _in_a_process(site: Site, directory: str, rounds: int) -> list[Any]:
    with forced(Path(directory)) as copies:
        seen: list[Any] = []
        for _ in range(rounds):
            seen.append(site.load(FEW, copies)["value"])
            seen.append(site.timers(copies).first(EVENT, 5, KeyHashes(np.array([], np.int64))))
            copies.drop(LAYOUT)
        return seen


def test_processes_that_make_and_delete_the_same_copies_are_not_in_each_others_way(
    site: Site, tmp_path: Path
) -> None:
    expected = [site.load(FEW, None)["value"], 5] * 4
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        seen = pool.starmap(_in_a_process, [(site, str(tmp_path / "shared"), 4)] * 2)
        pool.close()
        pool.join()
    assert seen == [expected, expected]
