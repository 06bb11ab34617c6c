"""Which columns of a file give the declared ones: by name, by one rule for all formats and readers.

A column goes by its exact name, else by one that differs in the case of letters only. Two that differ so are refused,
for Spark cannot tell them apart. What a file has besides is not read, or refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from state_engine.core.errors import BadFileError, ValueTypeError
from state_engine.sources.text.text_values import NameRules, given_names


def names_in_file(
    uri: str, there: Sequence[str], declared: Sequence[str], rules: NameRules, *, inside: str = ""
) -> dict[str, str]:
    """By declared column, the name of the file's column that gives it; those without one are left out.

    Args:
        inside: of the fields of a record, its column and a dot, for messages.

    Example:
        >>> names_in_file("a.csv", ["ID", "city"], ["id", "zip"], NameRules())
        {'id': 'ID'}
    """
    try:
        return given_names(there, declared, rules, what="the file", inside=inside)
    except ValueTypeError as error:
        raise BadFileError(f"{uri}: {error}", uri) from None
