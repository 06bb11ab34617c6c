"""An attempt at a micro-batch, by how far it came: each step takes the type before it and gives the next.

    Planned -> Executed -> Listed -> Staged -> Committed

What a step needs, the one before it made: no step can be left out, and none can be called too early. Decision 0030.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from state_engine.core.checkpoints.checkpoint import MAIN, CheckpointRow, DataFile
from state_engine.job.job import StatefulJob
from state_engine.job.parallelism import parallelism_in_force
from state_engine.microbatch.attempt_outputs import AttemptSinks
from state_engine.microbatch.batch import BatchContext, PlannedInput
from state_engine.microbatch.batch_result import Execution
from state_engine.microbatch.partition_runs import cut_of
from state_engine.storage.state.copy_directory import NO_COPIES, LocalCopies


@dataclass
class Spent:
    """What an attempt took so far.

    Attributes:
        began_s: when each step began, on the clock of ``time.perf_counter``.

    Example:
        >>> spent = Spent()
        >>> with spent.step("plan"):
        ...     pass
        >>> list(spent.steps_s), spent.delta_commits
        (['plan'], 0)
    """

    steps_s: dict[str, float] = field(default_factory=dict)
    began_s: dict[str, float] = field(default_factory=dict)
    delta_commits: int = 0

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time a step, also one that fails."""
        started = self.began_s[name] = time.perf_counter()
        try:
            yield
        finally:
            self.steps_s[name] = time.perf_counter() - started


def rescaled_path(path: list[CheckpointRow], planned: PlannedInput) -> list[CheckpointRow]:
    """The path that a micro-batch continues, with the parallelism of the one that it repeats."""
    if not path or planned.rescaled is None:
        return path
    return [*path[:-1], replace(path[-1], rescaled=planned.rescaled)]


def batch_after(
    path: list[CheckpointRow],
    planned: PlannedInput,
    job: StatefulJob,
    *,
    write_id: str,
    checkpoint_id: int,
    parameters: Mapping[str, str],
    branch: str = MAIN,
    backfill: str = "",
    local_copies: LocalCopies = NO_COPIES,
) -> BatchContext:
    """What an attempt at a planned micro-batch works on.

    Args:
        path: as ``rescaled_path`` gives it.
    """
    parent = path[-1] if path else None
    known = {s.name: s.watermark_ms for s in parent.sources} if parent else {}
    timed = [n for n, node in job.sources.items() if node.timed]
    cut = cut_of(planned.slices, parent)
    return BatchContext(
        write_id=write_id,
        path=path,
        slices=cut.slices,
        clock_ms=max(planned.clock_ms, parent.clock_ms if parent else 0),
        watermarks_ms={name: known.get(name) for name in timed},
        parameters=parameters,
        checkpoint_id=checkpoint_id,
        parallelism=parallelism_in_force(job, parent),
        branch=branch,
        drain=planned.drain,
        without_rows=cut.without_rows,
        partition=cut.partition,
        late_rows=cut.late_rows,
        backfill=backfill,
        letters=planned.letters,
        time=planned.time,
        local_copies=local_copies,
    )


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
