"""What a process keeps of the logs of tables that sources read, while several threads ask."""

from __future__ import annotations

import sys
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from state_engine.sources.delta_table import kept_newest


def test_the_newest_values_are_kept() -> None:
    kept: OrderedDict[int, str] = OrderedDict()
    made: list[int] = []

    def value(key: int) -> str:
        def make() -> str:
            made.append(key)
            return str(key)

        return kept_newest(kept, key, make, most=2)

    assert [value(key) for key in (1, 2, 2, 3, 1)] == ["1", "2", "2", "3", "1"]
    assert made == [1, 2, 3, 1]
    assert list(kept) == [3, 1]


def test_threads_may_ask_at_once() -> None:
    """One lets go of what another one has just made."""
    kept: OrderedDict[int, int] = OrderedDict()

    def ask(first: int) -> bool:
        return all(kept_newest(kept, n, partial(int, n), most=1) == n for n in range(first, first + 4000))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            assert all(threads.map(ask, range(1, 40_000, 10_000)))
    finally:
        sys.setswitchinterval(before)
