"""Outputs of a function over columns, as columns, and the row or timer that each came from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from state_engine.core.functions.output_tag import OutputTag
from state_engine.core.operator.outputs import Origin, TimerOrigin
from state_engine.core.time.timers import IN_TIME, OVERDUE
from state_engine.core.types.row import RowKind
from state_engine.core.types.timestamps import MIN_TIMESTAMP

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
        return TimerOrigin(
            int(self.stages(np.array([place]))[0]), at, key_at(self.keys, int(self.key_of[place]))
        )

    @property
    def of_timers(self) -> Numbers:
        came: Numbers = self.rows == _OF_TIMER
        return came

    def stages(self, places: Numbers) -> Numbers:
        stages: Numbers = np.where(self.at[places] <= self.start_ms, OVERDUE, IN_TIME)
        return stages

    def take(self, places: Numbers) -> ColumnOrigins:
        return replace(self, rows=self.rows[places], at=self.at[places], key_of=self.key_of[places])

    def among(self, places: Numbers) -> ColumnOrigins:
        """With other numbers of rows: of each row its place."""
        rows = np.where(self.of_timers, _OF_TIMER, places[self.rows] if len(places) else _OF_TIMER)
        return replace(self, rows=rows)

    def in_order(self, watermarks: pa.Array | None) -> Numbers | None:
        """The total order of outputs, as of ``output_order``; None where they stand in it.

        Args:
            watermarks: the one before each row of the batch; None where there are none.
        """
        of_timers = self.of_timers
        if not of_timers.any():
            return np.argsort(self.rows, kind="stable") if (np.diff(self.rows) < 0).any() else None
        before = np.full(len(self), MIN_TIMESTAMP)
        if watermarks is not None and not of_timers.all():
            before[~of_timers] = watermarks.to_numpy(zero_copy_only=False)[self.rows[~of_timers]]
        before[of_timers] = np.maximum(self.at[of_timers], MIN_TIMESTAMP + 1) - 1
        hashes = self.key_of if self.hashes is None else self.hashes[self.key_of] * of_timers
        order: Numbers = np.lexsort((self.key_of, hashes, self.rows, of_timers, before))
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
    tag: OutputTag | None = None

    def in_order(self, watermarks: pa.Array | None) -> ColumnOutputs:
        """In total order; see ``ColumnOrigins``."""
        order = self.origins.in_order(watermarks)
        if order is None:
            return self
        at = pa.array(order)
        times, kinds = (None if c is None else c.take(at) for c in (self.times_ms, self.kinds))
        return ColumnOutputs(self.table.take(at), self.origins.take(order), times, kinds, self.tag)


def key_at(keys: pa.Table, number: int) -> Any:
    """A key of a batch: a value, or the values of its columns."""
    of_key = tuple(keys.slice(number, 1).to_pylist()[0].values())
    return of_key if len(of_key) > 1 else of_key[0]
