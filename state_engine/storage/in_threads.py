"""Calls that wait for files, several at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_AT_A_TIME = 8


def in_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """What a function gives for each item, in their order; nothing is called before the first is asked for.

    A single item is done in this thread: to start another one costs more than to open a local file.

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
    with ThreadPoolExecutor(min(_AT_A_TIME, len(todo)), thread_name_prefix="statelake-files") as pool:
        yield from pool.map(function, todo)
