"""Counts in texts: ``1 row``, ``2,000 rows``."""

from __future__ import annotations

_WITH_ES = ("s", "x", "ch", "sh")


def counted(count: int, one: str, many: str | None = None) -> str:
    """A count and what it counts, in the singular for 1.

    Args:
        one: what 1 of them is called; with a verb, if one follows.
        many: what any other number of them is called; by default the plural of the last word of ``one``.

    Example:
        >>> counted(1, "row"), counted(0, "row"), counted(2_000, "key group")
        ('1 row', '0 rows', '2,000 key groups')
        >>> counted(2, "entry"), counted(2, "micro-batch"), counted(2, "key")
        ('2 entries', '2 micro-batches', '2 keys')
        >>> counted(1, "row is missing", "rows are missing"), counted(3, "row is missing", "rows are missing")
        ('1 row is missing', '3 rows are missing')
    """
    return f"{count:,} {one if count == 1 else many or _plural(one)}"


def _plural(noun: str) -> str:
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(_WITH_ES) else f"{noun}s"
