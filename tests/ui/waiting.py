"""Wait for a condition, not for a time."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], bool], *, what: str, within_s: float, every_s: float = 0.5) -> None:
    """Return as soon as the condition holds.

    Raises:
        TimeoutError: it did not in time; the message says what was waited for.
    """
    end = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {within_s:.0f} s")
        time.sleep(every_s)
