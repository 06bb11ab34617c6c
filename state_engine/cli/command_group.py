"""``Commands``: a Typer group whose help and hints do not depend on the version of Typer and click."""

from __future__ import annotations

import inspect
from typing import Any

from typer.core import TyperGroup


class Commands(TyperGroup):
    """A group of commands with complete helps, and one hint for a misspelt name."""

    # Any: typer brings click under a name of its own since 0.26, and before under click's
    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """As in any group, with the helps of the arguments."""
        return _with_helps_of_arguments(super().get_command(ctx, cmd_name))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As in any group, with one hint: since 8.4 click has one of its own, beside Typer's."""
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:
            if getattr(error, "possibilities", None):
                error.message = error.message.split(" Did you mean ")[0]  # type: ignore[attr-defined]
            raise


def _with_helps_of_arguments(command: Any) -> Any:
    """The command, whose arguments have their helps again: click 8.5 empties those that Typer before 0.26 has set."""
    if command is None or command.callback is None:
        return command
    declared = inspect.signature(command.callback).parameters
    for parameter in command.params:
        if parameter.param_type_name == "argument" and not parameter.help and parameter.name in declared:
            about = getattr(declared[parameter.name].annotation, "__metadata__", ())
            parameter.help = next((one.help for one in about if hasattr(one, "help")), None)
    return command
