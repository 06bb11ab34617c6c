"""What a declaration takes of a few words, and the names of options: checked when it is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from state_engine.core.errors import ConfigurationError


def check_choice(given: object, choices: Sequence[str], *, what: str) -> Any:
    """The word itself; one that is none of the choices is refused.

    Example:
        >>> try:
        ...     check_choice("warning", ("error", "warn"), what="severity")
        ... except ConfigurationError as error:
        ...     print(error.args[0])
        severity must be 'error' or 'warn', not 'warning'
    """
    if given not in choices:
        listed = " or ".join(filter(None, [", ".join(map(repr, choices[:-1])), repr(choices[-1])]))
        raise ConfigurationError(f"{what} must be {listed}, not {given!r}")
    return given


def check_bound(given: object, *, what: str) -> None:
    """Refuse a bound that is not a whole number above zero; None is allowed.

    Example:
        >>> try:
        ...     check_bound("10", what="max_rows_per_batch")
        ... except ConfigurationError as error:
        ...     print(error.args[0])
        max_rows_per_batch must be at least 1, not '10'
    """
    if given is not None:
        check_count(given, what=what)


def check_count(given: object, *, what: str, least: int = 1) -> None:
    """Refuse what is not a whole number of at least ``least``."""
    if type(given) is not int or given < least:
        raise ConfigurationError(f"{what} must be at least {least}, not {given!r}")


def columns_of(given: Any, what: str) -> tuple[str, ...]:
    """Names of columns that a declaration was given; raises ConfigurationError where they are none."""
    if isinstance(given, str):
        raise ConfigurationError(f"{what}{given!r} must be a list of columns: [{given!r}]")
    names = tuple(given) if isinstance(given, Iterable) else (given,) if given else ()
    wrong = [name for name in names if not isinstance(name, str)]
    if wrong:
        raise ConfigurationError(f"{what} takes names of columns, not {wrong[0]!r}")
    return names


def check_mapping(given: object, *, what: str) -> None:
    """Refuse options that are no mapping of names, and names that differ by case only."""
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise ConfigurationError(f"{what}: options must be a dict such as {{'name': 'value'}}, not {given!r}")
    names: dict[str, str] = {}
    for name in given:
        check_once(names.setdefault(name.lower(), name), name, what=what)


def check_once(first: str, second: str, *, what: str) -> None:
    """Refuse two names of one option: which of the two values counts, nobody says."""
    if first != second:
        raise ConfigurationError(f"{what}: {first!r} and {second!r} are one option: leave one of them out")


def unknown_option(name: str, known: Iterable[str], *, what: str) -> ConfigurationError:
    """That there is no option of this name, with the one that may be meant, or else all of them.

    Example:
        >>> unknown_option("heder", ["header", "sep"], what="a reader of csv").args[0]
        "a reader of csv has no option 'heder'; did you mean 'header'?"
    """
    names = sorted(known)
    close = get_close_matches(name, names, 1)
    meant = f"; did you mean {close[0]!r}?" if close else f"; it has {names}"
    return ConfigurationError(f"{what} has no option {name!r}{meant}")
