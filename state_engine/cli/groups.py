"""``Group``: commands that all print as text, JSON or CSV."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from inspect import Parameter
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup

from state_engine.cli.form import one_form, printing


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


_Function = TypeVar("_Function", bound=Callable[..., Any])
_OPTIONS = {
    "as_json": Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")],
    "as_csv": Annotated[bool, typer.Option("--csv", help="Print CSV with a header.")],
}


class Group(typer.Typer):
    """A group of commands; each has the options ``--json`` and ``--csv``."""

    def __init__(self, help: str, *, cls: type[Commands] = Commands, **options: Any) -> None:
        super().__init__(help=help, no_args_is_help=True, cls=cls, **options)

    def command(self, *args: Any, **options: Any) -> Callable[[_Function], _Function]:
        register = super().command(*args, **options)

        def add(function: _Function) -> _Function:
            register(_with_forms(function))
            return function

        return add


def _with_forms(function: Callable[..., None]) -> Callable[..., None]:
    """A command that has the options besides its own."""

    @wraps(function)
    def command(*, as_json: bool, as_csv: bool, **given: Any) -> None:
        with printing(one_form("json" if as_json else "table", "csv" if as_csv else "table")):
            function(**given)

    own = inspect.signature(function, eval_str=True)
    added = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=False, annotation=kind)
        for name, kind in _OPTIONS.items()
    ]
    parameters = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in own.parameters.values()] + added
    command.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command
