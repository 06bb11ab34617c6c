"""Properties of Kafka's clients: a name that is nearly one of them, or a value that none takes, is refused when given.

Kafka passes over names that it does not know, and plug-ins have names of their own. So only names that look like a slip
are refused. ``properties.txt`` lists what the clients declare, one property a line: its name, which of them have it
(``A``: admin, ``C``: consumers, ``P``: producers), its type, and the numbers (``least..greatest``) or words that it
takes. ``tests/kafka/test_kafka_properties.py`` compares it with the installed
clients.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Literal

from state_engine.core.choices import check_choice
from state_engine.core.errors import ConfigurationError

LIST = Path(__file__).with_name("properties.txt")
_SIDES = {
    "KafkaSource": ("consumer", "producer", "KafkaSink"),
    "KafkaSink": ("producer", "consumer", "KafkaSource"),
}
_ALIKE = 0.88
"""From this likeness on a name that is not known is a slip."""


def check_properties(given: Mapping[str, Any], *, of: str) -> None:
    """Refuse a slip in a name, and a value that Kafka's clients do not take."""
    for name, value in given.items():
        check_name(name, of=of)
        _, kind, takes = _known().get(name, ("", "text", []))
        what = f"{of}: the option {name!r}"
        if kind == "words":
            check_choice(value, takes, what=what)
        elif kind == "WORDS":  # in any case
            check_choice(str(value).upper(), takes, what=what)
        elif kind == "flag":
            check_choice(str(value).lower(), ("true", "false"), what=what)
        elif kind in ("whole", "real"):
            _check_number(value, kind, takes[0], what)


def check_name(name: str, *, of: str) -> None:
    """Refuse a slip in a name of a property; raises ConfigurationError."""
    close = [] if name in _known() else get_close_matches(name, _known(), 1, _ALIKE)
    if close:
        raise ConfigurationError(f"{of}: Kafka has no property {name!r}; did you mean {close[0]!r}?")


def check_side(names: Iterable[str], *, of: Literal["KafkaSource", "KafkaSink"]) -> None:
    """Refuse properties of consumers alone for a sink, and of producers alone for a source; others have no effect."""
    own, other, place = _SIDES[of]
    for name in names:
        if _known().get(name, ("",))[0] == other[0].upper():
            raise ConfigurationError(
                f"{of}: the option {name!r} is one of {other}s, and this is a {own}, on which it has no effect: leave "
                f"it out, or give it to the {place}"
            )


@cache
def _known() -> dict[str, tuple[str, str, list[str]]]:
    """Clients and type of each property, and what it takes."""
    lines = (line.split() for line in LIST.read_text().splitlines())
    return {name: (clients, kind, takes) for name, clients, kind, *takes in lines}


def _check_number(value: Any, kind: str, bounds: str, what: str) -> None:
    least, _, most = bounds.partition("..")
    pattern = r"-?\d+" if kind == "whole" else r"-?\d+(\.\d+)?"
    if not re.fullmatch(pattern, str(value)):
        raise ConfigurationError(
            f"{what} must be a {'whole ' if kind == 'whole' else ''}number, not {value!r}"
        )
    if not float(least or "-inf") <= float(value) <= float(most or "inf"):
        allowed = f"{least} to {most}" if most else f"at least {least}"
        raise ConfigurationError(f"{what} must be {allowed}, not {value!r}")
