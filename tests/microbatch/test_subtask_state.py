"""What a subtask hands over to working state: all at once, or piece by piece to a backend that spills."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from state_engine import EmbeddedRocksDBStateBackend, HashMapStateBackend, ListStateDescriptor
from state_engine.core.keys.hashing import hash_int64_array
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.state.evolution import recorded_schema
from state_engine.core.state.state_table import APPEND, Change
from state_engine.microbatch.subtask.subtask_input import Keys
from state_engine.microbatch.subtask.subtask_state import SubtaskKeyedState
from state_engine.storage.layout import JobLayout
from state_engine.storage.state.copy_directory import NO_COPIES
from state_engine.storage.state.listed_files import ListedFile
from state_engine.storage.state.located_files import StateFile
from state_engine.storage.stores.files import put_file

KEY = KeySchema(("k",), (pa.int64(),))
SEEN = ListStateDescriptor("seen", int)


def keys_of(numbers: list[int]) -> Keys:
    hashes = hash_int64_array(np.array(numbers, np.int64)).astype(np.int64)
    return Keys(numbers, {n: i for i, n in enumerate(numbers)}, [pa.array(numbers, pa.int64())], hashes)


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_a_backend_that_spills_gets_the_same_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    spec = SimpleNamespace(
        uid="op", write_id="w", layout=JobLayout(f"file://{tmp_path}", "job"), key_schema=KEY, known_key_schema=KEY,
        parallelism=1,
        max_parallelism=128, state_files=[], recorded_states={}, earlier_states={}, dropped_states=(),
        backend=HashMapStateBackend(), first_timers=(), local_copies=NO_COPIES,
    )  # fmt: skip

    def subtask(numbers: list[int]) -> Any:
        return SubtaskKeyedState(spec, 0, keys_of(numbers), at_once=at_once)  # type: ignore[arg-type]

    stored = list(range(20))
    changes = [(SEEN, [Change(n, APPEND, [n, n + 1]) for n in stored])]
    (file,) = subtask(stored).write(changes, subtask=0, attempt=0, key_type=KEY.storage, put=put_file)
    listed = ListedFile(f"{spec.layout.changelog('op')}/{file.path}", file.rows)
    spec.state_files = [StateFile(listed, 0, 127, 1)]
    spec.recorded_states = {"seen": recorded_schema(SEEN)}

    touched = [3, 5, 8, 13, 99, 4]
    whole = subtask(touched).load(SEEN)
    assert whole == {n: [n, n + 1] for n in touched if n != 99}

    asked: list[int] = []
    original = SubtaskKeyedState._touched

    def watched(self: SubtaskKeyedState, hashes: Any) -> Any:
        asked.append(len(hashes))
        return original(self, hashes)

    monkeypatch.setattr(SubtaskKeyedState, "_touched", watched)
    spec.backend = EmbeddedRocksDBStateBackend()
    assert dict(subtask(touched).load(SEEN)) == whole
    assert max(asked) == min(at_once, len(touched))
    assert sum(asked) == len(touched)
