"""Changelog files: what is written for a batch and folded for the next is what a plain dict would hold."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_engine.core.errors import MissingFilesError
from state_engine.core.keys.canonical import key_hash
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from state_engine.core.state.state_table import APPEND, CLEAR, DELETE, PUT, Change, KeyedEntries
from state_engine.storage.state.changelog import TouchedState
from state_engine.storage.state.changelog_write import changelog_table
from state_engine.storage.state.listed_files import ListedFile
from state_engine.storage.stores.files import write_parquet

KEY = KeySchema(("k", "part"), (pa.int64(), pa.string()))
"""Keys are pairs, so that different ones may well have one hash."""

VALUE = ValueStateDescriptor("value", list[int])
LIST = ListStateDescriptor("list", str)
MAP = MapStateDescriptor("map", str, int)
STATES: dict[str, StateDescriptor] = {d.name: d for d in (VALUE, LIST, MAP)}
Entries = dict[str, dict[Any, Any]]

KEYS = st.tuples(st.integers(0, 3), st.sampled_from([None, "a", "b"]))
_TEXT = st.text("aé", max_size=2)
_STORED: dict[str, st.SearchStrategy[Any]] = {
    "value": st.lists(st.none() | st.integers(-5, 5), max_size=2),
    "list": st.lists(_TEXT, min_size=1, max_size=3),
    "map": st.dictionaries(_TEXT, st.none() | st.integers(-5, 5), min_size=1, max_size=3),
}


@st.composite
def batches(draw: st.DrawFn) -> list[dict[str, dict[Any, Any]]]:
    """Per batch and state, the new entries of some keys; None where the entry is deleted."""
    drawn = []
    for _ in range(draw(st.integers(1, 4))):
        batch = {}
        for name, stored in _STORED.items():
            batch[name] = draw(st.dictionaries(KEYS, st.none() | stored | st.just("add"), max_size=4))
        drawn.append(batch)
    return drawn


class Log:
    """Writes batches as files, as a subtask does, and loads them back."""

    def __init__(self, directory: Path, hash_of: Any = key_hash, key: KeySchema = KEY) -> None:
        self.directory, self.hash_of, self.key = directory, hash_of, key
        self.files: list[ListedFile] = []

    def load(self, keys: set[Any]) -> Entries:
        touched = np.array(sorted(self.hash_of(k) for k in keys), np.int64)
        state = TouchedState(self.files, touched, self.key)
        loaded = {name: state.load(d) for name, d in STATES.items()}
        return {name: {k: v for k, v in of_state.items() if k in keys} for name, of_state in loaded.items()}

    def write(self, changes: list[tuple[StateDescriptor, list[Change]]]) -> pa.Table | None:
        keys = list({c.key for _, changes_of_state in changes for c in changes_of_state})
        table = changelog_table(
            changes,
            key_type=self.key.storage,
            index_of={k: i for i, k in enumerate(keys)},
            keys=pa.array([dict(zip(self.key.names, k, strict=True)) for k in keys], self.key.storage),
            hashes=np.array([self.hash_of(k) for k in keys], np.int64),
            max_parallelism=128,
        )
        if table is not None:
            uri = f"file://{self.directory}/{len(self.files)}.parquet"
            write_parquet(table, uri)
            self.files.append(ListedFile(uri, table.num_rows))
        return table


def apply(table: KeyedEntries, key: Any, new: Any) -> None:
    """Apply a change to the working copy, as handles do."""
    old = table.entries.get(key)
    if new == "add":
        match table.descriptor.kind, old:
            case "list", list():
                old.append("+")
            case "list", None:
                table.entries[key] = ["+"]
            case "map", dict():
                old["+"] = 1
            case _:
                return
    elif new is None:
        table.entries.pop(key, None)
    elif table.descriptor.kind == "map" and old is not None:
        for gone in set(old) - set(new):
            del old[gone]
        old.update(new)
    else:
        table.entries[key] = new


def replay(history: list[dict[str, dict[Any, Any]]], hash_of: Any) -> None:
    """Run batches through files, comparing with a model after each."""
    model: Entries = {name: {} for name in STATES}
    with tempfile.TemporaryDirectory() as directory:
        log = Log(Path(directory), hash_of)
        for batch in history:
            keys = {k for wanted in batch.values() for k in wanted}
            loaded = log.load(keys)
            assert loaded == {n: {k: v for k, v in model[n].items() if k in keys} for n in STATES}
            changes = []
            for name, descriptor in STATES.items():
                table = KeyedEntries(descriptor, loaded[name])
                for key, new in batch[name].items():
                    apply(table, key, new)
                changes.append((descriptor, list(table.changes())))
                for key in keys:
                    model[name].pop(key, None)
                model[name] |= {k: _copy(v) for k, v in table.entries.items()}
            log.write(changes)
        everything = {k for name in STATES for k in model[name]}
        assert log.load(everything) == model


def _copy(stored: Any) -> Any:
    return type(stored)(stored)


@settings(max_examples=50)
@given(history=batches(), spread=st.sampled_from([None, 1, 2]))
def test_files_fold_to_what_a_dict_would_hold(
    history: list[dict[str, dict[Any, Any]]], spread: int | None
) -> None:
    """The hash only narrows the search: with one or two hashes for all keys the result is the same."""
    replay(history, key_hash if spread is None else lambda key: key[0] % spread)


def test_real_keys_share_a_hash_and_are_two() -> None:
    assert key_hash((1, None)) == key_hash((None, 1)) == key_hash((1,))


def changes_of(
    *changes: Change, descriptor: StateDescriptor = VALUE
) -> list[tuple[StateDescriptor, list[Change]]]:
    return [(descriptor, list(changes))]


def test_a_key_that_is_not_touched_is_not_loaded(tmp_path: Path) -> None:
    log = Log(tmp_path, lambda key: 7)
    log.write(changes_of(Change((1, "a"), PUT, [1]), Change((2, "a"), PUT, [2])))
    assert log.load({(2, "a")})["value"] == {(2, "a"): [2]}
    assert log.load({(3, None)})["value"] == {}
    assert log.load(set()) == {"value": {}, "list": {}, "map": {}}


@pytest.mark.parametrize("spread", [None, 1], ids=["own hashes", "one hash"])
def test_a_key_may_hold_records(tmp_path: Path, spread: int | None) -> None:
    """The last values are among those of several batches."""
    inner = pa.struct([("n", pa.int64()), ("deep", pa.struct([("t", pa.string())]))])
    schema = KeySchema(("k", "record"), (pa.int64(), inner))
    log = Log(tmp_path, key_hash if spread is None else lambda key: spread, schema)
    one, other, none, hollow = (
        (1, {"n": 1, "deep": {"t": "a"}}), (1, {"n": 1, "deep": {"t": "b"}}), (1, None), (1, {"n": None, "deep": None}),
    )  # fmt: skip
    keys = schema.decode([pa.array([1] * 4), pa.array([k[1] for k in (one, other, none, hollow)], inner)])
    for batch in range(3):
        log.write(changes_of(*(Change(key, PUT, [batch, at]) for at, key in enumerate(keys))))
    log.write(changes_of(Change(keys[0], DELETE, None)))
    assert log.load(set(keys))["value"] == {key: [2, at] for at, key in enumerate(keys) if at}


def test_nothing_changed_is_no_file(tmp_path: Path) -> None:
    assert Log(tmp_path).write([(VALUE, []), (MAP, [])]) is None


def test_rows_are_sorted_and_clear_comes_first(tmp_path: Path) -> None:
    log = Log(tmp_path)
    keys = [(n, None) for n in range(50)]
    wanted: list[tuple[StateDescriptor, list[Change]]] = [
        (VALUE, [Change(k, PUT, [k[0]]) for k in keys]),
        (LIST, [c for k in keys for c in (Change(k, CLEAR, None), Change(k, APPEND, ["x"]))]),
        (
            MAP,
            [
                c
                for k in keys
                for c in (Change(k, CLEAR, None), Change(k, PUT, ("a", 1)), Change(k, PUT, ("b", None)))
            ],
        ),
    ]
    table = log.write(wanted)
    assert table is not None
    table.validate(full=True)
    place = list(zip(table["key_group"].to_pylist(), table["key_hash"].to_pylist(), strict=True))
    assert place == sorted(place)
    assert all(group == h % 128 for group, h in place)
    rows: dict[tuple[Any, str], list[str]] = {}
    for row in table.to_pylist():
        rows.setdefault((row["key"]["k"], row["state"]), []).append(row["op"])
        # a state's column is filled in its own rows only
        assert [c for c in ("value", "list", "map") if row[f"v_{c}"] is not None] in ([row["state"]], [])
    assert set(map(tuple, rows.values())) == {(PUT,), (CLEAR, APPEND), (CLEAR, PUT, PUT)}
    assert list(log.load({(3, None)})["map"][(3, None)]) == ["a", "b"]


def test_columns_are_native_types(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.write([(VALUE, [Change((1, "a"), PUT, [1])]), (MAP, [Change((1, "a"), DELETE, ("x", None))])])
    schema = pq.read_schema(tmp_path / "0.parquet")
    assert schema.field("key").type == pa.struct([("k", pa.int64()), ("part", pa.string())])
    assert schema.field("v_value").type == pa.list_(pa.field("element", pa.int64()))
    assert schema.field("v_map").type == pa.struct([("key", pa.string()), ("value", pa.int64())])
    assert "v_list" not in schema.names  # no row of it in this file


def test_a_file_with_other_rows_is_reported_even_where_no_key_is_touched(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.write(changes_of(Change((1, "a"), PUT, [1]), Change((2, "a"), PUT, [1])))
    log.files[0] = ListedFile(log.files[0].uri, 3)
    with pytest.raises(MissingFilesError, match="has 2 rows, its checkpoint recorded 3"):
        log.load({(9, "z")})


ALL_TYPES: Mapping[str, tuple[Any, Any]] = {
    "tinyint": ("tinyint", -5),
    "float": ("float", 0.5),
    "decimal": ("decimal(5,2)", None),
    "struct": ("a bigint, b array<string>", (1, ["x", None])),
    "dict": (dict[str, list[int]], {"a": [1], "b": None}),
}


@pytest.mark.parametrize("name", ALL_TYPES)
def test_values_come_back_as_declared(tmp_path: Path, name: str) -> None:
    from decimal import Decimal

    declared, value = ALL_TYPES[name]
    descriptor = ValueStateDescriptor("value", declared)
    value = descriptor.value_type.normalise(Decimal("1.50") if value is None else value)
    log = Log(tmp_path)
    log.write([(descriptor, [Change((1, "a"), PUT, value), Change((2, "a"), DELETE, None)])])
    touched = np.array(sorted(key_hash(k) for k in [(1, "a"), (2, "a")]), np.int64)
    entries = TouchedState(log.files, touched, KEY).load(descriptor)
    assert entries == {(1, "a"): value}
    assert type(entries[(1, "a")]) is type(value)
