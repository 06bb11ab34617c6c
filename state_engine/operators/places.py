"""The place of a row in a sorted map: its event time, and a number that counts the rows of one time.

Rows of a key come to a function in the total order, at any cut of batches and any parallelism. So the
number keeps that order among rows of one time, and no row need carry it.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from state_engine.core.state.sorted_map_state import SortedMapState
from state_engine.core.types.every_type import StructType
from state_engine.core.types.timestamps import MAX_TIMESTAMP
from state_engine.operators.aggregates.accumulators import BIGINT

PLACE = StructType(["at", "n"], [BIGINT, BIGINT])
"""Type of the key of such a map."""


def number_behind(entries: SortedMapState, time: tuple[Any, ...]) -> int:
    """The number of the next row of a time: one more than that of the last such row.

    Args:
        time: the map key without the number.
    """
    newest = entries.last_entry()
    if newest is None or newest[0][:-1] != time:
        newest = next(iter(deque(entries.sub_items((*time, 0), (*time, MAX_TIMESTAMP)), maxlen=1)), None)
    return 0 if newest is None else int(newest[0][-1]) + 1
