"""Which columns of a file give the declared ones: by name, by one rule for all formats and readers.

A column goes by its exact name, else by one that differs in the case of letters only. Two that differ so are refused,
for Spark cannot tell them apart. What a file has besides is not read.
"""

from __future__ import annotations

from collections.abc import Sequence

from state_engine.core.errors import BadFileError, ValueTypeError
from state_engine.sources.text.text_values import Missing, given_names


def names_in_file(
    uri: str, there: Sequence[str], declared: Sequence[str], *, missing: Missing, inside: str = ""
) -> dict[str, str]:
    """By declared column, the name of the file's column that gives it; those without one are left out.

    Args:
        missing: ``refuse`` a file without a declared column, or have it ``null``.
        inside: of the fields of a record, its column and a dot, for messages.

    Example:
        >>> names_in_file("a.csv", ["ID", "city"], ["id", "zip"], missing="null")
        {'id': 'ID'}
    """
    try:
        return given_names(there, declared, missing=missing, what="the file", inside=inside)
    except ValueTypeError as error:
        raise BadFileError(f"{uri}: {error}", uri) from None
