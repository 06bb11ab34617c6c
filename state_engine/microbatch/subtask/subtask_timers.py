"""Stored timers of one subtask in one micro-batch: those that it may fire, and the first one that it leaves.

The parent checkpoint records when the first timers of every subtask are due. So where none of them is reached, and
none of the keys of the batch had the first one, no stored timer is looked at but those of these keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa

from state_engine.core.keys.key_groups import KeyGroupRange
from state_engine.core.state.descriptors import TIMERS
from state_engine.core.time.timers import EVENT, PROCESSING
from state_engine.core.types.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from state_engine.microbatch.subtask.subtask_spec import SubtaskSpec
from state_engine.storage.state.listed_files import Hashes, KeyGroups, KeyHashes
from state_engine.storage.state.located_files import StateFile
from state_engine.storage.state.stored_timers import StoredTimers, Window, those_within

Timers = Iterable[tuple[int, str]]
"""Times and domains."""


class SubtaskTimers:
    """See the module docstring.

    Args:
        files: that may hold entries of these key groups.
    """

    def __init__(self, spec: SubtaskSpec, own: KeyGroupRange, files: Sequence[StateFile]) -> None:
        self._spec, self._own, self._files = spec, own, files
        self._there = TIMERS in spec.recorded_states and spec.key_schema is not None
        recorded = [
            one.times_ms
            for one in spec.first_timers
            if (one.key_group_start, one.key_group_end) == (own.start, own.end)
        ]
        self._recorded = recorded[0] if recorded else None
        self._touched: dict[str, int] = {}
        self._same_hash: dict[str, int] = {}
        self._due_are_touched = False

    def may_be_due(self) -> Hashes:
        """Hashes of the keys that may have a timer which this batch fires; who asks touches those that have one."""
        self._due_are_touched = True
        return self._stored.hashes(self._window) if self._window else np.array([], np.int64)

    def due(self, changes: pa.Table | None = None) -> pa.Table | None:
        """The timers that this batch may fire, as entries of a base; None where there is none.

        Args:
            changes: of timers, in path order, with all those of the keys that may have a due one; None to read them.
        """
        if changes is None:
            return self._stored.within(self._window)
        return self._stored.among(changes, self._window)

    def due_of(self, timers: pa.Table) -> pa.Table | None:
        """Those of some timers that this batch may fire; None where there is none."""
        return those_within(timers, self._window)

    def saw(self, loaded: Iterable[tuple[bool, Timers]]) -> None:
        """Take note of the timers that were loaded: by key, whether it is touched, or has the hash of one that is."""
        for touched, timers in loaded:
            first = self._touched if touched else self._same_hash
            for time, domain in timers:
                first[domain] = min(time, first.get(domain, time))

    def first_of_others(self, touched: KeyHashes) -> dict[str, int]:
        """Time of the first stored timer of the keys that are not touched, by domain."""
        first = dict(self._same_hash)
        for domain, since_ms in self._since().items():
            if self._recorded is not None and self._touched.get(domain) != since_ms:
                at: int | None = since_ms  # it is there, and no touched key had it
            else:
                at = self._stored.first(domain, self._left_since(domain, since_ms), without=touched)
            if at is not None:
                first[domain] = min(at, first.get(domain, at))
        return first

    @cached_property
    def _window(self) -> Window:
        """Times of the timers that this batch fires; without the domains of which it fires none."""
        clocks = self._spec.clocks
        reached_ms = MAX_TIMESTAMP if clocks.drain else clocks.end_watermark_ms
        until = {EVENT: reached_ms, PROCESSING: clocks.clock_ms}
        since = self._since()
        return {domain: (since[domain], until[domain]) for domain in since if since[domain] <= until[domain]}

    def _left_since(self, domain: str, since_ms: int) -> int:
        """A time before which a key that is not touched has no timer: keys with a timer that is due are touched."""
        if not self._due_are_touched or domain not in self._window:
            return since_ms
        return min(self._window[domain][1], MAX_TIMESTAMP - 1) + 1

    def _since(self) -> dict[str, int]:
        """Times before which there is no timer, by domain; without the domains of which there is none."""
        if not self._there:
            return {}
        if self._recorded is not None:
            return self._recorded
        return {EVENT: MIN_TIMESTAMP, PROCESSING: MIN_TIMESTAMP}

    @cached_property
    def _stored(self) -> StoredTimers:
        spec = self._spec
        own = KeyGroups(spec.max_parallelism, (self._own,))
        return StoredTimers(self._files, own, spec.known_key_schema.storage, spec.max_parallelism)
