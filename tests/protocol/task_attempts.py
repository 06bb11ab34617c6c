"""Attempts of tasks as actors: a task runs twice, both write their files, either reports, the other goes on writing.

As on a Spark master that retries and speculates: the driver takes one report a task and knows nothing of what another
attempt left, be it whole, torn, or written when the checkpoint was long published or its files collected.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from state_engine.core.errors import SubtaskLostError
from tests.protocol.interleaving import Actor, Killed, actor_here, step

Report = TypeVar("Report")

AS_ACTORS, TORN = 0.35, 0.15
"""How likely attempts of a task are actors, and how likely one of these dies in the middle of a file."""
_ATTEMPTS, _PATIENCE = 4, 150


def reported(task: str, work: Callable[[int], Report]) -> Report:
    """What one attempt of a task reports.

    Args:
        work: writes the files of an attempt, whose names hold its number, and returns what to report.

    Raises:
        SubtaskLostError: all attempts died, or none came to an end.
    """
    driver = actor_here()
    if driver is None or driver.dice.random() > AS_ACTORS:
        return work(0)
    reports: list[Report] = []
    attempts: list[Actor] = []

    def begun(number: int) -> None:
        attempts.append(driver.bring_in(f"{task} attempt {number}", lambda: reports.append(work(number))))

    begun(0)
    speculates_at = driver.dice.randint(0, 12)
    for waited in range(_PATIENCE):
        step("waits for tasks")
        if reports:
            return driver.dice.choice(reports)
        lost = all(attempt.is_over for attempt in attempts)
        if len(attempts) < _ATTEMPTS and (lost or (waited == speculates_at and len(attempts) == 1)):
            begun(len(attempts))
        elif lost:
            break
    raise SubtaskLostError(f"no attempt of {task} reported")


def written(file: Path, write: Callable[[], Report]) -> Report:
    """Write a file; an attempt that is an actor may die in the middle of it."""
    attempt = actor_here()
    if attempt is None or " attempt " not in attempt.name:
        return write()
    step("before file")
    result = write()
    if attempt.dice.random() < TORN:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        attempt.trace.append(f"{attempt.name}: dies in the middle of {file.name}")
        raise Killed
    step("after file")
    return result
