"""Timers that are looked at by column: the same as in a plain dict, whatever files and row groups they lie in."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_engine.core.keys.canonical import key_hash
from state_engine.core.keys.key_groups import KeyGroupRange
from state_engine.core.state.state_table import PUT, Change, KeyedEntries
from state_engine.core.time.timers import EVENT, PROCESSING, TimersDescriptor
from state_engine.core.types.timestamps import MIN_TIMESTAMP
from state_engine.storage.layout import state_column
from state_engine.storage.state.changelog import StateFiles
from state_engine.storage.state.listed_files import AllKeys, KeyGroups, KeyHashes, ListedFile
from state_engine.storage.state.located_files import StateFile
from state_engine.storage.state.stored_timers import StoredTimers
from state_engine.storage.stores import files as storage_files
from state_engine.storage.stores.parquet_reading import OpenParquet
from tests.storage.test_base import GROUPS, base, one_hash_a_number
from tests.storage.test_changelog import KEY, KEYS, VALUE, Log

TIMERS = TimersDescriptor()
Model = dict[Any, dict[tuple[int, str], bool]]

TIMES = st.tuples(st.integers(0, 12), st.sampled_from([EVENT, PROCESSING]))
BATCHES = st.lists(
    st.dictionaries(KEYS, st.dictionaries(TIMES, st.just(True), max_size=3), max_size=5),
    min_size=1,
    max_size=5,
)
"""Per batch, the timers that some keys have from then on."""


class Site:
    """Timers of keys, in files and in a dict; row groups hold two rows."""

    def __init__(self, directory: Path, hash_of: Any = key_hash) -> None:
        self._directory = directory
        self.log = Log(directory, hash_of)
        self.model: Model = {}
        self.files: list[StateFile] = []
        self._bases = 0

    def write(self, timers: Model) -> None:
        changes = []
        for key, of_key in timers.items():
            table = KeyedEntries(TIMERS, {key: dict(self.model[key])} if key in self.model else {})
            table.entries[key] = of_key
            if not of_key:
                del table.entries[key]
            changes += list(table.changes())
            self.model.pop(key, None)
            if of_key:
                self.model[key] = dict(of_key)
        values = [Change(key, PUT, [1]) for key in timers]
        with mock.patch("tests.storage.test_changelog.write_parquet", _in_little_row_groups):
            written = self.log.write([(TIMERS, changes), (VALUE, values)])
        if written is not None:
            listed = replace(self.log.files[-1], max_parallelism=GROUPS)
            self.files.append(StateFile(listed, 0, GROUPS - 1, len(self.log.files)))

    def compact(self, groups: KeyGroups, *, counts: tuple[KeyGroupRange, ...]) -> None:
        """A base of some key groups; of the files before it, the others count."""
        self._bases += 1
        at = self._directory / f"base{self._bases}"
        with mock.patch("state_engine.storage.state.base.write_parquet", _in_little_row_groups):
            written = base(at, [f.listed for f in self.files], TIMERS, VALUE, groups=groups)
        bases = [
            StateFile(
                ListedFile(f"file://{at}/{f.path}", f.rows), f.key_group_min or 0, f.key_group_max or 0, 0
            )
            for f in written
        ]
        left = KeyGroups(GROUPS, counts)
        before = [replace(f, listed=replace(f.listed, counts=left)) for f in self.files]
        self.files = [*bases, *before]

    def stored(self, own: Any = AllKeys()) -> StoredTimers:  # noqa: B008
        return StoredTimers(self.files, own, KEY.storage, GROUPS)


def _in_little_row_groups(table: Any, uri: str, **_: Any) -> Any:
    return storage_files.write_parquet(table, uri, row_group=2)


def timers_in(table: Any) -> set[tuple[Any, int, str]]:
    if table is None:
        return set()
    keys = KEY.decode_struct(table["key"].combine_chunks())
    of_each = table[state_column(TIMERS.stored_as)].to_pylist()
    return {(key, t["key"]["time"], t["key"]["domain"]) for key, t in zip(keys, of_each, strict=True)}


@settings(max_examples=80)
@given(
    history=BATCHES,
    cut=st.integers(0, 5),
    middle=st.integers(0, GROUPS - 2),
    until=st.dictionaries(st.sampled_from([EVENT, PROCESSING]), st.integers(0, 12)),
    touched=st.sets(KEYS, max_size=3),
    since=st.integers(0, 6),
    hash_of=st.sampled_from([key_hash, one_hash_a_number]),
)
def test_what_is_due_and_what_is_first_are_what_a_dict_holds(
    history: list[Model],
    cut: int,
    middle: int,
    until: dict[str, int],
    touched: set[Any],
    since: int,
    hash_of: Any,
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        site = Site(Path(directory), hash_of)
        for number, timers in enumerate(history):
            if number == cut and site.files:
                lower, upper = KeyGroupRange(0, middle), KeyGroupRange(middle + 1, GROUPS - 1)
                site.compact(KeyGroups(GROUPS, (lower,)), counts=(upper,))
            site.write(timers)
        window = {domain: (since, time) for domain, time in until.items()}
        assert timers_in(site.stored().within(window)) == {
            (key, time, domain)
            for key, of_key in site.model.items()
            for time, domain in of_key
            if domain in until and since <= time <= until[domain]
        }
        hashes = {hash_of(key) for key in touched}
        without = KeyHashes(np.array(sorted(hashes), np.int64))
        for domain in (EVENT, PROCESSING):
            left = {
                time
                for key, of_key in site.model.items()
                for time, one in of_key
                if one == domain and hash_of(key) not in hashes and time >= since
            }
            assert site.stored().first(domain, since, without) == min(left, default=None)


def test_only_own_keys_count(tmp_path: Path) -> None:
    site = Site(tmp_path, one_hash_a_number)
    site.write({(n, "a"): {(n, EVENT): True} for n in range(4)})
    own = KeyGroups(GROUPS, (KeyGroupRange(2, 3),))
    assert timers_in(site.stored(own).within({EVENT: (0, 2)})) == {((2, "a"), 2, EVENT)}
    assert site.stored(own).first(EVENT, 0, KeyHashes(np.array([], np.int64))) == 2


# -- what is read ------------------------------------------------------------------------------------------------------


class Reads:
    """Counts the rows that are read of the timers' columns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows, original = 0, OpenParquet.read_row_groups

        def watched(file: OpenParquet, numbers: Any, columns: Any = None) -> Any:
            self.rows += sum(map(file.rows_of, numbers))
            return original(file, numbers, columns)

        monkeypatch.setattr(OpenParquet, "read_row_groups", watched)


@pytest.fixture
def thousands(tmp_path: Path) -> Site:
    """Ten thousand keys with a timer each, whose times lie otherwise than their hashes."""
    site = Site(tmp_path)
    with mock.patch(f"{__name__}._in_little_row_groups", _in_row_groups_of_a_hundred):
        site.write({(n, "a"): {(1000 + n, EVENT): True} for n in range(10_000)})
    return site


def _in_row_groups_of_a_hundred(table: Any, uri: str) -> Any:
    return storage_files.write_parquet(table, uri, row_group=100)


def test_timers_that_wait_are_not_read(thousands: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, stored = Reads(monkeypatch), thousands.stored()
    assert stored.within({EVENT: (0, 999), PROCESSING: (0, 10**9)}) is None
    assert reads.rows == 0
    assert stored.first(PROCESSING, MIN_TIMESTAMP, KeyHashes(np.array([], np.int64))) is None
    assert reads.rows == 0


def test_of_timers_that_are_due_their_row_groups_are_read(
    thousands: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, stored = Reads(monkeypatch), thousands.stored()
    due = timers_in(stored.within({EVENT: (0, 1004)}))
    assert due == {((n, "a"), 1000 + n, EVENT) for n in range(5)}
    # of 20,000 rows those of five row groups: for times, for hashes, and for the keys that are left; and of some that
    # begin in one key group and end in the next, because the hashes between are those of both
    assert reads.rows <= 6 * 5 * 100
    reads.rows = 0
    touched = KeyHashes(np.array([key_hash(key) for key, _, _ in due], np.int64))
    assert stored.first(EVENT, 1000, touched) == 1005
    assert reads.rows <= 6 * 5 * 100


def test_files_without_statistics_are_read_as_a_whole(
    thousands: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OpenParquet, "limits", lambda file, column: [None] * file.row_groups)
    monkeypatch.setattr(OpenParquet, "is_null", lambda file, column, number: False)
    stored = thousands.stored()
    assert timers_in(stored.within({EVENT: (0, 1001)})) == {
        ((0, "a"), 1000, EVENT),
        ((1, "a"), 1001, EVENT),
    }
    assert stored.first(EVENT, 1002, KeyHashes(np.array([], np.int64))) == 1002
    assert stored.first(PROCESSING, 0, KeyHashes(np.array([], np.int64))) is None


def test_timers_that_were_moved_hide_the_first_one(tmp_path: Path) -> None:
    """Every key's timer is moved behind that of the last key, which is left where it is."""
    site = Site(tmp_path)
    site.write({(n, "a"): {(n, EVENT): True} for n in range(300)})
    site.write({(n, "a"): {(1000 + n, EVENT): True} for n in range(299)})
    nothing = KeyHashes(np.array([], np.int64))
    assert site.stored().first(EVENT, 0, nothing) == 299
    assert timers_in(site.stored().within({EVENT: (0, 298)})) == set()
    assert site.stored().first(EVENT, 0, KeyHashes(np.array([key_hash((299, "a"))], np.int64))) == 1000


def test_of_changes_that_are_given_what_is_left_of_the_window_is_due(tmp_path: Path) -> None:
    """As ``within`` finds it in files: a timer that a later change took away is not due, one outside of it neither."""
    site = Site(tmp_path)
    site.write({(n, "a"): {(n, EVENT): True, (n, PROCESSING): True} for n in range(6)})
    site.write({(2, "a"): {}, (3, "a"): {(9, EVENT): True}})
    window = {EVENT: (1, 4)}
    changes = StateFiles([f.listed for f in site.files], AllKeys(), KEY).table(TIMERS)
    assert changes is not None
    due = timers_in(site.stored().among(changes, window))
    assert due == {((1, "a"), 1, EVENT), ((4, "a"), 4, EVENT)}
    assert due == timers_in(site.stored().within(window))
    assert site.stored().among(changes, {EVENT: (100, 200)}) is None
