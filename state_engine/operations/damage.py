"""``Damage``: something that is wrong in a root, and what repairs it. Found by the finders that ``repairs`` lists.

Decision 0021.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Damage:
    """Something that is wrong in a root.

    Attributes:
        repair: what the repair will do, or, where there is none, what the user must do.
        apply: does it, and returns what was done; may be called again. None where only the user can.
    """

    name: str
    problem: str
    repair: str
    apply: Callable[[], str] | None = None
