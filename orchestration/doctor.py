"""``python -m orchestration.doctor``: finds runs that are dead and hold a slot of a pool; ``--free`` gives these back.

The part of ``statelake doctor`` that knows Dagster. Looks at the instance of ``DAGSTER_HOME``. Exit code 1 where
something was found and left.
"""

from __future__ import annotations

import os
from typing import Annotated

import dagster as dg
import typer

from orchestration.lib.slots import dead_holders, free


def doctor(
    free_slots: Annotated[bool, typer.Option("--free", help="Give the slots back.")] = False,
) -> None:
    """Find dead runs that hold a slot of a pool, for which all others wait."""
    if not os.environ.get("DAGSTER_HOME"):
        typer.echo("DAGSTER_HOME is not set: there is no instance to look at", err=True)
        raise typer.Exit(code=2)
    with dg.DagsterInstance.get() as instance:
        found = list(dead_holders(instance))
        for dead in found:
            typer.echo(f"pool {dead.pool}: held by run {dead.run_id}: {dead.why}")
            if free_slots:
                free(instance, dead)
    if not found:
        typer.echo("No dead run holds a slot of a pool.")
    elif free_slots:
        typer.echo("The slot is free again." if len(found) == 1 else f"{len(found)} slots are free again.")
    else:
        typer.echo("Give them back with: python -m orchestration.doctor --free")
        raise typer.Exit(code=1)


def main() -> None:
    """Entry point."""
    typer.run(doctor)


if __name__ == "__main__":
    main()
