"""One spelling for names of jobs, operators, states, sources and sinks.

They become directory, table, column and asset names, so they match ``[a-z][a-z0-9_]*`` everywhere: no path can be
smuggled in and nothing needs quoting.
"""

from __future__ import annotations

import re

from state_engine.core.errors import InvalidNameError

_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
_LONGEST = 100


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
