"""Which columns of a file give the declared ones: by name, by one rule for all formats and readers.

A column goes by its exact name, else by one that differs in the case of letters only. Two that differ so are refused,
for Spark cannot tell them apart. What a file has besides is not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from state_engine.core.errors import BadFileError

Missing = Literal["null", "refuse"]
"""What a declared column is that a file does not have."""


def names_in_file(
    uri: str, there: Sequence[str], declared: Sequence[str], *, missing: Missing, inside: str = ""
) -> dict[str, str]:
    """By declared column, the name of the file's column that gives it; those without one are left out.

    Args:
        uri: of the file, for messages.
        there: names of the file's columns.
        declared: names of the declared columns.
        missing: ``refuse`` a file without a declared column, or have it ``null``.
        inside: of the fields of a record, its column and a dot, for messages.

    Raises:
        BadFileError: two columns could give a declared one, or none does and ``missing`` is ``refuse``.

    Example:
        >>> names_in_file("a.csv", ["ID", "city"], ["id", "zip"], missing="null")
        {'id': 'ID'}
    """
    alike: dict[str, list[str]] = {}
    for name in there:
        alike.setdefault(name.lower(), []).append(name)
    names: dict[str, str] = {}
    for name in declared:
        several = alike.get(name.lower(), [])
        if len(several) > 1:
            raise BadFileError(
                f"{uri}: the columns {several} differ in the case of letters only, or not at all, and "
                f"'{inside}{name}' is declared: rename all but one in the file",
                uri,
            )
        if several:
            names[name] = several[0]
    absent = [name for name in declared if name not in names]
    if absent and missing == "refuse":
        further = [name for name in there if name not in names.values()]
        lacking = ", ".join(repr(inside + name) for name in absent)
        raise BadFileError(
            f"{uri}: the file has no column {lacking}, which missing='refuse' of its FileSource asks for; it has "
            f"{further} that are not declared. Add or rename the column in the file, or set missing='null', or "
            "on_bad_file='dead_letter'",
            uri,
        )
    return names
