"""The newest entries of keys, read from the last file back, are those of a fold of all files; and no more is read."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_engine.core.keys.canonical import key_hash
from state_engine.core.keys.entry_codes import entry_codes, key_codes
from state_engine.core.keys.key_groups import KeyGroupRange
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.state.change_folding import fold
from state_engine.core.state.descriptors import (
    MapStateDescriptor,
    SortedMapStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from state_engine.core.state.evolution import recorded_schema
from state_engine.core.state.state_table import CLEAR, DELETE, PUT, Change
from state_engine.storage.layout import state_column
from state_engine.storage.state import newest_entries
from state_engine.storage.state.base import BaseSpec, read_changes, write_base_files
from state_engine.storage.state.changelog_write import changelog_table, file_order, write_changes
from state_engine.storage.state.listed_files import AllKeys, KeyGroups, KeyHashes, ListedFile, open_state_file
from state_engine.storage.state.newest_entries import NewestEntries, NewestParts
from state_engine.storage.state.state_rows import parts_of
from state_engine.storage.stores.parquet_reading import OpenParquet

KEY = KeySchema(("k", "part"), (pa.float64(), pa.string()))
GROUPS = 8
ONE, OTHER = ValueStateDescriptor("one", int), ValueStateDescriptor("other", str)
MAPS = (MapStateDescriptor("counts", str, int), SortedMapStateDescriptor("hours", int, int))
KEYS = [(number, part) for number in (0.0, 1.5, float("inf"), None) for part in ("a", "b", None)]


FEW_KEYS = KEYS[1:5]


class Files:
    """Files of a path: changes, and bases of what they lead to."""

    def __init__(self, directory: str | Path, hash_of: Any = key_hash) -> None:
        self.uri, self.hash_of = f"file://{directory}", hash_of
        self.files: list[ListedFile] = []

    def hashes(self, keys: Sequence[Any]) -> Any:
        return np.array([self.hash_of(key) for key in keys], np.int64)

    def columns(self, keys: Sequence[Any]) -> list[pa.Array]:
        return [
            pa.array([key[at] for key in keys], field.type, from_pandas=False)
            for at, field in enumerate(KEY.storage)
        ]

    def change(self, changes: dict[StateDescriptor, dict[Any, Any]]) -> None:
        self.write(
            {
                d: [Change(k, DELETE if v is None else PUT, v) for k, v in of_state.items()]
                for d, of_state in changes.items()
            }
        )

    def write(self, changes: Mapping[Any, list[Change]]) -> None:
        keys = list({change.key: None for of_state in changes.values() for change in of_state})
        table = changelog_table(
            list(changes.items()),
            key_type=KEY.storage,
            index_of={key: at for at, key in enumerate(keys)},
            keys=pa.StructArray.from_arrays(self.columns(keys), fields=list(KEY.storage)),
            hashes=self.hashes(keys),
            max_parallelism=GROUPS,
        )
        if table is not None:
            file = write_changes(table, self.uri, write_id=f"w{len(self.files)}", subtask=0, attempt=0)
            uri = f"{self.uri}/{file.path}"
            self.files.append(ListedFile.recorded(uri, file, of="a test", max_parallelism=GROUPS))

    def compact(self) -> None:
        spec, every = self.base_spec(), KeyGroups(GROUPS, (KeyGroupRange(0, GROUPS - 1),))
        files, _ = write_base_files(spec, self.files, every, task=0, attempt=0)
        self.files = [
            ListedFile.recorded(f"{self.uri}/{f.path}", f, of="a test", max_parallelism=GROUPS) for f in files
        ]

    def base_spec(self) -> BaseSpec:
        states = tuple(map(recorded_schema, (ONE, OTHER, *MAPS)))
        return BaseSpec(KEY.storage, states, GROUPS, 0, uri=self.uri, base_id=f"b{len(self.files)}")

    def newest(self, keys: Sequence[Any]) -> NewestEntries:
        hashes = self.hashes(keys)
        return NewestEntries(NewestParts(self.files, hashes), hashes, self.columns(keys))


def values_of(newest: NewestEntries, descriptor: StateDescriptor, keys: Sequence[Any]) -> dict[Any, Any]:
    entries = newest.of(descriptor)
    if entries is None:
        return {}
    values = entries.in_order(state_column(descriptor.stored_as))
    assert len(values) == len(keys)
    return {k: v for k, v in zip(keys, values.to_pylist(), strict=True) if v is not None}


CHANGES = st.fixed_dictionaries(
    {
        ONE: st.dictionaries(st.sampled_from(KEYS), st.none() | st.integers(0, 9), max_size=6),
        OTHER: st.dictionaries(st.sampled_from(KEYS), st.none() | st.sampled_from("xyz"), max_size=6),
    }
)


@pytest.mark.parametrize("hash_of", [key_hash, lambda key: key_hash(key) % 3], ids=["apart", "few hashes"])
@settings(max_examples=60, deadline=None)
@given(st.lists(CHANGES | st.just("compact"), max_size=6), st.lists(st.sampled_from(KEYS), unique=True))
def test_they_are_those_that_the_changes_lead_to(hash_of: Any, steps: list[Any], keys: list[Any]) -> None:
    folded: dict[str, dict[Any, Any]] = {"one": {}, "other": {}}
    with tempfile.TemporaryDirectory() as directory:
        path = Files(directory, hash_of)
        for step in steps:
            if step == "compact":
                path.compact()
                continue
            path.change(step)
            for descriptor, of_state in step.items():
                fold(
                    "value",
                    folded[descriptor.name],
                    [(k, DELETE if v is None else PUT, v) for k, v in of_state.items()],
                )
        newest = path.newest(keys)
        for descriptor in (ONE, OTHER):
            wanted = {k: v for k, v in folded[descriptor.name].items() if k in keys}
            assert values_of(newest, descriptor, keys) == wanted


def map_changes(map_keys: Sequence[Any]) -> st.SearchStrategy[list[Change]]:
    """Net changes of a map: of a key at most one clear, and then each entry once."""
    entries = st.dictionaries(st.sampled_from(map_keys), st.none() | st.integers(0, 9), max_size=3)
    clears = st.sampled_from([False, False, True])
    of_keys = st.dictionaries(st.sampled_from(FEW_KEYS), st.tuples(clears, entries), max_size=4)

    def made(given: dict[Any, tuple[bool, dict[Any, Any]]]) -> list[Change]:
        return [
            change
            for key, (clears, puts) in given.items()
            for change in (
                *([Change(key, CLEAR, None)] if clears else []),
                *(Change(key, DELETE if v is None else PUT, (k, v)) for k, v in puts.items()),
            )
        ]

    return of_keys.map(made)


MAP_STEPS = st.fixed_dictionaries({MAPS[0]: map_changes("xyz"), MAPS[1]: map_changes((-1, 0, 7))})


@pytest.mark.parametrize("hash_of", [key_hash, lambda key: key_hash(key) % 3], ids=["apart", "few hashes"])
@pytest.mark.parametrize("little_bytes", [0, 2**20], ids=["each by itself", "together"])
@settings(max_examples=60, deadline=None)
@given(
    st.lists(MAP_STEPS | st.just("compact"), max_size=6),
    st.lists(st.sampled_from(FEW_KEYS), unique=True, min_size=1),
)
def test_entries_of_maps_are_those_that_the_changes_lead_to(
    little_bytes: int, hash_of: Any, steps: list[Any], keys: list[Any]
) -> None:
    folded: dict[str, dict[Any, Any]] = {descriptor.name: {} for descriptor in MAPS}
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(newest_entries, "parts_of", partial(parts_of, little_bytes=little_bytes))
        path = Files(directory, hash_of)
        for step in steps:
            if step == "compact":
                path.compact()
                continue
            path.write(step)
            for descriptor, changes in step.items():
                fold("map", folded[descriptor.name], [(c.key, c.op, c.value) for c in changes])
        newest = path.newest(keys)
        for descriptor in MAPS:
            of_map, entries = newest.of_map(descriptor), dict[Any, Any]()
            for number, entry in () if of_map is None else zip(*map(list, of_map), strict=True):
                if number >= 0:
                    entries.setdefault(keys[number], []).append(
                        (entry["key"].as_py(), entry["value"].as_py())
                    )
            in_order = sorted if isinstance(descriptor, SortedMapStateDescriptor) else list
            wanted = {k: list(v.items()) for k, v in folded[descriptor.name].items() if k in keys and v}
            assert {k: in_order(v) for k, v in entries.items()} == {k: in_order(v) for k, v in wanted.items()}


def test_keys_that_are_not_numbers_are_one_key(tmp_path: Path) -> None:
    nan, path = float("nan"), Files(tmp_path, lambda _: 7)
    path.change({ONE: {(nan, "a"): 1, (0.0, "a"): 2}})
    entries = path.newest([(float("nan"), "a"), (-0.0, "a")]).of(ONE)
    assert entries is not None
    assert entries.in_order("v_one").to_pylist() == [1, 2]


def test_files_before_the_one_that_has_all_keys_are_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newest_entries, "parts_of", partial(parts_of, little_bytes=0))
    path = Files(tmp_path)
    path.change({ONE: dict.fromkeys(KEYS, 1), OTHER: dict.fromkeys(KEYS, "x")})
    path.change({ONE: dict.fromkeys(KEYS, 2)})
    older = Path(path.files[0].uri.removeprefix("file://"))
    content = older.read_bytes()
    older.unlink()
    newest = path.newest(KEYS)
    assert values_of(newest, ONE, KEYS) == dict.fromkeys(KEYS, 2)
    older.write_bytes(content)
    assert values_of(newest, OTHER, KEYS) == dict.fromkeys(KEYS, "x")


def test_parts_from_the_newest_on_are_parts_of_the_path_backwards(tmp_path: Path) -> None:
    path = Files(tmp_path)
    for number in range(3):
        path.change({ONE: dict.fromkeys(KEYS, number)})

    def numbers(*, newest_first: bool) -> list[Any]:
        parts = parts_of(path.files, AllKeys(), newest_first=newest_first)
        return [number for part in parts for number in part.read(["v_one"])["v_one"].to_pylist()]

    # rows of files that are read as one stand in path order
    assert numbers(newest_first=True) == numbers(newest_first=False) == [0] * 12 + [1] * 12 + [2] * 12


class TestRowGroups:
    """Which row groups of a file are read."""

    ROWS = 40_000

    @pytest.fixture
    def path(self, tmp_path: Path) -> Files:
        path = Files(tmp_path, lambda key: (int(key[0]) * 2_654_435_761) % 2**40)
        path.change({ONE: {(float(n), "a"): n for n in range(self.ROWS)}})
        return path

    def opened(self, path: Files) -> OpenParquet:
        return open_state_file(path.files[0])

    def test_those_of_some_key_groups(self, path: Files) -> None:
        file, listed = self.opened(path), path.files[0]
        read = KeyGroups(GROUPS, (KeyGroupRange(2, 2), KeyGroupRange(6, 7))).row_groups(file, listed)
        limits = [each for each in file.limits("key_group", read) if each is not None]
        groups = [set(range(first, last + 1)) for first, last in limits]
        assert all(own & {2, 6, 7} for own in groups)
        assert 0 < len(read) < file.row_groups
        spec, wanted = path.base_spec(), KeyGroups(GROUPS, (KeyGroupRange(2, 2), KeyGroupRange(6, 7)))
        rows = read_changes(spec, path.files, wanted)
        expected = [n for n in range(self.ROWS) if path.hash_of((float(n), "a")) % GROUPS in (2, 6, 7)]
        assert sorted(rows["v_one"].to_pylist()) == expected

    def test_all_where_groups_were_numbered_otherwise(self, path: Files) -> None:
        file, listed = self.opened(path), path.files[0]
        other = KeyGroups(2 * GROUPS, (KeyGroupRange(0, 0),))
        assert other.row_groups(file, listed) == list(range(file.row_groups))

    def test_all_without_a_look_at_them_where_most_keys_are_wanted(
        self, path: Files, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file, listed = self.opened(path), path.files[0]
        hashes = path.hashes([(float(n), "a") for n in range(0, self.ROWS, 49)])
        dense = path.hashes([(float(n), "a") for n in range(0, self.ROWS, 9)])
        of_one_group = dense[dense % GROUPS == 3]
        few = KeyHashes(of_one_group).row_groups(file, listed)
        assert 0 < len(few) < file.row_groups  # many keys, but of one group alone
        monkeypatch.setattr(OpenParquet, "limits", None)
        assert KeyHashes(hashes).row_groups(file, listed) == list(range(file.row_groups))

    def test_all_where_nothing_is_known(self, path: Files) -> None:
        file = self.opened(path)
        assert file.sorted_row_groups("no_column", 1, 2) == range(file.row_groups)
        assert file.sorted_row_groups("key_group", GROUPS, GROUPS + 1) == range(
            file.row_groups, file.row_groups
        )
        assert len(file.sorted_row_groups("key_group", -3, -1)) == 0


KEY_PAIRS = st.tuples(st.sampled_from([0.5, 1.0, None]), st.sampled_from(["a", "b", None]))


@given(st.lists(KEY_PAIRS, max_size=40), st.integers(1, 20))
def test_rows_have_one_number_where_their_keys_are_equal(keys: list[tuple[float, str]], hashes: int) -> None:
    columns = [pa.array([k[0] for k in keys], pa.float64()), pa.array([k[1] for k in keys], pa.string())]
    # of few hashes several keys have one, but equal keys have one hash
    of_rows = np.array([hash(key) % hashes for key in keys], np.int64)
    codes, rows = key_codes(columns, of_rows)
    expected = entry_codes(columns)
    assert len(rows) == len(set(keys))
    assert len(set(zip(codes.tolist(), expected.tolist(), strict=True))) == len(set(keys))
    assert sorted(set(codes.tolist())) == list(range(len(rows)))
    assert codes[rows].tolist() == list(range(len(rows)))


@pytest.mark.parametrize("kind", [pa.int64(), pa.int8(), pa.uint64(), pa.date32()], ids=str)
@given(st.lists(st.tuples(st.integers(0, 3) | st.just(120), st.none() | st.integers(0, 1)), max_size=9))
def test_whole_numbers_have_one_number_where_they_are_equal(
    kind: pa.DataType, pairs: list[tuple[int, int | None]]
) -> None:
    first = pa.array([a for a, _ in pairs], pa.int32() if kind == pa.date32() else kind).cast(kind)
    second = pa.array([b for _, b in pairs], pa.int64())
    for columns, keys in (([first], [a for a, _ in pairs]), ([first, second], pairs)):
        codes = entry_codes(columns).tolist()
        assert sorted(set(codes)) == list(range(len(set(keys))))
        assert len(set(zip(codes, keys, strict=True))) == len(set(keys))


def test_rows_of_one_hash_stay_in_their_order() -> None:
    hashes = np.random.default_rng(1).integers(0, 5, 1000)
    order = file_order(hashes, np.mod(hashes, 2))
    assert order.tolist() == sorted(range(1000), key=lambda row: (hashes[row] % 2, hashes[row], row))
