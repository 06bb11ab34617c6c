"""``SourceFunction``: a source written as a loop that collects elements, with state of its own.

Mirrors ``org.apache.flink.streaming.api.functions.source.SourceFunction`` and its ``SourceContext``. Flink's sources
run for ever; here each micro-batch runs ``run`` anew, from the state of the last one, and stops it after so many
elements:

1. When the batch is full, ``cancel`` is called from within ``collect``, which then returns as always: a loop over a
   flag that ``cancel`` clears ends by itself, after its change of state.
2. Where ``run`` goes on nevertheless, it is ended by ``BatchFull`` when it next enters the checkpoint lock, or collects
   outside of it: before the element is taken, never within a locked section.

So what is done in one locked section is atomic: its elements and its changes of state are both in the batch or both
not. A locked section that collects several elements may overfill a batch. All of it happens in one thread: the lock
marks sections, it holds nobody up.

3. Where ``run`` returns by itself, the source is finished for good, as in Flink. One that has nothing for now calls
   ``mark_as_temporarily_idle``, which ends the batch as a full one ends.

A function without state of its own begins anew in every batch, so it either fits into one batch, or has no end. Of such
a function ``cancel`` is called only when it wants to collect more than fits: so one that returns after as many elements
as a batch holds is known to be finished.
"""

from __future__ import annotations

import contextlib
from typing import Any

from state_engine.core.function import Function


class BatchFull(BaseException):
    """Ends ``run`` where it goes on after ``cancel``. Not an Exception, so that ``except Exception`` lets it pass."""


class CheckpointLock:
    """What ``with`` takes around the output of an element and the change of state that belongs to it."""

    def __init__(self, context: SourceContext) -> None:
        self._context, self._depth = context, 0

    def acquire(self) -> bool:
        """Enter a section; sections may be nested."""
        self._context._stop_if_full(locked=self._depth > 0)
        self._depth += 1
        return True

    def release(self) -> None:
        if self._depth == 0:
            raise RuntimeError("the checkpoint lock was released without being held")
        self._depth -= 1

    def locked(self) -> bool:
        return self._depth > 0

    def __enter__(self) -> CheckpointLock:
        self.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


class SourceContext:
    """Given to ``run``: where elements go.

    Attributes:
        values, timestamps: what was collected in this batch; the time of an element is None where none was given.
        full: whether the batch has all the elements it was meant to have.
        idle: whether the source said that it has nothing for now.
        finished: whether ``run`` returned without having been asked to.
    """

    def __init__(
        self, function: SourceFunction, *, max_elements: int, normalise: Any = None, stateful: bool = True
    ) -> None:
        self._function, self._max, self._normalise = function, max_elements, normalise
        self._stateful, self._cancelled = stateful, False
        self._lock = CheckpointLock(self)
        self.values: list[Any] = []
        self.timestamps: list[int | None] = []
        self.full = self.idle = self.finished = False

    def collect(self, element: Any) -> None:
        """Emit one element. Raises ValueTypeError where it has not the declared type."""
        self._take(element, None)

    def collect_with_timestamp(self, element: Any, timestamp: int) -> None:
        """Emit one element with its event time in milliseconds."""
        self._take(element, timestamp)

    def get_checkpoint_lock(self) -> CheckpointLock:
        """The lock that makes outputs and changes of state atomic."""
        return self._lock

    def mark_as_temporarily_idle(self) -> None:
        """Say that there is nothing for now: the batch ends here, and a later one runs the source again."""
        self.idle = True
        self._cancel()

    def _take(self, element: Any, timestamp: int | None) -> None:
        self._stop_if_full(locked=self._lock.locked())
        self.values.append(element if self._normalise is None else self._normalise(element))
        self.timestamps.append(timestamp)
        if not self.full and len(self.values) >= self._max:
            self.full = True
            if self._stateful:
                self._cancel()

    def _cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._function.cancel()

    def _stop_if_full(self, *, locked: bool) -> None:
        if (self.full or self.idle) and not locked:
            self._cancel()
            raise BatchFull

    def _returned(self) -> None:
        self.finished = not self._cancelled


class SourceFunction(Function):
    """A source; mix in ``ListCheckpointed`` or ``CheckpointedFunction`` to go on where the last batch ended.

    Example:
        >>> class Counter(SourceFunction):
        ...     def __init__(self):
        ...         self.offset, self.running = 0, True
        ...     def run(self, ctx):
        ...         while self.running:
        ...             with ctx.get_checkpoint_lock():
        ...                 ctx.collect(self.offset)
        ...                 self.offset += 1
        ...     def cancel(self):
        ...         self.running = False
        >>> counter = Counter()
        >>> run_source(counter, max_elements=3).values, counter.offset
        ([0, 1, 2], 3)
    """

    def run(self, ctx: SourceContext) -> None:
        """Collect elements until ``cancel`` is called; to return before that is to be finished for good."""
        raise NotImplementedError(f"{type(self).__name__} must define run(self, ctx)")

    def cancel(self) -> None:
        """Called when the batch ends: let ``run`` return."""
        raise NotImplementedError(f"{type(self).__name__} must define cancel(self)")


def run_source(
    function: SourceFunction, *, max_elements: int, normalise: Any = None, stateful: bool = True
) -> SourceContext:
    """Run an opened source for one micro-batch; what it collected, and whether it was full, is in what comes back.

    Args:
        function: its state is what it was given before, and afterwards that after the last element collected.
        max_elements: at least 1; a locked section may add to it.
        normalise: makes an element what it was declared to be.
        stateful: whether the function goes on where it was; else each batch begins again.
    """
    if max_elements < 1:
        raise ValueError(f"max_elements must be at least 1, got {max_elements}")
    context = SourceContext(function, max_elements=max_elements, normalise=normalise, stateful=stateful)
    with contextlib.suppress(BatchFull):
        function.run(context)
        context._returned()
    return context
