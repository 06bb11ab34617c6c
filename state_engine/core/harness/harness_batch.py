"""``HarnessBatch``: the elements of one micro-batch of a harness, dealt out to its subtasks.

The part that sources and the shuffle play on the engine, for ``state_engine.testing``: it knows every element's key,
time and subtask and the watermark before it, and puts the outputs of all subtasks back into their total order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from state_engine.core.harness.harness_run import HarnessRun
from state_engine.core.harness.subtask_elements import SubtaskElements
from state_engine.core.operator.output_order import place_of_output
from state_engine.core.operator.outputs import Origin, TimerOrigin
from state_engine.core.time.watermarks import combined, moves_of, watermarks_before
from state_engine.core.types.row import RowKind
from state_engine.core.types.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP


@dataclass(frozen=True)
class HarnessBatch:
    """Elements in their total order.

    Attributes:
        elements: of one input; pairs of input (0 or 1) and element where there are two.
        keys: of the elements; None where the stream is not keyed.
        stamps: event times in milliseconds.
        marks: the watermark before every element, and after the last one.
        ends_ms: the watermark of every input after the batch.
        parts: the positions of the elements that each subtask gets.
        idle: inputs that hold back no other one; they have no element.
    """

    elements: list[Any]
    keys: list[Any] | None
    stamps: list[int | None]
    marks: list[int]
    ends_ms: list[int]
    parts: list[list[int]]
    idle: frozenset[int] = frozenset()
    kinds: list[RowKind] | None = None

    def of(self, subtask: int, broadcast: Sequence[tuple[Any, int | None, RowKind]]) -> SubtaskElements:
        mine = self.parts[subtask]
        return SubtaskElements(
            None if self.keys is None else [self.keys[i] for i in mine],
            [self.elements[i] for i in mine],
            [self.stamps[i] for i in mine],
            [self.marks[i] for i in mine],
            None if self.kinds is None else [self.kinds[i] for i in mine],
            broadcast,
        )

    def in_order(self, runs: list[HarnessRun], tag: str | None) -> tuple[list[Any], list[int | None]]:
        """The outputs of all subtasks in total order, and their event times; of a side output by the id of its tag."""
        placed: list[tuple[Any, Any, int | None]] = []
        for run in runs:
            out = run.out if tag is None else run.out.side.get(tag)
            if out is not None:
                places = [place_of_output(origin, self._place_in(run.subtask)) for origin in out.origins]
                times = [self._time_of(origin, run.subtask) for origin in out.origins]
                for place, own_ms in out.times_ms.items():
                    times[place] = own_ms
                placed += zip(places, out.values, times, strict=True)
        placed.sort(key=lambda one: one[0])
        return [value for _, value, _ in placed], [time for _, _, time in placed]

    def _time_of(self, origin: Origin, subtask: int) -> int | None:
        """Event time of an output that has none of its own; None of what came from a broadcast element."""
        if isinstance(origin, int):
            return self.stamps[self.parts[subtask][origin]]
        return origin.event_ms if isinstance(origin, TimerOrigin) else None

    def _place_in(self, subtask: int) -> Callable[[int], tuple[int, int]]:
        mine = self.parts[subtask]
        return lambda index: (self.marks[mine[index]], mine[index])


def watermarks(
    start_ms: Sequence[int],
    stamps: list[int | None],
    inputs: list[int],
    *,
    out_of_orderness_ms: int | None,
    idle: Collection[int] = (),
    least_ms: int = MIN_TIMESTAMP,
) -> tuple[list[int], list[int]]:
    """The watermark before every element and after the last one, and that of every input after the batch.

    Args:
        out_of_orderness_ms: None where elements do not move it.
        least_ms: below which the watermark of the operator does not go.

    Example:
        >>> watermarks([0], [5, None, 3, 9], [0] * 4, out_of_orderness_ms=2)
        ([0, 2, 2, 2, 6], [6])
        >>> watermarks([0, 0], [50, 30, 90], [0, 1, 1], out_of_orderness_ms=0)
        ([0, 0, 29, 49], [49, 89])
    """
    if out_of_orderness_ms is None:
        return [combined_ms(start_ms, idle, least_ms)] * (len(stamps) + 1), list(start_ms)
    event_ms = np.array([MIN_TIMESTAMP if stamp is None else stamp for stamp in stamps], np.int64)
    delays = dict.fromkeys(range(len(start_ms)), out_of_orderness_ms)
    moves = moves_of(np.array(inputs, np.int64), event_ms, None, delays)
    ends = [max([start, *moves.to_ms[moves.origins == at].tolist()]) for at, start in enumerate(start_ms)]
    shown = [MAX_TIMESTAMP if at in idle else start for at, start in enumerate(start_ms)]
    before = watermarks_before(moves, shown, least_ms=least_ms).tolist()
    return [*before, combined_ms(ends, idle, least_ms)], ends


def combined_ms(of_inputs: Sequence[int], idle: Collection[int], least_ms: int) -> int:
    """``core.time.watermarks.combined`` of the inputs that are not idle, with numbers for all of them."""
    watermark_ms = combined((of for at, of in enumerate(of_inputs) if at not in idle), least_ms)
    return least_ms if watermark_ms is None else watermark_ms
