"""Bases: the fold is the same with and without them, whatever their content and wherever the log is cut."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from state_engine.core.checkpoints.checkpoint import BaseFile, DataFile
from state_engine.core.errors import MissingFilesError
from state_engine.core.keys.canonical import key_hash
from state_engine.core.keys.entry_codes import entry_codes
from state_engine.core.keys.key_groups import KeyGroupRange
from state_engine.core.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    SortedMapStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from state_engine.core.state.evolution import evolve_state, recorded_schema
from state_engine.core.state.state_table import APPEND, CLEAR, DELETE, PUT, Change, KeyedEntries
from state_engine.core.state.ttl import Stamped, StateTtlConfig
from state_engine.core.state.ttl_rule import without_expired
from state_engine.storage.layout import state_column
from state_engine.storage.state import base as state_base
from state_engine.storage.state.base import BaseSpec, base_schema, write_base_files
from state_engine.storage.state.changelog import StateFiles, TouchedState
from state_engine.storage.state.listed_files import AllKeys, KeyGroups, ListedFile
from state_engine.storage.state.state_rows import parts_of
from state_engine.storage.stores.parquet_reading import OpenParquet
from tests.storage.test_changelog import KEY, KEYS, LIST, MAP, STATES, VALUE, Log, apply, batches

GROUPS = 128
ALL = KeyGroups(GROUPS, (KeyGroupRange(0, GROUPS - 1),))
Entries = dict[str, dict[Any, Any]]


def base(
    directory: Path,
    files: Sequence[ListedFile],
    *descriptors: StateDescriptor,
    groups: KeyGroups = ALL,
    clock_ms: int = 0,
    watermark_ms: int | None = None,
) -> list[BaseFile]:
    spec = BaseSpec(
        uri=f"file://{directory}",
        base_id="b" * 32,
        key_type=KEY.storage,
        states=tuple(recorded_schema(d) for d in descriptors),
        max_parallelism=groups.max_parallelism,
        clock_ms=clock_ms,
        watermark_ms=watermark_ms,
    )
    written, expired = write_base_files(spec, files, groups, task=3, attempt=7)
    assert not expired, "nobody asked for a list of what is left out"
    return written


def listed(directory: Path, files: Sequence[DataFile]) -> list[ListedFile]:
    return [ListedFile(f"file://{directory}/{f.path}", f.rows) for f in files]


def fold(files: Sequence[ListedFile], *descriptors: StateDescriptor) -> Entries:
    """Everything that files hold; maps as lists, because their order is part of them."""
    state = StateFiles(files, AllKeys(), KEY)
    states: Entries = {}
    for d in descriptors:
        table = state.table(d)
        entries = {} if table is None else state.fold(d, table)
        states[d.name] = {k: list(v.items()) if isinstance(v, dict) else v for k, v in entries.items()}
    return states


def write_log(directory: Path, batches_of_states: list[dict[str, dict[Any, Any]]], hash_of: Any) -> Log:
    log = Log(directory, hash_of)
    for batch in batches_of_states:
        loaded, changes = log.load({k for wanted in batch.values() for k in wanted}), []
        for name, descriptor in STATES.items():
            table = KeyedEntries(descriptor, loaded[name])
            for key, new in batch[name].items():
                apply(table, key, new)
            changes.append((descriptor, list(table.changes())))
        log.write(changes)
    return log


def one_hash_a_number(key: Any) -> int:
    return int(key[0])


# -- the same state with and without a base ----------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    history=batches(),
    cuts=st.lists(st.integers(0, 4), min_size=1, max_size=3),
    middle=st.integers(0, GROUPS),
    partial=st.integers(0, 2),
    hash_of=st.sampled_from([key_hash, one_hash_a_number]),
)
def test_a_base_changes_nothing(
    history: list[dict[str, dict[Any, Any]]], cuts: list[int], middle: int, partial: int, hash_of: Any
) -> None:
    """Bases at random places of the log, each on the one before; one of them holds a part of the key groups only."""
    with tempfile.TemporaryDirectory() as directory:
        log = write_log(Path(directory), history, hash_of)
        expected = fold(log.files, *STATES.values())
        start, files = 0, list[ListedFile]()
        for number, cut in enumerate(sorted(min(c, len(log.files)) for c in cuts)):
            files += log.files[start:cut]
            start = cut
            at = Path(directory) / f"base_{number}"
            some = number == partial and 0 < middle < GROUPS
            groups = KeyGroups(GROUPS, (KeyGroupRange(0, middle - 1),)) if some else ALL
            base_files = listed(at, base(at, files, *STATES.values(), groups=groups))
            if some:
                left = KeyGroups(GROUPS, (KeyGroupRange(middle, GROUPS - 1),))
                files = [*base_files, *(replace(f, counts=left) for f in files)]
            else:
                files = base_files
        assert fold([*files, *log.files[start:]], *STATES.values()) == expected
        touched = np.array(sorted({hash_of(k) for k in expected["map"]}), np.int64)
        loaded = TouchedState([*files, *log.files[start:]], touched, KEY).load(MAP)
        assert {k: list(v.items()) for k, v in loaded.items()} == expected["map"]


def test_values_that_are_replaced_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def batch(values: dict[Any, Any], maps: dict[Any, Any]) -> dict[str, dict[Any, Any]]:
        return {name: {} for name in STATES} | {VALUE.name: values, MAP.name: maps}

    first, last = (1, "a"), (2, None)
    changes = [
        batch({first: [1]}, {}),
        batch({first: [2]}, {last: {"a": 1}}),
        batch({first: [3], last: []}, {}),
    ]
    log = write_log(tmp_path, changes, key_hash)
    expected, read = fold(log.files, *STATES.values()), list[tuple[str, str]]()
    original = OpenParquet.read_row_groups

    def noted(self: OpenParquet, numbers: Sequence[int], columns: Sequence[str] | None = None) -> pa.Table:
        read.extend((self._uri, name) for name in columns or [])
        return original(self, numbers, columns)

    with monkeypatch.context() as patched:
        patched.setattr(OpenParquet, "read_row_groups", noted)
        patched.setattr(state_base, "parts_of", partial(parts_of, little_bytes=0))
        files = listed(tmp_path / "base", base(tmp_path / "base", log.files, *STATES.values()))
    assert fold(files, *STATES.values()) == expected
    of_values = [{name for uri, name in read if uri == f.uri and name.startswith("v_")} for f in log.files]
    assert of_values[0] == set()
    assert state_column(MAP.stored_as) in of_values[1]  # changes of a map replace nothing
    assert state_column(VALUE.stored_as) in of_values[2]


def test_entries_of_a_key_stand_together_also_where_others_have_its_hash(tmp_path: Path) -> None:
    keys = (1, "a"), (1, None)
    nothing: dict[str, dict[Any, Any]] = {name: {} for name in STATES}
    batches_of_maps = [nothing | {MAP.name: dict.fromkeys(keys, new)} for new in ({"x": 1}, "add")]
    log = write_log(tmp_path, batches_of_maps, one_hash_a_number)
    [file] = base(tmp_path / "base", log.files, MAP)
    stored = pq.ParquetFile(tmp_path / "base" / file.path).read(["key"])["key"].to_pylist()
    assert len(stored) == 4
    assert stored[0] == stored[1] != stored[2] == stored[3]


_TIMES = st.none() | st.integers(0, 300)
_ITEMS = st.builds(Stamped, st.integers(0, 9), _TIMES)
_TTL: dict[str, Callable[[], StateDescriptor]] = {
    "value": lambda: ValueStateDescriptor("v", int),
    "list": lambda: ListStateDescriptor("l", int),
    "map": lambda: MapStateDescriptor("m", str, int),
    "sorted": lambda: SortedMapStateDescriptor("s", int, int),
}


@st.composite
def stamped_changes(draw: st.DrawFn, kind: str) -> list[Change]:
    """One batch of a state with a time to live."""
    changes = []
    map_keys = st.integers(-2, 2) if kind == "sorted" else st.sampled_from("abc")
    for key in draw(st.lists(KEYS, unique=True, max_size=4)):
        if kind == "value":
            item = draw(st.none() | _ITEMS)
            changes.append(Change(key, DELETE if item is None else PUT, item))
            continue
        if draw(st.booleans()):
            changes.append(Change(key, CLEAR, None))
        if kind == "list":
            changes.append(Change(key, APPEND, draw(st.lists(_ITEMS, min_size=1, max_size=3))))
        else:
            for at, item in draw(st.dictionaries(map_keys, st.none() | _ITEMS, max_size=3)).items():
                changes.append(Change(key, DELETE if item is None else PUT, (at, item)))
    return changes


@pytest.mark.parametrize("kind", _TTL)
@pytest.mark.parametrize("event_time", [False, True])
@settings(max_examples=25)
@given(data=st.data(), now=st.integers(0, 500), shows=st.booleans())
def test_what_has_expired_is_gone_unless_it_may_be_seen(
    kind: str, event_time: bool, data: st.DataObject, now: int, shows: bool
) -> None:
    descriptor, config = _TTL[kind](), StateTtlConfig.new_builder(timedelta(milliseconds=100))
    if event_time:
        config.use_event_time()
    if shows:
        config.return_expired_if_not_cleaned_up()
    descriptor.enable_time_to_live(config.build())
    clocks: Any = {"clock_ms": 0 if event_time else now, "watermark_ms": now if event_time else 10_000}
    with tempfile.TemporaryDirectory() as directory:
        log = Log(Path(directory))
        for _ in range(3):
            log.write([(descriptor, data.draw(stamped_changes(kind)))])
        state = StateFiles(log.files, AllKeys(), KEY)
        table = state.table(descriptor)
        before = {} if table is None else state.fold(descriptor, table)
        expected = before if shows else without_expired(descriptor, before, **clocks)
        at = Path(directory) / "base"
        files = base(at, log.files, descriptor, **clocks)
        entries = fold(listed(at, files), descriptor)[descriptor.name]
        assert entries == {k: list(v.items()) if isinstance(v, dict) else v for k, v in expected.items() if v}


def test_without_a_clock_of_events_nothing_expires(tmp_path: Path) -> None:
    config = StateTtlConfig.new_builder(timedelta(milliseconds=1)).use_event_time().build()
    descriptor = ValueStateDescriptor("v", int)
    descriptor.enable_time_to_live(config)
    log = Log(tmp_path)
    log.write([(descriptor, [Change((1, "a"), PUT, Stamped(1, 0))])])
    assert len(base(tmp_path, log.files, descriptor, clock_ms=2**62, watermark_ms=None)) == 1
    assert base(tmp_path / "later", log.files, descriptor, clock_ms=0, watermark_ms=2**62) == []


# -- what is in the files ----------------------------------------------------------------------------------------------


def test_one_sorted_file_a_key_group_with_the_rows_of_the_changelog(tmp_path: Path) -> None:
    log = Log(tmp_path)
    keys = [(n, None) for n in range(300)]
    log.write([(VALUE, [Change(k, PUT, [k[0]]) for k in keys])])
    log.write([(LIST, [Change(k, APPEND, ["x", "y"]) for k in keys[:5]])])
    log.write([(VALUE, [Change(k, DELETE, None) for k in keys[100:]])])
    files = base(tmp_path / "base", log.files, VALUE, LIST, MAP)

    assert len({f.path for f in files}) == len(files)
    assert sum(f.rows for f in files) == 105
    for file in files:
        group = file.key_group_min
        assert file.path == f"base_id={'b' * 32}/key_group={group}/part-00003-{'b' * 32}-7.parquet"
        table = pq.ParquetFile(tmp_path / "base" / file.path).read()
        hashes = table["key_hash"].to_pylist()
        assert hashes == sorted(hashes)
        assert {h % GROUPS for h in hashes} == {group} == {file.key_group_max}
        assert (file.key_hash_min, file.key_hash_max) == (hashes[0], hashes[-1])
        assert (file.rows, file.subtask) == (table.num_rows, 3)
        assert file.bytes == (tmp_path / "base" / file.path).stat().st_size
        states = [d for d in (VALUE, LIST, MAP) if d.name in table["state"].to_pylist()]
        # the column of a state without an entry is left out, as in the changelog
        assert table.schema.equals(base_schema(KEY.storage, {d.name: d.column_type for d in states}))
        for key, h in zip(table["key"].to_pylist(), hashes, strict=True):
            assert key_hash((key["k"], key["part"])) == h


def test_nothing_left_is_no_file(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.write([(VALUE, [Change((1, "a"), PUT, [1])]), (LIST, [Change((1, "a"), APPEND, ["x"])])])
    log.write([(VALUE, [Change((1, "a"), DELETE, None)]), (LIST, [Change((1, "a"), CLEAR, None)])])
    assert base(tmp_path / "base", log.files, VALUE, LIST, MAP) == []
    assert base(tmp_path / "base", [], VALUE) == []


def test_entries_have_the_type_that_was_recorded_last(tmp_path: Path) -> None:
    old = ValueStateDescriptor("v", "struct<a: int, b: string>")
    new = ValueStateDescriptor("v", "struct<a: bigint, c: list<int>>".replace("list", "array"))
    log = Log(tmp_path)
    log.write([(old, [Change((1, "a"), PUT, old.value_type.normalise((1, "x")))])])
    log.write([(new, [Change((2, "a"), PUT, new.value_type.normalise((2, [3])))])])
    at = tmp_path / "base"
    files = base(at, log.files, new)
    for file in files:
        assert pq.read_schema(at / file.path).field("v_v").type == new.column_type
    read = evolve_state(recorded_schema(new), new, operator="o").read
    touched = np.array(sorted(key_hash(k) for k in [(1, "a"), (2, "a")]), np.int64)
    entries = TouchedState(listed(at, files), touched, KEY).load(new, read)
    assert {k: tuple(v) for k, v in entries.items()} == {(1, "a"): (1, None), (2, "a"): (2, [3])}


# -- what is missing ---------------------------------------------------------------------------------------------------


def test_a_missing_or_changed_file_is_reported(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.write([(VALUE, [Change((1, "a"), PUT, [1])])])
    at = tmp_path / "base"
    (file,) = listed(at, base(at, log.files, VALUE))
    with pytest.raises(MissingFilesError, match="has 1 row, its checkpoint recorded 2"):
        base(tmp_path / "next", [ListedFile(file.uri, 2)], VALUE)
    with pytest.raises(MissingFilesError, match="has 1 row, its checkpoint recorded 2"):
        fold([ListedFile(file.uri, 2)], VALUE)
    Path(file.uri[7:]).unlink()
    with pytest.raises(MissingFilesError, match="does not exist"):
        base(tmp_path / "next", [file], VALUE)
    with pytest.raises(MissingFilesError, match="does not exist"):
        fold([file], VALUE)


def test_files_without_the_one_state_are_checked_and_not_read(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.write([(VALUE, [Change((1, "a"), PUT, [1])])])

    class Unread:
        def hold(self, hashes: Any) -> Any:
            raise AssertionError("read")

        def row_groups(self, file: Any, listed: Any) -> list[int]:
            raise AssertionError("read")

    assert StateFiles(log.files, Unread(), KEY, only="map").table(MAP) is None
    with pytest.raises(MissingFilesError):
        StateFiles([ListedFile(log.files[0].uri, 9)], Unread(), KEY, only="map")


# -- numbers for entries -----------------------------------------------------------------------------------------------

_COLUMNS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), st.none() | st.integers(-3, 3)),
    (pa.string(), st.none() | st.sampled_from(["", "a", "b"])),
    (pa.float64(), st.none() | st.sampled_from([0.0, -0.0, 1.5])),
    (pa.bool_(), st.none() | st.booleans()),
    (
        pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.string())]))]),
        st.none()
        | st.fixed_dictionaries(
            {
                "a": st.none() | st.integers(0, 1),
                "b": st.none() | st.fixed_dictionaries({"c": st.none() | st.just("x")}),
            }
        ),
    ),
]


@given(
    data=st.data(), rows=st.integers(0, 12), which=st.lists(st.sampled_from(_COLUMNS), min_size=1, max_size=3)
)
@example(data=None, rows=0, which=_COLUMNS[:1]).via("no rows at all")
def test_numbers_are_equal_where_rows_are(data: st.DataObject | None, rows: int, which: list[Any]) -> None:
    columns = [
        pa.array([data.draw(values) for _ in range(rows)] if data else [], kind) for kind, values in which
    ]
    codes = entry_codes(columns).tolist()
    as_python = [tuple(_frozen(c[i].as_py()) for c in columns) for i in range(rows)]
    assert [[a == b for a in codes] for b in codes] == [[a == b for a in as_python] for b in as_python]
    assert set(codes) <= set(range(rows))


@pytest.mark.parametrize("ends", [(-9, 9), (0, 2**61 - 1), (-(2**63), 2**63 - 1)])
def test_numbers_of_wide_columns_are_equal_where_rows_are(ends: tuple[int, int]) -> None:
    wide = np.append(np.random.default_rng(7).integers(*ends, size=28, endpoint=True), ends)
    # eight times the second width is 2**64, so numbers of 64 bits would not keep these rows apart
    rows = [np.repeat([0, 8], 30), np.tile(wide, 2)]
    codes = entry_codes([pa.array(column) for column in rows]).tolist()
    as_python = list(zip(*(column.tolist() for column in rows), strict=True))
    assert [[a == b for a in codes] for b in codes] == [[a == b for a in as_python] for b in as_python]
    assert set(codes) == set(range(len(set(as_python))))


def _frozen(value: Any) -> Any:
    return tuple((k, _frozen(v)) for k, v in value.items()) if isinstance(value, dict) else value
