"""Waiting for a condition instead of a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


def until(
    condition: Callable[[], Value | None], what: str, *, within_s: float = 300.0, every_s: float = 0.2
) -> Value:
    """The first true value of a condition.

    Raises:
        TimeoutError: there was none in time; the message names ``what``.
    """
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {within_s:.0f} s")
        time.sleep(every_s)
    return value
