"""Arguments and options that several commands share: each means the same everywhere."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

Job = Annotated[str, typer.Argument(help="Name of the job.")]
Branch = Annotated[str, typer.Argument(help="Name of the branch.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would happen.")]
Operators = Annotated[
    list[str] | None,
    typer.Option("--operator", metavar="UID", help="Only this operator; may be repeated."),
]
Outputs = Annotated[
    Literal["withdraw", "keep"], typer.Option(help="Whether outputs since then leave the sinks.")
]
LeaveAlone = Annotated[
    list[str] | None,
    typer.Option(
        help="Name of a sink that stays as it is, such as one that is abandoned; may be repeated. Sinks that the code "
        "does not have any more are left alone where the settings name the job's module."
    ),
]
Rebatch = Annotated[
    bool,
    typer.Option(
        "--rebatch", help="Cut the input anew instead of as recorded; takes in rows that were late."
    ),
]
Limit = Annotated[int, typer.Option(min=0, help="Show so many rows; 0 for all.")]
