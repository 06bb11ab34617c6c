"""``check_choice``: what a declaration takes of a few words, checked when it is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from state_engine.core.errors import ConfigurationError


def check_choice(given: object, choices: Sequence[str], *, what: str) -> Any:
    """The word itself; one that is none of the choices is refused.

    Args:
        what: names the parameter, and what it belongs to.

    Raises:
        ConfigurationError: names all choices.

    Example:
        >>> check_choice("warning", ("error", "warn"), what="severity")
        Traceback (most recent call last):
        state_engine.core.errors.ConfigurationError: severity must be 'error' or 'warn', not 'warning'
        ConfigurationError: its causes and ways out are in docs/reference/errors.md#configurationerror
    """
    if given not in choices:
        listed = ", ".join(map(repr, choices[:-1]))
        raise ConfigurationError(f"{what} must be {listed} or {choices[-1]!r}, not {given!r}")
    return given
