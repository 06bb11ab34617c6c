"""Random schedules of the commit protocol on the real engine and real Delta tables; one seed, one schedule.

A schedule has runners, compactions, restores, expiries, collections and rescales, each with an engine of its own,
as if in processes of their own, on machines whose clocks are up to two days wrong; attempts of tasks run beside them.
They are interleaved step by step, killed, put to sleep for steps, for hours and until all the others are done, and some
commits end without an answer. Then plain runs finish the work, the last sleepers
wake up, plain runs finish again, and ``verdict`` compares all tables with what the committed rows alone say.

    python -m tests.protocol.schedules --first 0 --count 500        runs them, and says how long they took
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from state_engine import StateEngine, StatefulJob
from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.retention import RetentionPolicy
from state_engine.core.errors import (
    CommitError,
    ConfigurationError,
    MissingFilesError,
    SinkError,
    StaleParentError,
    StatelakeError,
    SubtaskLostError,
)
from state_engine.core.state.evolution import recorded_schema
from state_engine.storage.stores.durability import Durability
from tests.protocol.interleaving import SKEWS_MS, Actor, interleave, run_out
from tests.protocol.model_job import JOB, KEY, OUTPUT, SEEN, TOTAL, UID, build
from tests.protocol.passing_time import Clock
from tests.protocol.points import Reported, marked
from tests.protocol.verdict import check
from tests.support.java import SHORT_LIVED_JAVA

NUMBERS = 4
CLOCK_MS = 1_000_000


@dataclass
class World:
    """One root with its sinks, and all engines that work on it."""

    directory: Path
    spark: SparkSession
    files: bool
    durability: Durability = "sync"
    clock: Clock = field(default_factory=Clock)
    trace: list[str] = field(default_factory=list)
    engines: list[StateEngine] = field(default_factory=list)
    crew: list[Actor] = field(default_factory=list)

    def engine(self) -> StateEngine:
        """An engine that shares nothing with the others but the session."""
        engine = StateEngine(self.directory / "root", self.spark, durability=self.durability)
        self.engines.append(engine)
        return engine

    def job(self, *, at_once: int = 1, parallelism: int = 2) -> StatefulJob:
        return build(
            self.directory, numbers=NUMBERS, at_once=at_once, parallelism=parallelism, files=self.files
        )

    def has(self, rows: int) -> bool:
        """Whether about so many checkpoints were tried, by the number of their files."""
        return len(list((self.directory / "root" / JOB / "checkpoints").glob("checkpoint-*.parquet"))) >= rows

    def close(self) -> None:
        """Wait for the log checkpoints that were asked for."""
        for engine in self.engines:
            engine.close()


def empty_tables(directory: Path, spark: SparkSession) -> Path:
    """A root and a sink with all tables and no rows: most schedules start from a copy, which saves a second each."""
    with StateEngine(directory / "root", spark) as engine:
        tables = engine.context.tables(JOB)
        tables.ensure_operator_state()
        schemas = [recorded_schema(TOTAL), recorded_schema(SEEN)]
        tables.ensure_changelog(UID, str(KEY), schemas)
        tables.ensure_base(UID, str(KEY), schemas)
        engine.kernel.create_table((directory / "out").as_uri(), OUTPUT)
    return directory


def _collect_all(world: World) -> None:
    """Two collections, a day apart, delete what nobody needs before the verdict."""
    world.engine().expire_checkpoints(JOB, RetentionPolicy(keep_last=2))
    for _ in range(2):
        world.clock.pass_hours(25)
        world.engine().vacuum(world.job())


Maker = Callable[[World, random.Random], Callable[[], None]]
"""Makes what an actor does."""


OldRule = Callable[[pytest.MonkeyPatch, World], None]
"""Takes a rule of the engine back to what it was."""


def run_schedule(
    seed: int, directory: Path, spark: SparkSession, *, empty: Path, old_rule: OldRule | None = None
) -> Counter[str]:
    """Run one schedule; what happened in it, by kind.

    Args:
        directory: does not exist yet.
        empty: what ``empty_tables`` made.
        old_rule: to be put back, which is wrong.

    Raises:
        AssertionError: something is wrong; names the seed and every step.
    """
    dice = random.Random(seed)
    world = World(directory, spark, files=seed % 3 == 0)
    if seed % 5:
        shutil.copytree(empty, directory)
    try:
        with marked(world.clock) as shown, pytest.MonkeyPatch.context() as patch:
            if old_rule is not None:
                old_rule(patch, world)
            late = interleave(_actors(world, dice), dice, world.trace, world.clock)
            world.engine().run(world.job(), clock=CLOCK_MS)
            run_out(late, dice)
            world.engine().run(world.job(), clock=CLOCK_MS)
            if seed % 2:
                _collect_all(world)
        rows = world.engine().checkpoints(JOB)
        check(world.engine(), directory, rows, shown, numbers=NUMBERS, files=world.files)
        return _what_happened(rows, shown, world.trace)
    except Exception as error:
        steps = "\n  ".join(world.trace)
        raise AssertionError(f"schedule {seed}: {type(error).__name__}: {error}\n  {steps}") from error
    finally:
        world.close()


def _what_happened(rows: list[CheckpointRow], shown: Reported, trace: list[str]) -> Counter[str]:
    counts = Counter(row.kind.value for row in rows)
    counts["lost attempts"] = len(shown.failed)
    counts["kills"] = sum(": killed" in line for line in trace)
    counts["steps"] = len(trace)
    counts["attempts of tasks"] = sum(" attempt " in line and line.endswith(": done") for line in trace)
    counts["torn files"] = sum("dies in the middle" in line for line in trace)
    counts["files collected"] = sum("after _delete" in line for line in trace)
    counts["steps of collectors"] = sum(line.startswith("collect-") for line in trace)
    return counts


# -- actors ------------------------------------------------------------------------------------------------------------


def _actors(world: World, dice: random.Random) -> list[Actor]:
    """Some of each kind; an operation waits until there is something to operate on."""
    kinds: list[tuple[str, int, int, Maker]] = [
        ("run", dice.randint(2, 4), 0, _runner),
        ("compact", dice.randint(0, 2), 1, _compactor),
        ("restore", dice.choice([0, 1, 1, 2]), 2, _restorer),
        ("expire", dice.randint(0, 2), 2, _expirer),
        ("rescale", dice.randint(0, 1), 1, _rescaler),
        ("collect", dice.randint(0, 2), 3, _collector),
    ]
    return [
        _actor(world, dice, f"{name}-{i}", after, maker) for name, n, after, maker in kinds for i in range(n)
    ]


def _actor(world: World, dice: random.Random, name: str, after: int, maker: Maker) -> Actor:
    own = random.Random(dice.random())
    rows = after + own.randint(0, 2) if after else 0
    return Actor(
        name, maker(world, own), tolerated, own, world.trace, ready=lambda: world.has(rows), crew=world.crew,
        skew_ms=own.choice(SKEWS_MS), frozen=own.random() < 0.3,
    )  # fmt: skip


def tolerated(error: StatelakeError) -> bool:
    """Another actor was faster, the outcome is unknown, or the operation has no object any more."""
    # a reader that slept for a day may find files gone that were in use then
    if isinstance(error, CommitError | MissingFilesError | SubtaskLostError):
        return True
    text = str(error)
    if isinstance(error, ConfigurationError):
        expected = ("was expired by row", "is already the head", "run it first", "there is no checkpoint")
        return any(part in text for part in expected)
    # a restore that another one overtook: what it would withdraw is not there any more
    return type(error) is SinkError and "outputs cannot be withdrawn" in text


def _runner(world: World, dice: random.Random) -> Callable[[], None]:
    job = world.job(at_once=dice.choice([1, 1, 2]), parallelism=dice.randint(1, 3))
    batches = dice.randint(1, 3)

    def run() -> None:
        world.engine().run(job, max_batches=batches, clock=CLOCK_MS)

    return run


def _compactor(world: World, dice: random.Random) -> Callable[[], None]:
    def compact() -> None:
        world.engine().compact(JOB)

    return compact


def _restorer(world: World, dice: random.Random) -> Callable[[], None]:
    def restore() -> None:
        engine = world.engine()
        earlier = [row.checkpoint_id for row in engine.checkpoints(JOB)][:-1]
        target = dice.choice(earlier or [1])
        for _ in range(3):  # as somebody would who insists
            with suppress(StaleParentError):
                engine.restore(JOB, checkpoint_id=target)
                return

    return restore


def _expirer(world: World, dice: random.Random) -> Callable[[], None]:
    policy = RetentionPolicy(keep_last=dice.randint(1, 3))

    def expire_checkpoints() -> None:
        world.engine().expire_checkpoints(JOB, policy)

    return expire_checkpoints


def _collector(world: World, dice: random.Random) -> Callable[[], None]:
    def collect() -> None:
        world.engine().vacuum(world.job())

    return collect


def _rescaler(world: World, dice: random.Random) -> Callable[[], None]:
    number = dice.randint(1, 4)

    def rescale() -> None:
        world.engine().rescale(world.job(), parallelism=number)

    return rescale


# -- by hand -----------------------------------------------------------------------------------------------------------


def main() -> None:
    """Run schedules one after the other."""
    from state_engine.machine.settings import SparkSettings
    from state_engine.spark.session import local_session

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=500)
    asked = parser.parse_args()
    options = {"spark.driver.extraJavaOptions": SHORT_LIVED_JAVA}
    spark = local_session(SparkSettings(master="local[2]", driver_memory="2g", options=options))
    total, wrong, seconds = Counter[str](), 0, list[float]()
    scratch = Path(tempfile.mkdtemp(prefix="schedules-"))
    empty = empty_tables(scratch / "empty", spark)
    for seed in range(asked.first, asked.first + asked.count):
        directory, started = scratch / str(seed), time.perf_counter()
        try:
            total += run_schedule(seed, directory, spark, empty=empty)
        except AssertionError as error:
            wrong += 1
            print(error, flush=True)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        seconds.append(time.perf_counter() - started)
        if len(seconds) % 50 == 0 or len(seconds) == asked.count:
            print(_so_far(seconds, wrong, total), flush=True)


def _so_far(seconds: list[float], wrong: int, total: Counter[str]) -> str:
    ordered = sorted(seconds)
    return (
        f"{len(seconds)} schedules, {wrong} wrong, {sum(seconds):.0f} s; one takes {ordered[len(ordered) // 2]:.2f} s "
        f"(at most {ordered[-1]:.2f} s); in them: {dict(total.most_common())}"
    )


if __name__ == "__main__":
    main()
