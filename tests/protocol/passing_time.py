"""The time of all processes of a schedule: the machine's, and the long pauses that nobody sat out.

Names of attempts and times of rows tell how old they are; collection and giving up go by that.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta, tzinfo
from typing import Any
from uuid import UUID

import pytest
from uuid6 import uuid7

from state_engine.backends.delta import checkpoint_store
from state_engine.runtime import coordinator, maintenance, operations


class Clock:
    """Goes with the machine's clock, ahead of it.

    Attributes:
        ahead_ms: by how much; grows only.
    """

    def __init__(self) -> None:
        self.ahead_ms = 0

    def pass_hours(self, hours: int) -> None:
        """All processes stand still for so long."""
        self.ahead_ms += hours * 3_600_000

    def now_ms(self) -> int:
        return self.time_ns() // 1_000_000

    def time_ns(self) -> int:
        return time.time_ns() + self.ahead_ms * 1_000_000

    def now(self, zone: tzinfo | None = None) -> datetime:
        return datetime.now(zone) + timedelta(milliseconds=self.ahead_ms)

    def uuid7(self) -> UUID:
        """A name for an attempt that begins now; its time is in the first 48 of 128 bits."""
        return UUID(int=uuid7().int + (self.ahead_ms << 80))

    def rule(self, patch: pytest.MonkeyPatch) -> None:
        """Let the engine go by this clock."""
        moment: Any = self
        for module in (coordinator, maintenance, operations):
            patch.setattr(module, "uuid7", self.uuid7)
            patch.setattr(module, "datetime", moment)
        patch.setattr(checkpoint_store, "time", moment)
