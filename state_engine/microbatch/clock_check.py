"""Whether the clock of a run may be recorded: for micro-batches, and for what begins a job without one."""

from __future__ import annotations

import time

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.clock_jumps import check_jump
from state_engine.job.job import StatefulJob


def check_clock(job: StatefulJob, clock_ms: int, parent: CheckpointRow | None) -> None:
    """Refuse a clock that is further ahead than the job allows.

    Args:
        parent: the last checkpoint; None for the clock of this machine.
    """
    if job.max_clock_jump_ms is not None:
        now_ms = time.time_ns() // 1_000_000
        check_jump(clock_ms, parent, machine_ms=now_ms, bound_ms=job.max_clock_jump_ms, job=job.name)
