"""Calls that wait for files, several at a time."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_AT_A_TIME = 8


def in_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """What a function gives for each item, in their order; nothing is called before the first is asked for.

    A single item is done in this thread: to hand it to another one costs more than to open a local file. So are items
    that no thread has begun when their turn comes, so nobody waits for what others gave the threads to do.

    Raises:
        Exception: of the first item, in their order, whose call fails; calls that have begun go on to their end.

    Example:
        >>> list(in_threads(len, ["a", "bcd"]))
        [1, 3]
    """
    todo = list(items)
    if len(todo) < 2:
        yield from map(function, todo)
        return
    calls = deque(_threads().submit(function, item) for item in todo)
    try:
        for item in todo:
            call = calls.popleft()  # its result belongs to the caller alone
            yield function(item) if call.cancel() else call.result()
    finally:
        wait([call for call in calls if not call.cancel()])


@lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    """They are kept: to start them, and to wait for their ends, takes longer than to read a few local files."""
    return ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="statelake-files")


os.register_at_fork(after_in_child=_threads.cache_clear)  # a fork has none of the threads
