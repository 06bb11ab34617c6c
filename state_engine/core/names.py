"""Names: how users may spell them, and what those that become files and columns are stored as.

Names of jobs, sources, sinks, branches and savepoints match ``[a-z][a-z0-9_]*`` everywhere. Uids, states and side
outputs may have any name, as in Flink, and are the same only where they are spelled the same; in paths, columns and
identifiers they appear as :func:`stored_name` spells them, and nowhere else does a name become one of these. So no path
can be smuggled in, nothing needs quoting, and names that differ only in case are apart on file systems and in tables
that ignore it. Decision 0019.
"""

from __future__ import annotations

import hashlib
import re

from state_engine.core.errors import InvalidNameError

_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
_PART = re.compile(r"[a-z0-9_][a-z0-9_-]*\Z", re.ASCII | re.IGNORECASE)
_LONGEST = 100
LONGEST_TEXT = 255
"""The most characters of a uid, of a state's name and of a side output's."""
_STORED = re.compile(r".*__[0-9a-f]{20}\Z")
_DIGITS, _PREFIX = 20, 40


def check_name(name: object, *, what: str) -> str:
    """The name itself, or InvalidNameError saying what it names and how it must look.

    Example:
        >>> check_name("plane_delays", what="job")
        'plane_delays'
    """
    if isinstance(name, str) and _NAME.match(name) and len(name) <= _LONGEST:
        return name
    article = "an" if what[0] in "aeiou" else "a"
    raise InvalidNameError(
        f"{name!r} cannot name {article} {what}: use lower-case letters, digits and underscores, begin with a letter, "
        f"at most {_LONGEST} characters (for example 'plane_delays')"
    )


def check_text_name(name: object, *, what: str) -> str:
    """The name of an operator, a state or a side output itself; InvalidNameError where it is no text, or too long.

    Example:
        >>> check_text_name("text state", what="state")
        'text state'
    """
    if isinstance(name, str) and 0 < len(name) <= LONGEST_TEXT and is_unicode(name):
        return name
    article = "an" if what[0] in "aeiou" else "a"
    raise InvalidNameError(
        f"{name!r} cannot name {article} {what}: use a text of 1 to {LONGEST_TEXT} characters (for example 'late-data')"
    )


def check_table_name(name: object) -> tuple[str, ...]:
    """The parts of the name of a table in a catalog: a catalog, where one is named, its schemas, and the table.

    Example:
        >>> check_table_name("lake.flights"), check_table_name("prod.lake.flights")[0]
        (('lake', 'flights'), 'prod')
    """
    parts = tuple(name.split(".")) if isinstance(name, str) else ()
    if len(parts) > 1 and all(_PART.match(part) and len(part) <= LONGEST_TEXT for part in parts):
        return parts
    raise InvalidNameError(
        f"{name!r} cannot name a table of a catalog: write schema.table or catalog.schema.table, each part of letters, "
        "digits, underscores and hyphens (for example 'lake.flights'); the schema is always named, because that of a "
        "session differs from one to the next"
    )


def stored_name(name: str, *, longest: int = _LONGEST) -> str:
    """What a name is called in paths, columns and identifiers: always ``[a-z][a-z0-9_]*``, another for each name.

    A short name of that form is stored as it is. Any other, and one that looks as if it came from here, becomes a
    readable prefix and a digest, so that two names never meet.

    Args:
        name: of an operator, a state or a side output.
        longest: names of more characters get a digest, too; at least 62, which is the length of the longest of those.

    Example:
        >>> stored_name("plane_delays"), stored_name("sumOfTips")
        ('plane_delays', 'sum_of_tips__f13c6ae8340d6b02d620')
    """
    if _NAME.match(name) and len(name) <= longest and not _STORED.match(name):
        return name
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    prefix = re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")[:_PREFIX].rstrip("_")
    if not prefix[:1].isalpha():
        prefix = f"n_{prefix}"[:_PREFIX].rstrip("_")
    return f"{prefix}__{hashlib.sha256(name.encode()).hexdigest()[:_DIGITS]}"


def is_unicode(name: str) -> bool:
    """Whether it can be written as UTF-8; half of a surrogate pair cannot."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
