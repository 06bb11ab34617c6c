"""Actors that take turns: several runs of the real engine, cut into steps and interleaved by a seed.

Every actor has a thread of its own, and at any moment exactly one of them, or the test, is running. An actor gives the
turn back wherever the engine passes a point that ``points`` has marked; there it can be put to sleep, or killed: an
exception that nothing in the engine catches goes up its stack, and it touches no table any more. So the same seed gives
the same schedule, and what runs between two points is the engine's own code. Attempts of tasks are actors that a run
brings in: they go on when it has ended.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from state_engine.core.errors import StatelakeError

if TYPE_CHECKING:
    from tests.protocol.passing_time import Clock

KILLED, ASLEEP, LATE = 0.012, 0.04, 0.012
"""How likely, at every step, an actor is killed, sleeps for a while, and sleeps until all the others are done."""
LONG_PAUSE = 0.015
"""How likely, at every step, hours pass."""
KILLED_INSIDE = 0.05
"""How likely an actor is killed at a point where it holds a lock and cannot give the turn back."""
LOST_ANSWER = 0.02
"""How likely a commit has no answer."""
ASLEEP_BEFORE_COMMIT = 0.15
"""How likely an actor sleeps for a while, with everything written, just before a row is committed."""
_HOURS = 3_600_000
SKEWS_MS = (-48 * _HOURS, -13 * _HOURS, 0, 13 * _HOURS, 48 * _HOURS)
"""By how much clocks of actors are wrong; they may jump from one to another while an actor sleeps."""

_THREADS = ThreadPoolExecutor(64, thread_name_prefix="actor")
_here = threading.local()


class Killed(BaseException):
    """The process of an actor is gone."""


@dataclass
class Actor:
    """One run of an operation, as if in a process of its own.

    Attributes:
        name: for the trace.
        body: what it does.
        tolerated: whether an error is one of those that this actor may be reported.
        dice: decides what happens to it inside.
        ready: whether it may begin; one that never may does not run.
        crew: where actors that it brings in wait for their first turn.
        skew_ms: by how much its clock is ahead.
        frozen: whether its steady counter stands still while hours pass.
    """

    name: str
    body: Callable[[], None]
    tolerated: Callable[[StatelakeError], bool]
    dice: random.Random
    trace: list[str]
    ready: Callable[[], bool] = lambda: True
    crew: list[Actor] = field(default_factory=list)
    skew_ms: int = 0
    frozen: bool = False
    asleep_until: int = 0
    _step: str = ""
    _ended: bool = False
    _killed: bool = False
    _go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    _back: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    _run: Future[None] | None = None

    def advance(self) -> bool:
        """Let the actor go on to its next step; False at its end.

        Raises:
            Exception: what it was reported and nobody expected.
        """
        if self._run is None:
            self._run = _THREADS.submit(self._thread)
        self._go.release()
        assert self._back.acquire(timeout=120), f"{self.name} hangs: {self.trace[-3:]}"
        if not self._run.done() and not self._ended:
            return True
        self._run.result(timeout=60)
        return False

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._ended or self._killed

    def bring_in(self, name: str, body: Callable[[], None]) -> Actor:
        """Called by its own thread: another actor, with this one's clock, begins at one of the next steps."""
        own = random.Random(self.dice.random())
        born = Actor(
            f"{self.name} {name}", body, self.tolerated, own, self.trace, crew=self.crew,
            skew_ms=self.skew_ms, frozen=self.frozen,
        )  # fmt: skip
        self.crew.append(born)
        return born

    def kill(self) -> None:
        """End it where it stands."""
        self._killed = True
        if self._run is not None:
            while self.advance():
                pass

    @property
    def is_about_to_commit(self) -> bool:
        """Whether its next step puts a row into the table of checkpoints."""
        return self._step == "before commit to checkpoints"

    def give_back(self, step: str) -> None:
        """Called by its own thread: the others may go on now."""
        if self._killed:
            raise Killed
        self._step = step
        self.trace.append(f"{self.name}: {step}")
        self._back.release()
        self._go.acquire()
        if self._killed:
            raise Killed

    def may_die(self, step: str) -> None:
        """Called by its own thread where it cannot give the turn back."""
        if self._killed or self.dice.random() < KILLED_INSIDE:
            self.trace.append(f"{self.name}: killed inside, {step}")
            self._killed = True
            raise Killed

    def _thread(self) -> None:
        self._go.acquire()
        _here.actor = self
        try:
            if not self._killed:
                self.body()
            self.trace.append(f"{self.name}: done")
        except Killed:
            pass
        except StatelakeError as error:
            self.trace.append(f"{self.name}: {type(error).__name__}: {str(error)[:160]}")
            if not self.tolerated(error):
                raise
        finally:
            _here.actor = None
            self._ended = True
            self._back.release()


def actor_here() -> Actor | None:
    """The actor whose thread this is; None in the test's own thread and in threads that the engine starts."""
    return getattr(_here, "actor", None)


def step(name: str) -> None:
    """The others may go on here."""
    actor = actor_here()
    if actor is not None:
        actor.give_back(name)


def step_under_lock(name: str) -> None:
    """The process may die here, holding a lock."""
    actor = actor_here()
    if actor is not None:
        actor.may_die(name)


def interleave(actors: list[Actor], dice: random.Random, trace: list[str], clock: Clock) -> list[Actor]:
    """Run actors to their end or death, in a random order; those that still sleep are returned."""
    waiting, live, late, now = list(actors), list[Actor](), list[Actor](), 0
    crew = actors[0].crew
    dice.shuffle(waiting)
    while waiting or live or crew:
        live += crew
        crew.clear()
        if waiting and (not live or dice.random() < 0.2):
            ready = [a for a in waiting if a.ready()]
            if ready:
                waiting.remove(ready[0])
                live.append(ready[0])
            elif not live:
                return late
        now += 1
        if dice.random() < LONG_PAUSE:
            clock.pass_hours(hours := dice.choice((5, 13, 30)))
            trace.append(f"-- {hours} hours pass")
        awake = [a for a in live if a.asleep_until <= now]
        if not awake:
            now = min(a.asleep_until for a in live)
            continue
        actor, chance = dice.choice(awake), dice.random()
        if chance < KILLED:
            trace.append(f"{actor.name}: killed")
            actor.kill()
            live.remove(actor)
        elif chance < KILLED + (ASLEEP_BEFORE_COMMIT if actor.is_about_to_commit else ASLEEP):
            actor.asleep_until = now + dice.randint(5, 60)
            actor.skew_ms = dice.choice((actor.skew_ms, actor.skew_ms, *SKEWS_MS))
        elif chance > 1 - LATE:
            live.remove(actor)
            late.append(actor)
        elif not actor.advance():
            live.remove(actor)
    return late


def run_out(actors: list[Actor], dice: random.Random) -> None:
    """Wake up sleeping actors, and run them to their end."""
    live = list(actors)
    while live:
        actor = dice.choice(live)
        if not actor.advance():
            live.remove(actor)
        live += actor.crew
        actor.crew.clear()
