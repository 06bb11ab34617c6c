"""A function of windows that raises at one of them: the window is a dead letter, and the others of its key come out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from state_engine import (
    Cumulating,
    EmbeddedRocksDBStateBackend,
    FileSource,
    ProcessWindowFunction,
    Session,
    Sliding,
    StatefulJob,
    Tumbling,
    ValueStateDescriptor,
    sum_,
)
from state_engine.core.errors import ConfigurationError, UserFunctionError
from state_engine.core.functions.window_functions import WindowFunction
from state_engine.testing import CollectSink, MemoryRun, run_in_memory

ROWS = "k string, n bigint, at timestamp"
RESULT = "k string, begins timestamp, n bigint"
START = datetime(2026, 1, 1, tzinfo=UTC)
MINUTES = [
    ("u", 1, 0),
    ("u", None, 1),
    ("w", 1, 1),
    ("u", 2, 100),
    ("w", 1, 100),
    ("u", 3, 200),
    ("u", 5, 201),
    ("w", 3, 401),
]
STATE = {"tumbling": "windows", "sliding": "slices", "cumulating": "slices", "session": "sessions"}
WINDOWS: dict[str, Any] = {
    "tumbling": Tumbling("1 h"),
    "sliding": Sliding("2 h", every="1 h"),
    "cumulating": Cumulating("3 h", every="1 h"),
    "session": Session("10 min"),
}
WRONG = {
    "tumbling": [("u", 0)], "sliding": [("u", -60), ("u", 0)], "cumulating": [("u", 0)] * 3, "session": [("u", 0)],
}  # fmt: skip
"""The beginnings, in minutes, of windows with a null."""


class Counts(ProcessWindowFunction):
    """Counts the rows of each window; raises where one has no number, in ``process`` or in ``clear``."""

    def __init__(self, fails: str, keeps: bool) -> None:
        self._fails, self._keeps = fails, keeps

    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Iterator[Any]:
        rows = list(elements)
        if self._keeps:
            context.window_state().get_state(SEEN).update(len(rows))
        self._null = any(row.n is None for row in rows)
        yield key, START, -1
        if self._null and self._fails == "process":
            raise ValueError("a null")
        yield key, datetime.fromtimestamp(context.window().start / 1000, UTC), len(rows)

    def clear(self, context: Any) -> None:
        if self._null and self._fails == "clear":
            raise ValueError("a null")


class Applied(WindowFunction):
    def apply(self, key: Any, window: Any, inputs: Iterable[Any]) -> Iterable[Any]:
        begins = datetime.fromtimestamp(window.start / 1000, UTC)
        return [(key, START, -1), (key, begins, sum(row.n // row.n for row in inputs))]


SEEN = ValueStateDescriptor("seen", int)


def job_of(windows: str, fails: str, *, backend: Any = None, on_error: Any = "dead_letter") -> StatefulJob:
    job = StatefulJob("windows", parallelism=2, on_error=on_error, state_backend=backend)
    rows = job.source("rows", FileSource("/rows", schema=ROWS), event_time="at").key_by("k")
    windowed = rows.window(WINDOWS[windows])
    if fails == "apply":
        results = windowed.apply(Applied(), output_type=RESULT, uid="counts")
    else:
        results = windowed.process(Counts(fails, windows != "session"), output_type=RESULT, uid="counts")
    results.sink("counts", CollectSink())
    return job


def rows_of(minutes: Iterable[tuple[str, int | None, int]]) -> list[tuple[Any, ...]]:
    return [(k, n, START + timedelta(minutes=minute)) for k, n, minute in minutes]


def counted(windows: str) -> dict[tuple[str, int], list[int]]:
    """By key and beginning in minutes the numbers of rows of windows, from their bounds alone."""
    times = [(k, n, int(timedelta(minutes=minute) / timedelta(milliseconds=1))) for k, n, minute in MINUTES]
    base = int(START.timestamp() * 1000)
    windows_of: dict[tuple[str, int, int], list[int | None]] = {}
    for k, n, at in times:
        if windows == "session":
            near = [t for key, _, t in times if key == k and abs(t - at) < 600_000]
            bounds = [(min(near), max(near) + 600_000)]
        else:
            bounds = [(w.start - base, w.end - base) for w in WINDOWS[windows].windows_of(base + at)]
        for start, end in bounds:
            windows_of.setdefault((k, start, end), []).append(n)
    results: dict[tuple[str, int], list[int]] = {}
    for (k, start, _), numbers in windows_of.items():
        if None not in numbers:
            results.setdefault((k, start // 60_000), []).append(len(numbers))
    return {place: sorted(numbers) for place, numbers in results.items()}


def minute_of(at: datetime) -> int:
    return (at - START) // timedelta(minutes=1)


def begin_of(letter: dict[str, Any]) -> int:
    """The beginning of a window that was refused, in minutes."""
    return minute_of(datetime.fromisoformat(json.loads(letter["row"])["window_start"]))


def left(run: MemoryRun, state: str) -> dict[Any, Any]:
    """The entries of a state, which is not there if none was ever left by a batch."""
    try:
        return run.state("counts", state)
    except ConfigurationError:  # no such state yet
        return {}


@pytest.mark.internal_errors
@pytest.mark.parametrize("size", [1, 3, pytest.param(100, marks=pytest.mark.more)])
@pytest.mark.parametrize("fails", ["process", "apply"])
@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize(
    "backend", [None, pytest.param(EmbeddedRocksDBStateBackend(), marks=pytest.mark.more)]
)
def test_a_window_whose_function_raises_is_a_letter(
    backend: Any, windows: str, fails: str, size: int
) -> None:
    with run_in_memory(job_of(windows, fails, backend=backend)) as run:
        rows = rows_of(MINUTES)
        for first in range(0, len(rows), size):
            run.process({"rows": rows[first : first + size]})
        run.process(drain=True)
        results: dict[tuple[str, int], list[int]] = {}
        for row in run.sink("counts"):
            if row.n > 0:
                results.setdefault((row.k, minute_of(row.begins)), []).append(row.n)
        assert {place: sorted(numbers) for place, numbers in results.items()} == counted(windows)
        assert sum(row.n < 0 for row in run.sink("counts")) == sum(map(len, results.values()))
        letters = run.dead_letters()
        assert sorted((letter["key"], begin_of(letter)) for letter in letters) == sorted(
            (f'{{"k": "{k}"}}', minute) for k, minute in WRONG[windows]
        )
        assert all("window" in letter["position"] for letter in letters)
        assert not run.state("counts", STATE[windows])
        assert not left(run, "seen")


@pytest.mark.more
@pytest.mark.internal_errors
@pytest.mark.parametrize("windows", ["tumbling", "session"])
def test_what_a_window_keeps_goes_where_clear_raises(windows: str) -> None:
    with run_in_memory(job_of(windows, "clear")) as run:
        run.process({"rows": rows_of(MINUTES)})
        run.process(drain=True)
        assert len(run.dead_letters()) == 1
        assert not run.state("counts", STATE[windows])
        assert not left(run, "seen")
        shown = sorted((row.k, minute_of(row.begins)) for row in run.sink("counts") if row.n > 0)
        assert shown == sorted([*counted(windows), *WRONG[windows]])


@pytest.mark.more
@pytest.mark.internal_errors
def test_a_window_whose_parts_do_not_fit_together_is_a_letter() -> None:
    job = StatefulJob("windows", on_error="dead_letter")
    rows = job.source("rows", FileSource("/rows", schema=ROWS), event_time="at")
    sums = rows.key_by("k").window(Sliding("2 h", every="1 h")).aggregate(total=sum_("n"), uid="counts")
    sums.sink("sums", CollectSink())
    with run_in_memory(job) as run:
        run.process({"rows": rows_of([("u", 2**62, 0), ("u", 2**62, 60), ("u", 5, 180)])})
        run.process(drain=True)
        shown = [(minute_of(row.window_start) // 60, row.total) for row in run.sink("sums")]
        assert sorted(shown) == [(-1, 2**62), (1, 2**62), (2, 5), (3, 5)]
        assert list(map(begin_of, run.dead_letters())) == [0]
        assert not run.state("counts", "slices")


@pytest.mark.more
@pytest.mark.internal_errors
def test_without_dead_letters_the_error_names_the_window() -> None:
    with run_in_memory(job_of("tumbling", "process", on_error="fail")) as run:
        run.process({"rows": rows_of(MINUTES[:3])})
        with pytest.raises(UserFunctionError, match=r"a window.*2026-01-01"):
            run.process(drain=True)
