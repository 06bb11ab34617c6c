"""The times of a schedule: the storage's, simulated long pauses, and the wrong clocks of the runners.

The storage has one clock: it goes with the machine's, ahead of it by the pauses so far, and every file bears its time.
Each actor has a clock of its own, which may be days ahead or behind and may jump, and a steady counter, which may have
stood still while hours passed, as that of a machine that was frozen does.
"""

from __future__ import annotations

import time
from typing import Any

import pyarrow.fs as pafs
import pytest

from state_engine.operations import file_collector
from state_engine.storage.delta import commit_actions
from state_engine.storage.stores import store_clock
from tests.protocol.interleaving import actor_here

_GRAIN_S = 0.012
"""File systems give times in steps of a few milliseconds: no file is written so shortly before or after a pause."""
_MTIME = store_clock.written_ms


class Clock:
    """A clock that is ahead of the machine's."""

    def __init__(self) -> None:
        self.ahead_ms = 0
        self._pauses: list[tuple[float, int]] = []

    def pass_hours(self, hours: int) -> None:
        """All processes stand still for so long."""
        time.sleep(_GRAIN_S / 2)
        self.ahead_ms += hours * 3_600_000
        self._pauses.append((time.time() * 1000, self.ahead_ms))
        time.sleep(_GRAIN_S / 2)

    # -- of the storage --------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """The true time."""
        return time.time_ns() // 1_000_000 + self.ahead_ms

    def written_ms(self, info: pafs.FileInfo) -> int:
        """When a file was written: the machine's time and the pauses before it."""
        real_ms = _MTIME(info)
        return real_ms + max((ahead for at, ahead in self._pauses if at <= real_ms), default=0)

    # -- of whoever is running -------------------------------------------------------------------------------------

    def local_ms(self) -> int:
        """The time as an actor sees it."""
        actor = actor_here()
        return self.now_ms() + (actor.skew_ms if actor else 0)

    def steady_ns(self) -> int:
        """The counter of an actor's machine."""
        actor = actor_here()
        saw_ms = 0 if actor is not None and actor.frozen else self.ahead_ms
        return time.monotonic_ns() + saw_ms * 1_000_000

    def time_ns(self) -> int:
        return self.local_ms() * 1_000_000

    def time(self) -> float:
        return self.local_ms() / 1000

    def rule(self, patch: pytest.MonkeyPatch) -> None:
        """Make the engine use these clocks."""
        moment: Any = self
        patch.setattr(store_clock, "written_ms", self.written_ms)
        patch.setattr(store_clock, "_steady_ns", self.steady_ns)
        for module in (commit_actions, file_collector, store_clock):
            patch.setattr(module, "time", moment)
