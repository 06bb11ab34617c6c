"""What a function over columns put out, as columns, and where each output came from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from state_engine.core.operator.outputs import Origin, TimerOrigin
from state_engine.core.time.timers import IN_TIME, OVERDUE
from state_engine.core.types.row import RowKind

Numbers = np.ndarray[Any, Any]
KINDS = [str(kind) for kind in RowKind]
"""The texts of kinds, by ``RowKind.value``."""
_OF_TIMER = -1


@dataclass(frozen=True)
class ColumnOrigins:
    """Where outputs came from: a row, or a timer of a key.

    Attributes:
        rows: the number of the row; -1 of one that came from a timer.
        at: the time of the timer, in milliseconds; of a row anything.
        key_of: the number of the timer's key, likewise.
        start_ms: the watermark before the batch: what was due by then stands in front.
        keys: of the batch, as they are declared.
        hashes: of the keys, where they are known.
    """

    rows: Numbers
    at: Numbers
    key_of: Numbers
    start_ms: int
    keys: pa.Table
    hashes: Numbers | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> Origin:
        if self.rows[place] != _OF_TIMER:
            return int(self.rows[place])
        at = int(self.at[place])
        return TimerOrigin(int(self.stages(np.array([place]))[0]), at, key_at(self.keys, int(self.key_of[place])))

    @property
    def of_timers(self) -> Numbers:
        """Which outputs came from a timer."""
        came: Numbers = self.rows == _OF_TIMER
        return came

    def stages(self, places: Numbers) -> Numbers:
        """The stages in which the timers of some outputs fired."""
        stages: Numbers = np.where(self.at[places] <= self.start_ms, OVERDUE, IN_TIME)
        return stages

    def take(self, places: Numbers) -> ColumnOrigins:
        return replace(self, rows=self.rows[places], at=self.at[places], key_of=self.key_of[places])

    def among(self, places: Numbers) -> ColumnOrigins:
        """With other numbers of rows: of each row its place."""
        rows = np.where(self.of_timers, _OF_TIMER, places[self.rows] if len(places) else _OF_TIMER)
        return replace(self, rows=rows)

    def in_order(self) -> Numbers | None:
        """The order of outputs in which those of a row, or of a timer, stand together; None where they do."""
        columns = (self.key_of, self.at, self.rows) if self.of_timers.any() else (self.rows,)
        rows = np.where(self.of_timers, np.iinfo(np.int64).max, self.rows)
        if not self.of_timers.any():
            return np.argsort(rows, kind="stable") if (np.diff(rows) < 0).any() else None
        order: Numbers = np.lexsort((*columns[:2], rows))
        return None if (np.diff(order) == 1).all() else order


@dataclass
class ColumnOutputs:
    """Outputs of a stream, or of a side output.

    Attributes:
        times_ms: event times of their own; null of those that have none. None where none has.
        kinds: ``RowKind.value`` of each; None where outputs have no kinds.
    """

    table: pa.Table
    origins: ColumnOrigins
    times_ms: pa.Array | None = None
    kinds: pa.Array | None = None

    def in_order(self) -> ColumnOutputs:
        """With those of a row, or of a timer, together."""
        order = self.origins.in_order()
        if order is None:
            return self
        at = pa.array(order)
        times, kinds = (None if c is None else c.take(at) for c in (self.times_ms, self.kinds))
        return ColumnOutputs(self.table.take(at), self.origins.take(order), times, kinds)


def key_at(keys: pa.Table, number: int) -> Any:
    """A key of a batch: a value, or the values of its columns."""
    of_key = tuple(keys.slice(number, 1).to_pylist()[0].values())
    return of_key if len(of_key) > 1 else of_key[0]
