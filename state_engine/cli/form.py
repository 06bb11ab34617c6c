"""In which form the command that runs prints: for people, or for programs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

from state_engine.core.errors import ConfigurationError

Form = Literal["table", "json", "csv"]

_FORM: ContextVar[Form] = ContextVar("form", default="table")


def form() -> Form:
    return _FORM.get()


def for_people() -> bool:
    """Whether people read what this command prints."""
    return form() == "table"


@contextmanager
def printing(wanted: Form) -> Iterator[None]:
    """Have what is called within print in a form."""
    token = _FORM.set(wanted)
    try:
        yield
    finally:
        _FORM.reset(token)


def one_form(*asked: Form) -> Form:
    """What options ask for together; ``table`` asks for nothing."""
    forms = set(asked) - {"table"}
    if len(forms) > 1:
        raise ConfigurationError("give --json or --csv, not both")
    return forms.pop() if forms else "table"
