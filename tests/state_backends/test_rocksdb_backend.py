"""The RocksDB backend's own: what it writes, where it lives, its options, its compaction, and every type in it."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_engine.core.errors import ConfigurationError
from state_engine.core.state.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from state_engine.core.state.state_table import KeyContext
from state_engine.core.state.ttl import Stamped
from state_engine.state_backends.rocksdb_backend import EmbeddedRocksDBStateBackend, RocksDBKeyedStateBackend
from state_engine.state_backends.rocksdb_codec import item_code, map_key_code
from state_engine.state_backends.rocksdb_options import PredefinedOptions
from tests.core.state.steps import Steps, ttl, with_ttl
from tests.core.types.type_samples import LEAVES, samples
from tests.state_backends.backends import keyed, on


def rocks(
    context: KeyContext, *, stored: dict[str, Any] | None = None, **options: Any
) -> RocksDBKeyedStateBackend:
    stored_entries = stored or {}
    keyed_backend = keyed(
        EmbeddedRocksDBStateBackend(**options), context, lambda d: stored_entries.get(d.name, {})
    )
    assert isinstance(keyed_backend, RocksDBKeyedStateBackend)
    return keyed_backend


# -- the directory -------------------------------------------------------------------------------------------------


def test_the_directory_goes_when_the_batch_ends(tmp_path: Path) -> None:
    with rocks(KeyContext(), local_directory=str(tmp_path)) as keyed_backend:
        assert [str(p) for p in tmp_path.iterdir()] == [keyed_backend.directory]
    assert list(tmp_path.iterdir()) == []


def test_the_directory_goes_when_the_batch_fails(tmp_path: Path) -> None:
    context, frozen = KeyContext(), []

    def batch() -> None:
        with rocks(context, local_directory=str(tmp_path)) as keyed_backend:
            state = keyed_backend.store.handle(ListStateDescriptor("s", int), "list")
            context.key = 1
            state.add(1)
            frozen.append(keyed_backend.snapshot(1))
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        batch()
    assert frozen[0].cancelled()
    assert list(tmp_path.iterdir()) == []


def test_the_directory_goes_when_the_database_does_not_open(tmp_path: Path, monkeypatch: Any) -> None:
    def fail(*_: Any) -> None:
        raise OSError("too many open files")

    monkeypatch.setattr("rocksdict.Rdict", fail)
    with pytest.raises(OSError, match="too many open files"):
        rocks(KeyContext(), local_directory=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


# -- what is written -----------------------------------------------------------------------------------------------


def test_adding_and_putting_rewrite_nothing(tmp_path: Path) -> None:
    context = KeyContext()
    stored = {"list": {1: list(range(5000))}, "map": {1: {n: n for n in range(5000)}}}
    with rocks(context, stored=stored, local_directory=str(tmp_path)) as keyed_backend:
        elements = keyed_backend.store.handle(ListStateDescriptor("list", int), "list")
        entries = keyed_backend.store.handle(MapStateDescriptor("map", int, int), "map")
        context.key = 1
        before = keyed_backend._rocks.writes
        elements.add(1)
        assert keyed_backend._rocks.writes - before == 1
        entries.put(7, 70)
        entries.put(-1, 0)
        # the row, the one before it, and for the new entry its place, too
        assert keyed_backend._rocks.writes - before == 1 + 2 + 3
        changes = [
            tuple(c) for _, changes_of_state in keyed_backend.snapshot(1).result() for c in changes_of_state
        ]
    assert changes == [(1, "append", [1]), (1, "put", (7, 70)), (1, "put", (-1, 0))]


def test_state_larger_than_the_write_buffer_spills_to_files(tmp_path: Path) -> None:
    context, big = KeyContext(), "x" * 10_000
    with rocks(
        context, options={"write_buffer_size": 1 << 20}, local_directory=str(tmp_path)
    ) as keyed_backend:
        state = keyed_backend.store.handle(ValueStateDescriptor("s", str), "value")
        for key in range(1000):
            context.key = key
            state.update(f"{key}{os.urandom(4).hex()}{big}")
        assert list(Path(keyed_backend.directory).glob("*.sst"))
        context.key = 3
        assert state.value().startswith("3")
        assert sum(len(changes) for _, changes in keyed_backend.snapshot(1).result()) == 1000


def test_what_was_replaced_is_dropped_between_elements() -> None:
    context = KeyContext()
    with rocks(context) as keyed_backend:
        state = keyed_backend.store.handle(ListStateDescriptor("s", int), "list")
        context.key = 1
        for n in range(5):
            state.update([n] * 3)
            for hook in context.on_element:
                hook()
        assert sum(1 for _ in keyed_backend._rocks._db.items()) == 1
        assert state.get() == [4, 4, 4]


# -- compaction ----------------------------------------------------------------------------------------------------


def filtered() -> Any:
    return ttl(build=lambda b: b.disable_cleanup_in_background().cleanup_in_rocksdb_compact_filter(1000))


@pytest.mark.parametrize("event_time", [False, True])
def test_compaction_drops_what_has_expired(event_time: bool) -> None:
    build = ttl(event_time=event_time, build=lambda b: b)
    descriptors = [
        with_ttl(ValueStateDescriptor("value", int), build),
        with_ttl(ListStateDescriptor("list", int), build),
        with_ttl(MapStateDescriptor("map", str, int), build),
        with_ttl(ValueStateDescriptor("kept", int), ttl()),
    ]
    old, new, timeless = Stamped(1, 0), Stamped(2, 50), Stamped(3, None)
    stored = {
        "value": {1: old, 2: new, 3: timeless},
        "list": {1: [old], 2: [old, new, timeless]},
        "map": {1: {"a": old}, 2: {"a": old, "b": new}},
        "kept": {1: old},
    }
    context = KeyContext(clock_ms=0 if event_time else 120, checkpoint_watermark_ms=120, has_event_time=True)
    with rocks(context, stored=stored) as keyed_backend:
        for descriptor in descriptors:
            keyed_backend.store.handle(descriptor, descriptor.kind)
        assert keyed_backend.compact() == 3 + 4 + 3
        tables = keyed_backend.store.tables
        assert dict(tables["value"].entries) == {2: new, 3: timeless}
        assert {k: list(v) for k, v in tables["list"].entries.items()} == {2: [new, timeless]}
        assert {k: dict(v) for k, v in tables["map"].entries.items()} == {2: {"b": new}}
        assert dict(tables["kept"].entries) == {1: old}
        assert keyed_backend.compact() == 2 + 2 + 1


def test_compaction_runs_by_itself_after_so_many_writes() -> None:
    backend = EmbeddedRocksDBStateBackend(compact_after_writes=5)
    steps = Steps(with_ttl(ValueStateDescriptor("s", int), filtered()), restoring=False, opener=on(backend))
    for key in range(3):
        steps.at(0, lambda s: s.update(1), key=key)
    steps.at(100, lambda s: s.update(1), key="a")
    assert set(steps._session[0].tables["s"].entries) == {0, 1, 2, "a"}  # type: ignore[index]
    steps.at(100, lambda s: s.update(1), key="b")
    assert set(steps._session[0].tables["s"].entries) == {"a", "b"}  # type: ignore[index]


# -- types ---------------------------------------------------------------------------------------------------------


@settings(max_examples=80)
@given(data=st.data(), at=st.none() | st.integers(-(2**63), 2**63 - 1))
def test_items_of_every_type_come_back(data: st.DataObject, at: int | None) -> None:
    kind, values = data.draw(samples())
    value = kind.normalise(data.draw(values))
    plain = ValueStateDescriptor("s", int)
    plain.value_type = kind
    write, read = item_code(plain)
    assert read(write(value)) == value
    assert read(write(None)) is None
    plain.enable_time_to_live(ttl())
    write, read = item_code(plain)
    assert read(write(Stamped(value, at))) == Stamped(value, at)


@pytest.mark.parametrize(
    "name", ["tinyint", "bigint", "boolean", "string", "binary", "date", "timestamp", "big integer"]
)
@settings(max_examples=30)
@given(data=st.data())
def test_map_keys_come_back_and_equal_keys_are_one(name: str, data: st.DataObject) -> None:
    kind, values = LEAVES[name]
    descriptor = MapStateDescriptor("s", int, int)
    descriptor.key_type = kind
    write, read = map_key_code(descriptor)
    a, b = kind.normalise(data.draw(values)), kind.normalise(data.draw(values))
    assert read(write(a)) == a
    assert (write(a) == write(b)) == (a == b)


# -- options -----------------------------------------------------------------------------


@pytest.mark.parametrize("predefined", list(PredefinedOptions))
def test_predefined_options_open_a_database(predefined: PredefinedOptions) -> None:
    backend = EmbeddedRocksDBStateBackend(options=predefined)
    assert backend.get_predefined_options() is predefined
    assert (
        EmbeddedRocksDBStateBackend().set_predefined_options(predefined).get_options() == predefined.settings
    )
    steps = Steps(ValueStateDescriptor("s", int), opener=on(pickle.loads(pickle.dumps(backend))))
    steps.at(0, lambda s: s.update(5))
    assert steps.at(0, lambda s: s.value()) == 5


def test_settings_win_over_predefined_options() -> None:
    backend = EmbeddedRocksDBStateBackend(options={"max_open_files": 100, "block_cache_size": 1 << 20})
    backend.set_predefined_options(PredefinedOptions.SPINNING_DISK_OPTIMIZED)
    assert backend.get_options()["max_open_files"] == 100
    assert backend.get_options()["level_compaction_dynamic_level_bytes"] == 1
    with keyed(backend, KeyContext()):
        pass


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="RocksDB has no option 'no_such_thing'"):
        EmbeddedRocksDBStateBackend(options={"no_such_thing": 1})
    with pytest.raises(ConfigurationError, match="'write_buffer_size' must be a whole number"):
        EmbeddedRocksDBStateBackend(options={"write_buffer_size": "64 MB"})  # type: ignore[dict-item]
    with pytest.raises(ConfigurationError, match="takes PredefinedOptions, not 'FLASH'"):
        EmbeddedRocksDBStateBackend().set_predefined_options("FLASH")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="compact_after_writes must be at least 1, not 0"):
        EmbeddedRocksDBStateBackend(compact_after_writes=0)
