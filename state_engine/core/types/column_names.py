"""Names of columns and fields: which are the engine's own, and which ones a Delta table cannot have."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import pyarrow as pa

from state_engine.core.errors import ConfigurationError
from state_engine.core.types.walk import walked

RESERVED = "_statelake_"
"""Prefix of all columns of the engine."""
_NOT_IN_DELTA = " ,;{}()\n\t="


def storable_names(names: Iterable[str]) -> tuple[str, ...]:
    """Names of a key's columns or of a record's fields as tables of state, which are Delta tables, have them.

    Names that such tables do not distinguish get a number.

    Example:
        >>> storable_names(["id", "bill city", "Id", "100%"])
        ('id', 'bill%20city', 'Id__2', '100%')
    """
    stored: list[str] = []
    taken: set[str] = set()
    for name in names:
        first = name
        if any(c in _NOT_IN_DELTA for c in name):
            first = "".join(f"%{ord(c):02X}" if c in _NOT_IN_DELTA + "%" else c for c in name)
        stored.append(unused(first, taken, lambda name, n: f"{name}__{n}"))
        taken.add(stored[-1].lower())
    return tuple(stored)


def unused(name: str, taken: Collection[str], other: Callable[[str, int], str]) -> str:
    """The name, or where it is taken in lower case the first of the others that is not."""
    candidate, n = name, 1
    while candidate.lower() in taken:
        n += 1
        candidate = other(name, n)
    return candidate


def check_there(names: Iterable[str], columns: Sequence[str], *, what: str) -> None:
    """Refuse names of columns that a stream does not have."""
    missing = [name for name in names if name not in columns]
    if missing:
        raise ConfigurationError(
            f"{what}: there is no column {', '.join(map(repr, missing))}; the stream has {list(columns)}"
        )


def check_not_reserved(names: Iterable[str], *, what: str) -> None:
    """Refuse names that begin as those of the engine's columns do."""
    reserved = [name for name in names if name.lower().startswith(RESERVED)]
    if reserved:
        raise ConfigurationError(
            f"{what}: names that begin with {RESERVED} are the engine's own, and it has {reserved}: rename them"
        )


def check_delta_names(schema: Iterable[pa.Field], *, what: str, otherwise: str = "") -> None:
    """Refuse columns and fields that a Delta table without column mapping cannot have.

    Args:
        otherwise: another way out than to rename them.
    """
    refused = [name for field in schema for name in _names_in(field) if any(c in _NOT_IN_DELTA for c in name)]
    if refused:
        raise ConfigurationError(
            f"{what}: a Delta table cannot have columns with one of {_NOT_IN_DELTA!r} in their names, as {refused} "
            f"have. Rename them in a map or transform before{otherwise}"
        )


def check_distinct(names: Iterable[str], *, what: str, of: str) -> None:
    """Refuse names that differ in the case of letters only, where these are not distinguished."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(name.lower(), []).append(name)
    twice = [several for several in alike.values() if len(several) > 1]
    if twice:
        raise ConfigurationError(
            f"{what}: {of} does not distinguish the columns {twice[0]}: rename all but one in a map or transform before"
        )


def _names_in(field: pa.Field) -> list[str]:
    inner: list[str] = walked(
        field.type,
        leaf=lambda _: [],
        record=lambda part, names: [
            n for f, below in zip(part, names, strict=True) for n in (f.name, *below)
        ],
        sequence=lambda _, names: names,
        mapping=lambda _, keys, names: [*keys, *names],
    )
    return [field.name, *inner]
