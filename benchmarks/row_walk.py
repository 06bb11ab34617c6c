"""``python -m benchmarks.row_walk``: which modules one row passes on its way from a file to a Delta table.

A small job (a file, ``key_by``, a function with state, a ``DeltaSink``) runs one micro-batch over one row, with its
subtask in this process, and every call of a function of the engine is looked at (``sys.setprofile``, in all threads).

**Passed** is a file if one of its functions is given, or returns, a value that holds the row: a number, a text, Arrow
data, or a container or object of the engine with one inside. Bytes count where they hold the row as it is stored.

**A climb** is a call into a file that is already below on the stack, though not the one that calls: a callback, in the
widest sense. Counted are pairs of functions, caller and called one, from where ``GraphExecutor.execute`` is entered to
where it returns; a pair that calls ten times counts once. Frames of other libraries in between do not count.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import state_engine
from state_engine import (
    DeltaSink,
    FileSource,
    KeyedProcessFunction,
    RuntimeContext,
    StateEngine,
    StatefulJob,
    ValueStateDescriptor,
)
from state_engine.spark.session import local_session
from state_engine.testing import subtasks_in_process

_ENGINE = f"{Path(state_engine.__file__).parent}/"
_ENTRY = ("microbatch/executor.py", "execute")
_MOST_INSIDE = 40
"""Values of a container or object, and rows of Arrow data, that are looked at."""

Place = tuple[str, str]
"""A file of the engine and a function of it."""


def marker() -> int:
    """The number that makes the row known; no constant, so that the code of the job does not hold it."""
    return int("".join(["424242"] * 2))


@dataclass
class Walk:
    """What a row came by.

    Attributes:
        passed: names of the functions that were given it, or returned it, by file.
        climbs: calls back into a file that is on the stack: caller and called function.
    """

    passed: dict[str, set[str]] = field(default_factory=dict)
    climbs: set[tuple[Place, Place]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._row, self._busy = marker(), threading.local()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look at all calls inside, in all threads that begin there."""
        threading.setprofile(self._look)
        sys.setprofile(self._look)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _look(self, frame: FrameType, event: str, result: Any) -> None:
        if event not in ("call", "return") or getattr(self._busy, "on", False):
            return
        place = _place(frame.f_code)
        if place is None:
            return
        self._busy.on = True
        try:
            if event == "call":
                self._climb(frame, place)
            given = _arguments(frame) if event == "call" else [result]
            if any(self._holds(value, 4) for value in given):
                self.passed.setdefault(place[0], set()).add(place[1])
        finally:
            self._busy.on = False

    def _climb(self, frame: FrameType, place: Place) -> None:
        below = list(_stack(frame.f_back))
        if _ENTRY not in below:
            return
        inside = below[: below.index(_ENTRY) + 1]
        if inside[0][0] != place[0] and place[0] in {file for file, _ in inside}:
            self.climbs.add((inside[0], place))

    def _holds(self, value: Any, depth: int) -> bool:
        if type(value) is int:
            return value == self._row
        if isinstance(value, str):
            return str(self._row) in value
        if isinstance(value, bytes):
            return self._row.to_bytes(8, "little") in value
        if isinstance(value, pa.Table | pa.RecordBatch):
            return value.num_rows <= _MOST_INSIDE and any(self._holds(one, 1) for one in value.columns)
        if isinstance(value, pa.Array | pa.ChunkedArray):
            return len(value) <= _MOST_INSIDE and str(self._row) in repr(value.to_pylist())
        return depth > 0 and any(self._holds(one, depth - 1) for one in _inside(value))


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return list(value.values())[:_MOST_INSIDE]
    if isinstance(value, list | tuple | set):
        return list(value)[:_MOST_INSIDE]
    if type(value).__module__.startswith("state_engine"):
        return list(getattr(value, "__dict__", {}).values())[:_MOST_INSIDE]
    return ()


def _arguments(frame: FrameType) -> list[Any]:
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return [frame.f_locals.get(name) for name in names if name != "self"]


def _place(code: CodeType) -> Place | None:
    if not code.co_filename.startswith(_ENGINE):
        return None
    return code.co_filename.removeprefix(_ENGINE), code.co_name


def _stack(frame: FrameType | None) -> Iterator[Place]:
    """The functions of the engine that are being called, the innermost first."""
    while frame is not None:
        if (place := _place(frame.f_code)) is not None:
            yield place
        frame = frame.f_back


class Count(KeyedProcessFunction):
    """Counts the elements of each key, and passes them on."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", int, default=0))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        self.count.update(self.count.value() + 1)
        yield value.name, value.number


def walk(directory: Path, spark: SparkSession) -> Walk:
    """The walk of one row through a job below a directory."""
    (directory / "in").mkdir(parents=True)
    row = pa.table({"name": ["a"], "number": pa.array([marker()], pa.int64())})
    pq.write_table(row, directory / "in" / "0.parquet")
    job = StatefulJob("walk")
    rows = job.source("rows", FileSource(str(directory / "in"), schema="name string, number bigint"))
    counted = rows.key_by("name").process(Count(), uid="count", output_type="name string, number bigint")
    counted.sink("out", DeltaSink(str(directory / "out")))
    engine, seen = StateEngine(str(directory / "root"), spark=spark), Walk()
    with subtasks_in_process(spark), seen.watching():
        report = engine.run(job)
    if report.rows_out != {"out": 1}:
        raise RuntimeError(f"the row did not arrive: {report.rows_out}")
    return seen


def main() -> None:
    """Print the files that the row passes, and the climbs."""
    with tempfile.TemporaryDirectory(prefix="statelake-walk-") as scratch:
        seen = walk(Path(scratch), local_session())
    for file, functions in sorted(seen.passed.items()):
        print(f"  {file}: {', '.join(sorted(functions))}")
    for (caller, function), (called, back) in sorted(seen.climbs):
        print(f"  climbs from {caller} ({function}) to {called} ({back})")
    print(f"files passed = {len(seen.passed)}, climbs = {len(seen.climbs)}")


if __name__ == "__main__":
    main()
