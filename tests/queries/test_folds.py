"""The three folds of changes give what the definition says: subtasks, compactions and queries."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from state_engine.core.checkpoints.checkpoint import OperatorCheckpoint
from state_engine.core.checkpoints.time_travel import DeclaredState, expiry_of
from state_engine.core.keys.key_groups import KeyGroupRange, remaining
from state_engine.core.state.change_folding import fold
from state_engine.core.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from state_engine.core.state.evolution import recorded_schema
from state_engine.core.state.state_table import APPEND, CLEAR, DELETE, PUT, Change
from state_engine.core.state.ttl import Stamped, StateTtlConfig
from state_engine.core.state.ttl_rule import without_expired
from state_engine.queries.state_reader import state_frame
from state_engine.storage.state.listed_files import KeyGroups, ListedFile
from state_engine.storage.state.located_files import StateFile
from state_engine.storage.stores.files import write_parquet
from tests.storage.test_base import GROUPS, base, listed
from tests.storage.test_base import fold as folded_by_a_subtask
from tests.storage.test_changelog import KEY, Log

NOW_MS, TTL_MS = 250, 100
CLOCKS: dict[str, Any] = {"clock_ms": NOW_MS, "watermark_ms": None}
SHAPES = {
    "value": lambda: ValueStateDescriptor("v", int),
    "list": lambda: ListStateDescriptor("l", int),
    "map": lambda: MapStateDescriptor("m", str, int),
}
Batches = Sequence[list[Change]]


def state(shape: str) -> StateDescriptor:
    descriptor = SHAPES[shape]()
    descriptor.enable_time_to_live(StateTtlConfig.new_builder(timedelta(milliseconds=TTL_MS)).build())
    return descriptor


def random_batch(r: random.Random, shape: str, keys: Iterable[Any]) -> list[Change]:
    """What one micro-batch may write: for a key at most one clear, and it comes first."""

    def item() -> Stamped:
        return Stamped(r.randint(0, 9), r.choice([None, r.randint(0, 300)]))

    changes = []
    for key in keys:
        if shape == "value":
            put = r.random() < 0.7
            changes.append(Change(key, PUT if put else DELETE, item() if put else None))
            continue
        if r.random() < 0.3:
            changes.append(Change(key, CLEAR, None))
        if shape == "list":
            changes.append(Change(key, APPEND, [item() for _ in range(r.randint(1, 3))]))
            continue
        for at in r.sample("abcd", r.randint(0, 3)):
            put = r.random() < 0.7
            changes.append(Change(key, PUT if put else DELETE, (at, item() if put else None)))
    return changes


def random_batches(seed: int, shape: str, keys: int) -> Batches:
    r = random.Random(seed)
    every = [(n, r.choice([None, "a"])) for n in range(keys)]
    batches, entries = list[list[Change]](), dict[Any, Any]()
    for _ in range(4):
        batch = random_batch(r, shape, r.sample(every, r.randint(0, keys)))
        batches.append(as_states_write(entries, batch) if shape == "map" else batch)
        fold(shape, entries, batches[-1])
    return batches


def as_states_write(stored: dict[Any, dict[Any, Any]], batch: list[Change]) -> list[Change]:
    """A map state puts no entry over one that has expired, as that may be cleaned up or not: it writes the map anew."""
    living = without_expired(state("map"), {key: dict(of_key) for key, of_key in stored.items()}, **CLOCKS)
    written: list[Change] = []
    for key, group in groupby(batch, key=lambda change: change.key):
        changes = list(group)
        gone = stored.get(key, {}).keys() - living.get(key, {}).keys()
        put = {change.value[0] for change in changes if change.op == PUT}
        if changes[0].op == CLEAR or not put & gone:
            written += changes
            continue
        entries = {key: {at: item for at, item in stored[key].items() if at not in put & gone}}
        fold("map", entries, changes)
        written.append(Change(key, CLEAR, None))
        written += [Change(key, PUT, entry) for entry in entries.get(key, {}).items()]
    return written


def plain(item: Any) -> Any:
    return item.value if isinstance(item, Stamped) else item


def shown(shape: str, entries: dict[Any, Any]) -> dict[Any, Any]:
    """Without times; the order of map entries is part of them."""
    if shape == "value":
        return {key: plain(item) for key, item in entries.items()}
    if shape == "list":
        return {key: [plain(item) for item in items] for key, items in entries.items() if items}
    pairs = {key: dict(items) for key, items in entries.items() if items}
    return {key: [(at, plain(item)) for at, item in of_key.items()] for key, of_key in pairs.items()}


def defined(shape: str, batches: Batches) -> dict[Any, Any]:
    """By the definition."""
    entries: dict[Any, Any] = {}
    fold(shape, entries, (change for batch in batches for change in batch))
    return shown(shape, without_expired(state(shape), entries, **CLOCKS))


class NamedLog(Log):
    """Files with the name of an attempt in theirs, by which queries find the place of a file."""

    def write(self, changes: list[tuple[StateDescriptor, list[Change]]]) -> Any:
        number = len(self.files)
        table = super().write(changes)
        if table is not None:
            uri = f"file://{self.directory}/part-00000-{number:032x}-0.parquet"
            write_parquet(table, uri)
            self.files[-1] = ListedFile(uri, table.num_rows)
        return table


def written(directory: Path, shape: str, batches: Batches) -> list[ListedFile]:
    log = NamedLog(directory)
    for batch in batches:
        log.write([(state(shape), batch)])
    return log.files


def of_subtask(shape: str, files: Sequence[ListedFile]) -> dict[Any, Any]:
    descriptor = state(shape)
    entries = folded_by_a_subtask(files, descriptor)[descriptor.name]
    as_stored = {k: dict(v) for k, v in entries.items()} if shape == "map" else entries
    return shown(shape, without_expired(descriptor, as_stored, **CLOCKS))


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=15)
@given(seed=st.integers(0, 2**32), cut=st.integers(0, 4))
@example(seed=2180060, cut=2)  # an entry that expired before a base is put again after it
@example(seed=51, cut=0)  # an entry is removed and put again
def test_subtasks_and_compactions_fold_as_defined(shape: str, seed: int, cut: int) -> None:
    batches = random_batches(seed, shape, keys=6)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        files = written(directory, shape, batches)
        assert of_subtask(shape, files) == defined(shape, batches)
        done = base(directory / "base", files[:cut], state(shape), **CLOCKS)
        upon = [*listed(directory / "base", done), *files[cut:]]
        whole = base(directory / "whole", upon, state(shape), **CLOCKS)
        assert of_subtask(shape, listed(directory / "whole", whole)) == defined(shape, batches)


@pytest.mark.parametrize("based", [KeyGroupRange(0, GROUPS - 1), KeyGroupRange(0, 40), KeyGroupRange(30, 90)])
@pytest.mark.parametrize("shape", SHAPES)
def test_queries_fold_as_defined(
    shape: str, based: KeyGroupRange, tmp_path: Path, spark: SparkSession
) -> None:
    """In Spark's plan: many keys in one job, upon a base of the first two batches, for all key groups or for some."""
    batches = random_batches(7, shape, keys=150)
    files = written(tmp_path, shape, batches)
    groups = KeyGroups(GROUPS, (based,))
    done = base(tmp_path / "base", files[:2], state(shape), groups=groups, **CLOCKS)
    upon = [StateFile(one, f.key_group_min or 0, f.key_group_max or 0, 0)
            for one, f in zip(listed(tmp_path / "base", done), done, strict=True)]  # fmt: skip
    if left := tuple(remaining(KeyGroupRange(0, GROUPS - 1), [based])):
        partly = (replace(one, counts=KeyGroups(GROUPS, left)) for one in files[:2])
        upon += [StateFile(one, left[0].start, left[-1].end, place) for place, one in enumerate(partly, 1)]
    upon += [StateFile(one, 0, GROUPS - 1, place) for place, one in enumerate(files[2:], 3)]
    row: Any = SimpleNamespace(**CLOCKS, watermark_of=lambda uid: CLOCKS["watermark_ms"])
    schema = recorded_schema(state(shape))
    operator = OperatorCheckpoint("o", 1, GROUPS, str(KEY), [schema], [], [], 0)
    declared = DeclaredState(operator, schema, row)
    expiry = expiry_of(declared, include_expired=False)
    assert expiry.hidden_ms is not None
    rows = state_frame(spark, declared, upon, expiry).collect()
    entries: dict[Any, Any] = {}
    for one in rows:
        key = (one["k"], one["part"])
        if shape == "map":
            entries.setdefault(key, {})[one["map_key"]] = one["value"]
        else:
            entries[key] = one["value"]
    expected = defined(shape, batches)
    assert len(expected) > 30
    assert entries == ({k: dict(v) for k, v in expected.items()} if shape == "map" else expected)
