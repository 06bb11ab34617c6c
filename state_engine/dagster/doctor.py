"""``python -m state_engine.dagster.doctor``: finds dead runs that hold a slot of a pool; ``--free`` gives these back.

A dead run blocks others for ever. Dagster's daemon frees the slots of runs that are over, where it is set to, and finds
out which of the runs that it launched are. One that was started from a shell and killed is never over: its process is
gone, and nobody else knows.

The part of ``statelake doctor`` that knows Dagster; that shows what is found here, too. Looks at the instance of
``DAGSTER_HOME``. Exit code 1 where something was found and left.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import dagster as dg
import psutil
import typer

from state_engine.core.counted_nouns import counted
from state_engine.monitoring.doctor import Check

FREE = "python -m state_engine.dagster.doctor --free"


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


def doctor(
    free_slots: Annotated[bool, typer.Option("--free", help="Give the slots back.")] = False,
) -> None:
    """Find dead runs that hold a slot of a pool, for which all others wait."""
    if not os.environ.get("DAGSTER_HOME"):
        typer.echo("DAGSTER_HOME is not set: there is no instance to look at", err=True)
        raise typer.Exit(code=2)
    with dg.DagsterInstance.get() as instance:
        holders = list(dead_holders(instance))
        for dead in holders:
            typer.echo(f"pool {dead.pool}: held by run {dead.run_id}: {dead.why}")
            if free_slots:
                free(instance, dead)
    if not holders:
        typer.echo("No dead run holds a slot of a pool.")
    elif free_slots:
        typer.echo(
            "The slot is free again."
            if len(holders) == 1
            else f"{counted(len(holders), 'slot is', 'slots are')} free again."
        )
    else:
        typer.echo(f"Give them back with: {FREE}")
        raise typer.Exit(code=1)


def checks() -> list[Check]:
    """What ``statelake doctor`` shows of Dagster: a line for every slot that a dead run holds."""
    if not os.environ.get("DAGSTER_HOME"):
        return []
    with dg.DagsterInstance.get() as instance:
        holders = list(dead_holders(instance))
    if not holders:
        return [Check(name="Pools of Dagster", status="ok", detail="no dead run holds a slot")]
    return [
        Check(
            name=f"Pool {dead.pool}",
            status="failed",
            detail=f"held by run {dead.run_id}: {dead.why}",
            fix=f"give the slot back: {FREE}",
        )
        for dead in holders
    ]


def main() -> None:
    typer.run(doctor)


if __name__ == "__main__":
    main()
