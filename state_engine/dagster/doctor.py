"""``python -m state_engine.dagster.doctor``: finds dead runs that hold a slot of a pool; ``--free`` gives these back.

The part of ``statelake doctor`` that knows Dagster; that shows what is found here, too. Looks at the instance of
``DAGSTER_HOME``. Exit code 1 where something was found and left.
"""

from __future__ import annotations

import os
from typing import Annotated

import dagster as dg
import typer

from state_engine.core.counted_nouns import counted
from state_engine.dagster.pool_slots import dead_holders, free
from state_engine.monitoring.doctor import Check

FREE = "python -m state_engine.dagster.doctor --free"


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
    """Entry point."""
    typer.run(doctor)


if __name__ == "__main__":
    main()
