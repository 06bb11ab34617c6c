"""The total order of outputs: where those of timers stand among those of elements.

Outputs inherit the order of the elements they came from. The place of a timer's output is made so that it depends
neither on where batches are cut nor on the parallelism: what was due when the batch began stands first, event-time
timers in front; an event-time timer stands right after the element that moves the watermark to its time; what was due
when it was set counts as output of the element that set it; an event-time timer that only draining fired stands behind
all elements, where its time puts it. Timers of one place are in the order of their times and of their keys' hashes. Not
in Flink, where order between keys is an accident of scheduling. Decision 0003.

This is the definition, which the harness sorts by. ``microbatch.subtask.order_columns`` says the same in columns.
Random jobs (``tests/microbatch/test_random_jobs.py``) compare both, by an operator whose results depend on the order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from state_engine.core.operator.outputs import BroadcastOrigin, TimerOrigin
from state_engine.core.time.timer_firing import key_order
from state_engine.core.time.timers import AT_ONCE, IN_TIME, OVERDUE

_OVERDUE, _BROADCAST, _FIRST, _ELEMENTS = range(4)
_STAGES = {OVERDUE: _OVERDUE, AT_ONCE: _FIRST, IN_TIME: _ELEMENTS}


def place_of_output(origin: Any, element: Callable[[int], tuple[int, int]]) -> tuple[Any, ...]:
    """A sort key; outputs of one key stay in the order they were yielded, so sort with a stable sort.

    Args:
        element: gives, for the index of an element in its subtask's input, the watermark before the element and the
            element's number in the total order of all subtasks.

    Example:
        >>> in_order = [(4, 0), (5, 1), (9, 2)]
        >>> timer = TimerOrigin(IN_TIME, 7, "key")
        >>> sorted([2, timer, 1], key=lambda origin: place_of_output(origin, in_order.__getitem__)) == [1, timer, 2]
        True
    """
    if isinstance(origin, TimerOrigin):
        return _STAGES[origin.stage], origin.at, 0, *key_order(origin.key)
    if isinstance(origin, BroadcastOrigin):
        return _BROADCAST, 0, 0, origin.element
    watermark_ms, number = element(origin)
    return _ELEMENTS, watermark_ms, 1, number
