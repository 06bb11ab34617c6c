"""The reference workload: a count-window average over events that go round all keys.

Event number i has key ``i * 7919 mod keys`` and a value that depends on its key alone. Therefore the result of a key
does not depend on the order of its events, and engines that promise no order can be compared with one that does. The
window of three does not divide the ten events that a key gets in a batch, so state lives on from batch to batch.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

WINDOW = 3
"""Values of a key that make one average."""
PARALLELISM = 2
"""Subtasks of every engine, and shuffle partitions of Spark."""
FILES = 4
"""Parquet files that a full batch comes in."""
EVENT_SCHEMA = "k bigint, v double"

_STRIDE = 7919


@dataclass(frozen=True)
class Results:
    """What an engine made of all batches so far.

    Attributes:
        outputs: how often each (key, average) came out.
        state: the open window of each key: number of values and their sum; keys without one are absent.
    """

    outputs: Counter[tuple[int, float]]
    state: dict[int, tuple[int, float]]


@dataclass(frozen=True)
class Workload:
    """Events over a number of keys.

    Args:
        keys: distinct keys; events number 0 to ``keys`` touch each of them once.

    Raises:
        ValueError: with this number of keys some keys would get no event.

    Example:
        >>> Workload(keys=10).events(0, 3).to_pydict()
        {'k': [0, 9, 8], 'v': [0.0, 1.0, 2.0]}
    """

    keys: int

    def __post_init__(self) -> None:
        if self.keys < 1 or math.gcd(self.keys, _STRIDE) != 1:
            raise ValueError(f"the number of keys must be positive and no multiple of {_STRIDE}")

    def events(self, first: int, count: int) -> pa.Table:
        """Events number ``first`` to ``first + count`` (exclusive) as columns k and v."""
        number = np.arange(first, first + count)
        return pa.table({"k": number * _STRIDE % self.keys, "v": self._value(number)})

    def expected(self, events: int) -> Results:
        """What the first ``events`` events must lead to; counted, not simulated."""
        outputs: Counter[tuple[int, float]] = Counter()
        state = {}
        for key, (seen, value) in self.values_of(events).items():
            if seen >= WINDOW:
                outputs[key, value] = seen // WINDOW
            if seen % WINDOW:
                state[key] = (seen % WINDOW, seen % WINDOW * value)
        return Results(outputs, state)

    def values_of(self, events: int) -> dict[int, tuple[int, float]]:
        """Of each key that the first ``events`` events touch: how many values it gets, and what they are."""
        number = np.arange(min(events, self.keys))
        times = events // self.keys + (number < events % self.keys)
        keys, values = (number * _STRIDE % self.keys).tolist(), self._value(number).tolist()
        return dict(zip(keys, zip(times.tolist(), values, strict=True), strict=True))

    def _value(
        self, number: np.ndarray[tuple[int], np.dtype[np.int64]]
    ) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return (number % self.keys % 1000).astype(np.float64)


class Feed:
    """Writes batches once and hands them to engines, each of which watches a directory of its own.

    Args:
        workload: what to write.
        directory: where; on one file system with the directories of the engines.
    """

    def __init__(self, workload: Workload, directory: Path) -> None:
        self.workload, self._directory = workload, directory
        self.events = 0
        self._batches = 0

    def write(self, count: int) -> Path:
        """The next ``count`` events as a directory of Parquet files: four, or one where they are few."""
        self._batches += 1
        batch = self._directory / f"batch-{self._batches:04d}"
        batch.mkdir(parents=True)
        table = self.workload.events(self.events, count)
        self.events += count
        files = FILES if count >= 1000 * FILES else 1
        for place in range(files):
            start, end = place * count // files, (place + 1) * count // files
            pq.write_table(table.slice(start, end - start), batch / f"part-{place:04d}.parquet")
        return batch


@contextmanager
def scratch(on: Path | None = None) -> Iterator[Path]:
    """A directory for one benchmark, which is removed in the end."""
    with tempfile.TemporaryDirectory(prefix="statelake-bench-", dir=on) as name:
        yield Path(name)


def hand_over(batch: Path, directory: Path) -> None:
    """Put a batch into the directory that an engine watches: all files at one moment, without copying them."""
    # A name that begins with an underscore is read by no engine.
    draft = directory / f"_{batch.name}"
    draft.mkdir()
    for file in batch.iterdir():
        os.link(file, draft / file.name)
    draft.rename(directory / batch.name)
