"""``Group``: commands that all print as text, JSON or CSV."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from inspect import Parameter
from typing import Annotated, Any, TypeVar

import typer

from state_engine.cli.command_group import Commands
from state_engine.cli.form import one_form, printing

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
