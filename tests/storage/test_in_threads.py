"""Calls side by side: their order, their failures, and the threads that are kept for them."""

from __future__ import annotations

import os
import signal
import threading
import weakref
from threading import Barrier, Event, Thread
from time import sleep
from typing import Any

import pytest

from state_engine.storage.stores.in_threads import in_threads


def name_of_thread(_: Any) -> str:
    return threading.current_thread().name


def test_results_come_in_the_order_of_the_items_and_calls_run_side_by_side() -> None:
    together = Barrier(4)

    def one(number: int) -> int:
        together.wait(timeout=20)  # would break, were there fewer threads
        return -number

    assert list(in_threads(one, range(4))) == [0, -1, -2, -3]
    assert list(in_threads(name_of_thread, [0])) == [threading.current_thread().name]


def test_results_are_those_of_the_caller_alone() -> None:
    class Result:
        pass

    given: list[weakref.ref[Result]] = []
    for result in in_threads(lambda _: Result(), range(50)):
        given.append(weakref.ref(result))
        assert sum(one() is not None for one in given) <= 10  # a thread may still hold its last one


def test_threads_are_kept() -> None:
    threads = {one for _ in range(20) for one in in_threads(lambda _: threading.current_thread(), range(4))}
    assert len(threads) <= 8


def test_calls_that_have_begun_go_on_to_their_end_and_others_are_not_made() -> None:
    begun, ended, called = Event(), Event(), []

    def one(number: int) -> None:
        called.append(number)
        if number == 0:
            begun.wait(20)
            raise ValueError("the first")
        if number == 1:
            begun.set()
            sleep(0.2)
            ended.set()
        sleep(0.01)
        raise ValueError("a later one")

    with pytest.raises(ValueError, match="the first"):
        list(in_threads(one, range(1_000)))
    assert ended.is_set()
    assert len(called) < 1_000
    assert list(in_threads(abs, [-1, -2])) == [1, 2]


def test_calls_inside_of_calls_end() -> None:
    def outer(number: int) -> list[int]:
        return list(in_threads(lambda inner: number * inner, range(3)))

    done: list[list[int]] = []
    thread = Thread(target=lambda: done.extend(in_threads(outer, range(20))), daemon=True)
    thread.start()
    thread.join(timeout=20)
    assert done == [[0, number, 2 * number] for number in range(20)]


def test_nobody_waits_for_what_others_gave_the_threads_to_do() -> None:
    """Else two would wait for each other: one for a thread, and all threads for what only he can give."""
    given = Event()
    others = [Thread(target=lambda: list(in_threads(lambda _: given.wait(20), range(20)))) for _ in range(2)]
    for other in others:
        other.start()
    sleep(0.1)  # all threads wait now
    try:
        assert list(in_threads(abs, [-1, -2, -3])) == [1, 2, 3]
        assert not given.is_set()
    finally:
        given.set()
        for other in others:
            other.join()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_has_threads_of_its_own() -> None:
    list(in_threads(abs, [1, 2]))
    child = os.fork()
    if not child:
        signal.alarm(20)
        try:
            os._exit(0 if list(in_threads(abs, [-1, -2])) == [1, 2] else 1)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
