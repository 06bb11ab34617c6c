"""Arguments and options that several commands share: each means the same everywhere; and keys as commands take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from state_engine.core.errors import ConfigurationError
from state_engine.core.json_text import parsed_json
from state_engine.operations.outputs_policy import OutputsPolicy

Job = Annotated[str, typer.Argument(help="Name of the job.")]
Branch = Annotated[str, typer.Argument(help="Name of the branch.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would happen.")]
AcceptClock = Annotated[
    bool, typer.Option("--accept-clock", help="The clock is right, however far ahead of the last checkpoint.")
]
Operators = Annotated[
    list[str] | None,
    typer.Option("--operator", metavar="UID", help="Only this operator; may be repeated."),
]
OutputOptions = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[SINK=]POLICY",
        help="Whether outputs since then leave the sinks: withdraw (the default) or keep; for one sink, such as "
        "mail=keep; may be repeated.",
    ),
]
LeaveAlone = Annotated[
    list[str] | None,
    typer.Option(
        help="Name of a sink to leave as it is, such as an abandoned one; may be repeated. If the settings name the "
        "job's module, sinks that the code no longer has are left alone without it."
    ),
]
Rebatch = Annotated[
    bool,
    typer.Option(
        "--rebatch",
        help="Cut the input into new micro-batches, late rows included, instead of the recorded ones.",
    ),
]
Limit = Annotated[int, typer.Option(min=0, help="Show at most this many rows; 0 for all.")]


def outputs_policy(given: Sequence[str] | None) -> OutputsPolicy:
    """The policy that ``--outputs`` says, for the engine to check.

    Example:
        >>> outputs_policy(None), outputs_policy(["keep"]), outputs_policy(["mail=keep", "log=keep"])
        ('withdraw', 'keep', {'mail': 'keep', 'log': 'keep'})
    """
    texts: list[Any] = list(given or ["withdraw"])
    if len(texts) == 1 and "=" not in texts[0]:
        policy: OutputsPolicy = texts[0]
        return policy
    if alone := [text for text in texts if "=" not in text]:
        raise ConfigurationError(
            f"--outputs {alone[0]} is for all sinks and stands alone; of one sink say --outputs SINK={alone[0]}"
        )
    return {name: policy for name, _, policy in (text.partition("=") for text in texts)}


def key_columns(text: str) -> dict[str, Any]:
    try:
        key = parsed_json(text)
    except ValueError as error:
        raise ConfigurationError(
            f"--key {text!r} is not JSON ({error}): give the columns of the key"
        ) from None
    if not isinstance(key, dict) or not key:
        raise ConfigurationError(f"--key {text!r} is not a JSON object with the columns of the key")
    return key


def key_of(text: str) -> Any:
    """A key: an object with its columns, or its only value, which is a text where it is no JSON.

    Example:
        >>> key_of('{"tailnum": "N1", "day": 3}'), key_of("N1"), key_of("17"), key_of('"17"')
        ({'tailnum': 'N1', 'day': 3}, 'N1', 17, '17')
    """
    if text.lstrip().startswith("{"):
        return key_columns(text)
    try:
        return parsed_json(text)
    except ValueError:
        return text
