"""What ``statelake doctor --repair`` can repair: finders, each of which looks at a root for one kind of damage.

A finder returns what it found and, for each, a function that repairs it. Guarantees: finding changes nothing; a repair
may be run again, and does nothing where it was done; finders look in the order of the list, each after what the ones
before it found was repaired. Neither Spark nor Java is started, unless a repair cannot be done without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from state_engine.monitoring.head_repair import head_damages
from state_engine.operations.damage import Damage
from state_engine.operations.root_repair import marker_damages

Finder = Callable[[str], Iterable[Damage]]
"""Looks at a root, given its URI."""

FINDERS: tuple[Finder, ...] = (marker_damages, head_damages)
"""In order: what comes later may rest on what comes before; without the root's id nothing else can be judged."""


def damages(uri: str) -> list[Damage]:
    """What the first finder that finds anything has found: later ones may rest on it. Nothing is changed."""
    return next((of_finder for finder in FINDERS if (of_finder := list(finder(uri)))), [])


def repair(
    uri: str,
    *,
    on_damage: Callable[[Damage], None] = lambda _: None,
    on_done: Callable[[str], None] = lambda _: None,
) -> list[Damage]:
    """Repair what can be; returns what is left for the user.

    Args:
        on_damage: called before each repair, and for what has none.
        on_done: called after each, with what was done.
    """
    for finder in FINDERS:
        left = []
        for damage in list(finder(uri)):
            on_damage(damage)
            if damage.apply is None:
                left.append(damage)
            else:
                on_done(damage.apply())
        if left:
            return left
    return []
