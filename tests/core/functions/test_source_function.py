"""Sources written as loops: bounded batches in which outputs and state are atomic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from state_engine.core.functions.source_function import SourceContext, SourceFunction, run_source


class Counts(SourceFunction):
    """Counts on in the given way; may ignore ``cancel``."""

    def __init__(self, way: Callable[[Any, SourceContext], None], *, obeys: bool = True) -> None:
        self.way, self.obeys = way, obeys
        self.offset, self.running = 0, True

    def run(self, ctx: SourceContext) -> None:
        while self.running:
            self.way(self, ctx)

    def cancel(self) -> None:
        self.running = not self.obeys


def locked(source: Any, ctx: SourceContext) -> None:
    with ctx.get_checkpoint_lock():
        ctx.collect(source.offset)
        source.offset += 1


def state_first(source: Any, ctx: SourceContext) -> None:
    with ctx.get_checkpoint_lock():
        source.offset += 1
        ctx.collect(source.offset - 1)


def in_pairs(source: Any, ctx: SourceContext) -> None:
    with ctx.get_checkpoint_lock():
        source.offset += 2
        ctx.collect(source.offset - 2)
        with ctx.get_checkpoint_lock():
            ctx.collect(source.offset - 1)


def unlocked(source: Any, ctx: SourceContext) -> None:
    ctx.collect_with_timestamp(source.offset, source.offset * 10)
    source.offset += 1


@pytest.mark.parametrize("way", [locked, state_first, in_pairs, unlocked])
@pytest.mark.parametrize("obeys", [True, False])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_outputs_and_state_are_atomic(way: Any, obeys: bool, size: int) -> None:
    source, seen = Counts(way, obeys=obeys), []
    for _ in range(4):
        source.running = True
        batch = run_source(source, max_elements=size)
        assert batch.full
        assert len(batch.values) == size + (way is in_pairs and size % 2)
        seen += batch.values
        assert source.offset == len(seen)
    assert seen == list(range(len(seen)))


class Six(SourceFunction):
    """Six elements and no state."""

    def run(self, ctx: SourceContext) -> None:
        for i in range(6):
            ctx.collect(i)

    def cancel(self) -> None:
        pass


@pytest.mark.parametrize(("size", "finished"), [(5, False), (6, True), (7, True)])
def test_a_function_without_state_that_returns_is_finished(size: int, finished: bool) -> None:
    batch = run_source(Six(), max_elements=size, stateful=False)
    assert (batch.values, batch.full, batch.finished) == (list(range(min(size, 6))), size <= 6, finished)


def test_a_full_batch_of_a_stateful_source_says_nothing_of_its_end() -> None:
    source = Counts(locked)
    assert not run_source(source, max_elements=3).finished
    source.running = False
    assert run_source(source, max_elements=3).finished


@pytest.mark.parametrize("obeys", [True, False])
def test_an_idle_source_ends_the_batch_and_is_not_finished(obeys: bool) -> None:
    def polls(source: Any, ctx: SourceContext) -> None:
        if source.offset == 2:
            ctx.mark_as_temporarily_idle()
        else:
            locked(source, ctx)

    def keeps_polling(source: Any, ctx: SourceContext) -> None:
        with ctx.get_checkpoint_lock():
            polls(source, ctx)

    batch = run_source(Counts(keeps_polling, obeys=obeys), max_elements=9)
    assert (batch.values, batch.full, batch.idle, batch.finished) == ([0, 1], False, True, False)


def test_a_source_that_returns_before_the_batch_is_full_is_finished() -> None:
    class Ends(SourceFunction):
        def run(self, ctx: SourceContext) -> None:
            ctx.collect(1)

    batch = run_source(Ends(), max_elements=5)
    assert (batch.values, batch.timestamps, batch.full, batch.finished) == ([1], [None], False, True)


def test_times_are_kept_and_elements_normalised() -> None:
    batch = run_source(Counts(unlocked), max_elements=2, normalise=float)
    assert (batch.values, batch.timestamps) == ([0.0, 1.0], [0, 10])
    assert type(batch.values[0]) is float


def test_a_careless_handler_does_not_keep_a_full_batch_open() -> None:
    def careless(source: Any, ctx: SourceContext) -> None:
        try:
            ctx.collect(1)
        except Exception:
            pytest.fail("took the end of the batch for an error")

    assert run_source(Counts(careless, obeys=False), max_elements=2).values == [1, 1]


def test_errors_come_out() -> None:
    def fails(source: Any, ctx: SourceContext) -> None:
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        run_source(Counts(fails), max_elements=2)
    with pytest.raises(ValueError, match="max_elements must be at least 1, got 0"):
        run_source(Counts(locked), max_elements=0)
    with pytest.raises(NotImplementedError, match="must define run"):
        run_source(SourceFunction(), max_elements=1)
    with pytest.raises(RuntimeError, match="without being held"):
        SourceContext(SourceFunction(), max_elements=1).get_checkpoint_lock().release()
