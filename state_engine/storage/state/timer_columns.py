"""Timers as columns: hash of the key, time and domain, row for row, of a table of changes or entries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.state.descriptors import TIMERS
from state_engine.core.time.timers import EVENT
from state_engine.core.types.columns import one_chunk
from state_engine.storage.layout import state_column
from state_engine.storage.state.listed_files import Hashes, KeyGroups

Window = Mapping[str, tuple[int, int]]
"""By domain, a first and a last time, both inclusive; a domain that is not there is not asked for."""

TIMERS_COLUMN = state_column(TIMERS)


@dataclass(frozen=True)
class TimerColumns:
    """Changes or entries of timers, row for row.

    Attributes:
        are_event: whether they are event-time timers; else they are processing-time timers.
    """

    hashes: Hashes
    times: Hashes
    are_event: Hashes

    @classmethod
    def of_table(cls, table: pa.Table, domain: str | None = None) -> TimerColumns:
        """The rows of timers in a table of changes or entries.

        Args:
            domain: of all of them, where it was not read.
        """
        timer = one_chunk(table[TIMERS_COLUMN]).field("key")
        times = pc.struct_field(timer, "time")
        there = pc.is_valid(times)
        if domain is None:
            are_event = pc.equal(pc.struct_field(timer, "domain"), EVENT).filter(there)
        else:
            are_event = pa.repeat(domain == EVENT, pc.sum(there).as_py() or 0)
        return cls(
            table["key_hash"].filter(there).to_numpy(),
            times.filter(there).to_numpy(),
            are_event.to_numpy(zero_copy_only=False),
        )

    def within(self, window: Window) -> Hashes:
        inside = np.zeros(len(self.times), bool)
        for domain, (first, last) in window.items():
            inside |= self.of(domain) & (self.times >= first) & (self.times <= last)
        return inside

    def of(self, domain: str) -> Hashes:
        return self.are_event if domain == EVENT else ~self.are_event

    def those(self, rows: Hashes) -> TimerColumns:
        return TimerColumns(self.hashes[rows], self.times[rows], self.are_event[rows])

    def counting(self, counts: KeyGroups | None) -> TimerColumns:
        """The rows of some key groups; None for all."""
        return self if counts is None else self.those(counts.hold(self.hashes))
