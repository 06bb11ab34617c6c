"""The command ``register``: what jobs remember, by name in a catalog. The engine does it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from state_engine.cli.output import report
from state_engine.cli.session import opened
from state_engine.engine.registering import place_of
from state_engine.queries.catalog_views import RegistrationReport
from state_engine.spark.catalog import check_lasting


def register(
    schema: Annotated[
        str, typer.Argument(help="Schema that gets the names, which is there: lake, or catalog.lake.")
    ],
    job: Annotated[str | None, typer.Option(help="Only this job; all of the root by default.")] = None,
) -> None:
    """Give published tables, and a view of every other keyed state as of the head, a name in Spark's catalog."""
    catalog, inside = place_of(schema)
    with opened("Registering") as engine:
        check_lasting(engine.spark, catalog)
        done = engine.register(catalog, inside, job=job)
    report(done, registered_lines(done))


def registered_lines(done: RegistrationReport) -> Iterator[str]:
    """What was registered, in sentences."""
    for one in done.names:
        what = "follows the head" if one.checkpoint_id is None else f"as of checkpoint {one.checkpoint_id}"
        yield f"{one.job}: {one.kind} {one.name} ({one.of}), {what}"
    if not done.names:
        yield "there is nothing to register: no keyed state, and no published table"
