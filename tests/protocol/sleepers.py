"""An attempt that sleeps while a collector is at every one of its points, and wakes up there.

First there is a checkpoint, an attempt that was killed, and its files are a day and more old: so the collector has
something to delete, and fences. Then an attempt goes on up to a point and sleeps for some hours; a collector makes so
many steps; the attempt comes to its end; the collector comes to its own. Clocks of both are days wrong. In the end
everything is collected, the job runs on, and ``verdict`` compares the tables with what the rows say.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from state_engine.storage.stores.durability import Durability
from tests.protocol.interleaving import SKEWS_MS, Actor
from tests.protocol.model_job import JOB, UID
from tests.protocol.points import marked
from tests.protocol.schedules import CLOCK_MS, NUMBERS, OldRule, World, tolerated
from tests.protocol.verdict import check

COMMITS = "before commit to checkpoints"


@dataclass(frozen=True)
class Sleeper:
    """One case.

    Attributes:
        who: a micro-batch or a compaction.
        asleep_at: the step at which it falls asleep.
        overtaken: whether its id was taken once before that, so that it tries again with the next.
        hours: that it sleeps.
        woken_at: how many steps the collector has made when it wakes up; or the name of the step.
        skews_ms: of the clocks of the attempt and the collector.
        robbed: of what table something that knows no rule deletes its files while it sleeps, as a VACUUM that keeps
            nothing.
    """

    who: Literal["run", "compact"]
    asleep_at: str
    overtaken: bool
    hours: int
    woken_at: int | str
    skews_ms: tuple[int, int] = (0, 0)
    robbed: Literal["", "sink", "changelog"] = ""

    @property
    def lives(self) -> bool:
        """Whether the attempt can commit."""
        return self.hours <= 11 and not self.robbed


CASES: tuple[tuple[Literal["run", "compact"], str, bool], ...] = (
    ("run", "after execute", False),
    ("run", COMMITS, False),
    ("run", COMMITS, True),
    ("compact", "after fold", False),
    ("compact", COMMITS, False),
    ("compact", COMMITS, True),
)


def sleepers(woken_at: int, *, hours: tuple[int, ...] = (0, 11, 13, 30)) -> list[Sleeper]:
    """All cases in which the collector has made so many steps; clocks are wrong in all combinations by turns."""
    pairs = [(one, other) for one in SKEWS_MS for other in SKEWS_MS]
    dice = random.Random(woken_at)
    return [Sleeper(*case, one, woken_at, dice.choice(pairs)) for case in CASES for one in hours]


def run_sleeper(
    case: Sleeper,
    directory: Path,
    spark: SparkSession,
    *,
    empty: Path,
    old_rule: OldRule | None = None,
    durability: Durability = "sync",
) -> int:
    """Run one case; how many steps the collector made in all.

    Args:
        durability: with ``sync``, an attempt whose files are gone notices that, too, where it syncs them.

    Raises:
        AssertionError: something is wrong; names the case and every step.
    """
    files = isinstance(case.woken_at, int) and case.woken_at % 2 == 1
    world = World(directory, spark, files=files, durability=durability)
    shutil.copytree(empty, directory)
    try:
        with marked(world.clock) as shown:
            with pytest.MonkeyPatch.context() as patch:
                if old_rule is not None:
                    old_rule(patch, world)
                steps = _acted(case, world)
                world.clock.pass_hours(25)
                world.engine().vacuum(world.job())
            world.engine().run(world.job(), clock=CLOCK_MS)
        rows = world.engine().checkpoints(JOB)
        check(world.engine(), directory, rows, shown, numbers=NUMBERS, files=world.files)
        return steps
    except Exception as error:
        trace = "\n  ".join(world.trace)
        raise AssertionError(f"{case}: {type(error).__name__}: {error}\n  {trace}") from error
    finally:
        world.close()
        shutil.rmtree(directory, ignore_errors=True)


def _acted(case: Sleeper, world: World) -> int:
    batch = world.job()
    world.engine().run(batch, max_batches=1, clock=CLOCK_MS)
    dead = _actor(world, "dead", lambda: _run(world), 0)
    _go_on(dead, COMMITS)
    dead.kill()
    world.clock.pass_hours(30)
    work = (lambda: _run(world)) if case.who == "run" else (lambda: _compact(world))
    attempt = _actor(world, case.who, work, case.skews_ms[0])
    if case.overtaken:
        _go_on(attempt, COMMITS)
        world.engine().context.maintenance(JOB, None).fence()
    _go_on(attempt, case.asleep_at)
    world.clock.pass_hours(case.hours)
    if case.robbed:
        _rob(world, case.robbed)
    collector = _actor(world, "collect", lambda: _collect(world), case.skews_ms[1])
    steps = 0
    if isinstance(case.woken_at, str):
        _go_on(collector, case.woken_at)
    else:
        while steps < case.woken_at and collector.advance():
            steps += 1
    while attempt.advance():
        pass
    while not collector.is_over and collector.advance():
        steps += 1
    committed = f"{case.who}: done" in world.trace
    assert committed or not case.lives, "it was young, and could not commit"
    return steps


def _actor(world: World, name: str, body: Callable[[], None], skew_ms: int) -> Actor:
    dice = _Fair(1)
    return Actor(
        name, body, tolerated, dice, world.trace, crew=world.crew, skew_ms=skew_ms, frozen=skew_ms > 0
    )


def _rob(world: World, what: str) -> None:
    """Delete what a table does not list: files of attempts, and of rows that are not published."""
    changelog = world.directory / "root" / JOB / "operators" / UID / "changelog"
    table = changelog if what == "changelog" else world.directory / "out"
    listed = {uri.rsplit("/", 1)[-1] for uri in DeltaTable(str(table)).file_uris()}
    for file in table.rglob("part-*.parquet"):
        if file.name not in listed:
            file.unlink()


class _Fair(random.Random):
    """Dice without events: no answer is lost, no actor dies, no task runs twice."""

    def random(self) -> float:
        return 0.999


def _go_on(actor: Actor, step: str) -> None:
    while actor.advance():
        if actor.trace[-1] == f"{actor.name}: {step}":
            return
    raise AssertionError(f"{actor.name} never came to '{step}'")


def _run(world: World) -> None:
    world.engine().run(world.job(), max_batches=1, clock=CLOCK_MS)


def _compact(world: World) -> None:
    world.engine().compact(JOB)


def _collect(world: World) -> None:
    world.engine().vacuum(world.job())
