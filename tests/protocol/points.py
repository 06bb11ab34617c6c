"""The points where actors yield: around every read of a table, every commit and every publication of the engine.

Also where the answer to a commit is lost, after it happened or before. Marked by wrapping methods for the time of a
test; the engine knows nothing of it. What Spark jobs do (``execute``, folding a base) is done in this process instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from state_engine.core.errors import CommitFailedError, CommitUnknownError
from state_engine.engine import context
from state_engine.microbatch.attempt import Committed
from state_engine.microbatch.executor import GraphExecutor
from state_engine.microbatch.look_ahead import LookAhead
from state_engine.operations import file_collector, maintenance
from state_engine.operations.file_collector import Collector
from state_engine.operations.job_files import JobFiles
from state_engine.operations.maintenance import Maintenance
from state_engine.publishing.publication import Publication
from state_engine.sinks.file_moves import Mover
from state_engine.storage.checkpoint_log import CheckpointLog
from state_engine.storage.delta.kernel import DeltaKernel
from tests.protocol.interleaving import LOST_ANSWER, actor_here, step, step_under_lock
from tests.protocol.model_job import execute, fold_base
from tests.protocol.passing_time import Clock

Outcomes = set[tuple[str, int]]
"""Attempts, as ``write_id`` and the checkpoint id that each tried to commit."""


class Reported:
    """What the engine reported to its callers about commits of checkpoints."""

    def __init__(self) -> None:
        self.committed: Outcomes = set()
        self.failed: Outcomes = set()


@contextmanager
def marked(clock: Clock) -> Iterator[Reported]:
    """Wrap the engine, with a given clock; outcomes of commits are recorded until the end."""
    shown = Reported()
    with pytest.MonkeyPatch.context() as patch:
        clock.rule(patch)

        def around(owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
            patch.setattr(owner, name, wrap(getattr(owner, name)))

        around(DeltaKernel, "change", _commit)
        around(DeltaKernel, "create_table", _before_and_after("create"))
        around(DeltaKernel, "active_files", _before_and_after("list"))
        around(CheckpointLog, "load", _before_and_after("load"))
        around(CheckpointLog, "_append", lambda real: _append(real, shown))
        around(Publication, "publish_pending", _before_and_after("publish_pending"))
        around(Publication, "_publish", _before_and_after("publish"))
        _mark_collector(patch, around)
        for name in ("begin", "withdraw", "add", "_rename"):
            around(Mover, name, _under_lock(name))
        patch.setattr(LookAhead, "_together", _in_either_order)
        patch.setattr(GraphExecutor, "execute", execute)
        patch.setattr(maintenance, "write_base", fold_base)
        few = partial(Maintenance, position_files=2)  # so that few micro-batches are enough for it
        patch.setattr(context, "Maintenance", few)
        yield shown


def _in_either_order(_: LookAhead, finish: Callable[[], Committed], look: Callable[[], None]) -> Committed:
    """What runs side by side, one after the other: what is executed ahead writes nothing that others read."""
    actor = actor_here()
    if actor is not None and actor.dice.random() < 0.5:
        look()
        return finish()
    committed = finish()
    look()
    return committed


def _mark_collector(patch: pytest.MonkeyPatch, around: Callable[..., None]) -> None:
    """Every read and every deletion of the collector, without threads: they are no actors."""
    patch.setattr(file_collector, "in_threads", map)
    around(file_collector, "_Ages", _before_and_after("taking the time"))
    for name in ("_plan", "_carry_out", "_remove"):
        around(Collector, name, _before_and_after(name))
    around(JobFiles, "_place", _before_and_after("looking at a place"))
    around(Maintenance, "fence", _before_and_after("fence"))
    for name in ("_delete", "_drop_empty"):
        around(file_collector, name, _before_and_after(name))


def _before_and_after(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrap(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            step(f"before {what}")
            value = real(*args, **options)
            step(f"after {what}")
            return value

        return call

    return wrap


def _under_lock(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrap(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            step_under_lock(f"move: {what}")
            return real(*args, **options)

        return call

    return wrap


def _commit(real: Callable[..., int]) -> Callable[..., int]:
    def change(self: DeltaKernel, uri: str, **options: Any) -> int:
        actor, table = actor_here(), uri.rsplit("/", 1)[-1]
        if actor is None:
            return real(self, uri, **options)
        step(f"before commit to {table}")
        lost = actor.dice.random()
        if lost < LOST_ANSWER / 2:
            raise CommitUnknownError(f"the commit to {table} never arrived")
        version = real(self, uri, **options)
        step(f"after commit to {table}")
        if lost < LOST_ANSWER:
            raise CommitUnknownError(f"the answer of {table} was lost")
        return version

    return change


def _append(real: Callable[..., None], shown: Reported) -> Callable[..., None]:
    def append(self: CheckpointLog, row: Any, **options: Any) -> None:
        attempt = (row.write_id, row.checkpoint_id)
        actor = actor_here()
        if actor is not None:
            actor.trace.append(f"{actor.name}: {row.kind} {row.checkpoint_id} on {row.parent_id}")
        try:
            real(self, row, **options)
        except CommitFailedError:
            shown.failed.add(attempt)
            raise
        shown.committed.add(attempt)

    return append
