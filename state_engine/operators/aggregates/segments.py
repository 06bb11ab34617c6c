"""``Segments``: the rows of a batch key by key, for running results that are computed by whole columns.

The rows of a key stand together, in their order, and so do results; ``in_rows`` puts these back where the rows were.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pyarrow as pa

from state_engine.core.stable_order import stable_order

Column = np.ndarray[Any, Any]


class Segments:
    """Rows by key.

    Args:
        keys: the number of each row's key; every number from 0 to the largest is there.

    Attributes:
        starts, ends: the place of the first and of the last row of each key.
    """

    def __init__(self, keys: Column) -> None:
        self.order = stable_order(keys)
        self.keys = keys[self.order]
        self.starts = np.flatnonzero(np.r_[len(keys) > 0, self.keys[1:] != self.keys[:-1]][: len(keys)])
        self.ends = np.r_[self.starts[1:], len(keys)][: len(self.starts)] - 1
        self._place = np.empty(len(keys), np.int64)
        self._place[self.order] = np.arange(len(keys))

    def taken(self, column: pa.Array) -> pa.Array:
        return column.take(pa.array(self.order))

    def running(self, values: Column, start: Column) -> Column:
        """Sums of whole numbers from the first row of the key on, on top of a number for each key."""
        if len(start) == len(values):  # a row for each key
            return cast(Column, start + values)
        sums = np.cumsum(values, dtype=np.int64)
        base = start - sums[self.starts] + values[self.starts]
        return cast(Column, sums + base[self.keys])

    def sums(self, values: Column) -> Column:
        """The sum of whole numbers of each key."""
        return cast(Column, np.add.reduceat(values, self.starts)) if len(values) else values

    def largest(self, values: Column) -> float:
        """The largest sum of the magnitudes of a key's values; rounded."""
        if not len(values):
            return 0.0
        return float(np.add.reduceat(np.abs(values.astype(np.float64)), self.starts).max())

    def best(self, ranks: Column) -> Column:
        """The largest rank from the first row of the key on; ranks are whole numbers from 0 on."""
        step = int(ranks.max(initial=0)) + 1
        offset = self.keys * step
        return cast(Column, np.maximum.accumulate(ranks + offset) - offset)

    def in_rows(self, column: Any) -> Any:
        """A column that stands key by key, in the order of the rows."""
        return column[self._place] if isinstance(column, np.ndarray) else column.take(pa.array(self._place))
