"""An attempt at a micro-batch, by how far it came: each step takes the type before it and gives the next.

    Planned -> Executed -> Listed -> Staged -> Committed

What a step needs, the one before it made: no step can be left out, and none can be called too early. Decision 0030.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from state_engine.core.checkpoints.checkpoint import CheckpointRow, DataFile
from state_engine.microbatch.attempt_outputs import AttemptSinks
from state_engine.microbatch.batch import BatchContext
from state_engine.microbatch.batch_result import Execution


@dataclass
class Spent:
    """What an attempt took so far.

    Example:
        >>> spent = Spent()
        >>> with spent.step("plan"):
        ...     pass
        >>> list(spent.steps_s), spent.delta_commits
        (['plan'], 0)
    """

    steps_s: dict[str, float] = field(default_factory=dict)
    delta_commits: int = 0

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time a step, also one that fails."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.steps_s[name] = time.perf_counter() - started


@dataclass(frozen=True)
class Planned:
    """It is known what the micro-batch reads.

    Attributes:
        positions: where every source stands before it.
        outputs: which it has none of yet.
    """

    batch: BatchContext
    positions: Mapping[str, str]
    outputs: AttemptSinks
    spent: Spent


@dataclass(frozen=True)
class Executed(Planned):
    """All operators ran.

    Attributes:
        done: what their subtasks wrote, which nobody lists yet.
        operator_state_files: source positions, and the operator state of subtasks; nobody lists them yet either.
    """

    done: Execution
    operator_state_files: list[DataFile]


@dataclass(frozen=True)
class Listed(Executed):
    """The files of changes and of operator state are in the logs of their tables."""

    versions: Mapping[str, int]


@dataclass(frozen=True)
class Staged(Listed):
    """The row is complete and checked."""

    row: CheckpointRow


@dataclass(frozen=True)
class Committed:
    """The row is in ``checkpoints``.

    Attributes:
        row: as it was appended; its id and parent may be others than were staged.
        outputs: which readers do not see yet.
    """

    row: CheckpointRow
    done: Execution
    outputs: AttemptSinks
    spent: Spent
