"""On HDFS and Azure, where nobody can lock, a ``FileSink`` has one owner, and whoever lost it changes nothing."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest

from state_engine.core.errors import LockTimeoutError, SinkIdentityError, StorageError
from state_engine.sinks import file_owner
from state_engine.sinks.file_owner import Look, as_owner
from state_engine.storage import files
from state_engine.storage.files import Location, open_location
from tests.protocol.interleaving import Actor, actor_here, interleave, run_out, step
from tests.protocol.passing_time import Clock
from tests.sinks.file_world import CHANGES, URI, FileWorld
from tests.sinks.requests import APP

FEW, ALL, TOGETHER = 60, 6000, 500
NO_ANSWER = 0.004
"""How likely a change is not made, or is made and its answer is lost."""


@contextmanager
def world_with(around: Callable[[str, str, Callable[[], Any]], Any], seed: int = 0) -> Iterator[FileWorld]:
    """A world that the engine reaches as ``hdfs://model``, with names by a seed."""
    world, names = FileWorld(around), random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_remote", world.fs.location)
        patch.setattr(file_owner, "uuid4", lambda: UUID(int=names.getrandbits(128)))
        patch.setattr(file_owner.time, "sleep", lambda _: step("pause"))
        yield world


def undisturbed(kind: str, path: str, act: Callable[[], Any]) -> Any:
    return act()


# -- any schedule ----------------------------------------------------------------------------------------------------


def run_schedule(seed: int) -> None:
    """Runners that take turns at every operation, are killed, sleep, and wake up when all is over."""
    dice, trace = random.Random(seed), list[str]()

    def around(kind: str, path: str, act: Callable[[], Any]) -> Any:
        actor = actor_here()
        if actor is None:
            return act()
        step(f"{kind} {path}")
        refused = actor.dice.random() if kind in CHANGES else 1
        if refused < NO_ANSWER / 2:
            raise StorageError(f"{path}: refused")
        result = act()
        if refused < NO_ANSWER:
            raise StorageError(f"{path}: the answer is lost")
        return result

    with world_with(around, seed) as world:
        crew: list[Actor] = []
        actors = [
            Actor(
                f"runner {number}", lambda d=random.Random(dice.random()): world.run(d, d.randint(1, 4)),
                lambda error: isinstance(error, StorageError | LockTimeoutError), random.Random(dice.random()),
                trace, crew=crew,
            )
            for number in range(dice.randint(2, 4))
        ]  # fmt: skip
        try:
            run_out(interleave(actors, dice, trace, Clock()), dice)
            world.run(random.Random(seed), 1)
        except AssertionError as error:
            error.add_note("\n".join([f"seed {seed}", *trace[-400:]]))
            raise


def goes_wrong(seed: int) -> bool:
    try:
        run_schedule(seed)
    except (AssertionError, SinkIdentityError):
        return True
    return False


@pytest.mark.parametrize("first", range(0, FEW, 20))
def test_some_schedules(first: int) -> None:
    for seed in range(first, first + 20):
        run_schedule(seed)


@pytest.mark.faults
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", range(0, ALL, TOGETHER))
def test_many_schedules(first: int) -> None:
    for seed in range(first, first + TOGETHER):
        run_schedule(seed)
