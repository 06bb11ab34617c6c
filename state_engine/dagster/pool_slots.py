"""Frees pool slots held by dead runs, which block other runs for ever.

The daemon frees the slots of runs that it launched. One that was started from a shell and killed keeps its slot: its
process is gone, and nobody else knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import dagster as dg
import psutil

_CLOCK_SLACK_S = 1.0


@dataclass(frozen=True)
class DeadHolder:
    """A run that holds, or waits for, a slot of a pool and will never give it back."""

    pool: str
    run_id: str
    why: str


def dead_holders(instance: dg.DagsterInstance) -> Iterator[DeadHolder]:
    storage = instance.event_log_storage
    if not storage.supports_global_concurrency_limits:
        return
    for pool in sorted(storage.get_concurrency_keys()):
        info = storage.get_concurrency_info(pool)
        runs = {slot.run_id for slot in info.claimed_slots} | {step.run_id for step in info.pending_steps}
        for run_id in sorted(runs):
            why = _death_of(instance, run_id)
            if why is not None:
                yield DeadHolder(pool, run_id, why)


def free(instance: dg.DagsterInstance, dead: DeadHolder) -> None:
    """Give a slot back, and call the run failed where it was not called finished."""
    run = instance.get_run_by_id(dead.run_id)
    if run is not None and not run.is_finished:
        instance.report_run_failed(run, f"{dead.why}; found by state_engine.dagster.doctor")
    instance.event_log_storage.free_concurrency_slots_for_run(dead.run_id)


def _death_of(instance: dg.DagsterInstance, run_id: str) -> str | None:
    """What became of a run that is dead; None where it may live."""
    record = instance.get_run_record_by_id(run_id)
    if record is None:
        return "the run was deleted"
    if record.dagster_run.is_finished:
        return f"the run is over: {record.dagster_run.status.value}"
    pid = _pid_of(instance, run_id)
    if pid is None:
        return None  # of another executor, or not begun
    try:
        began = psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return f"its process {pid} is gone"
    if record.start_time is not None and began > record.start_time + _CLOCK_SLACK_S:
        return f"its process {pid} is gone, and another one has its number"
    return None


def _pid_of(instance: dg.DagsterInstance, run_id: str) -> int | None:
    """The process of a run that runs in one; this machine is assumed, as SQLite does."""
    logs = instance.all_logs(run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)
    for entry in logs:
        event = entry.dagster_event
        metadata = event.engine_event_data.metadata if event else {}
        if "pid" in metadata:
            return int(str(metadata["pid"].value))
    return None
