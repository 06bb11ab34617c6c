"""``WaitingElements``: elements that a function keeps in its state and takes when a timer fires.

A timer is atomic. If it raises at one such element, the operator refuses this element instead of the timer, and the
others of the key go on. Decision 0122.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from state_engine.core.types.type_information import TypeInformation


class WaitedElement(NamedTuple):
    """An element that waited in the state of its key.

    Attributes:
        value: as the state holds it.
        timestamp: its event time in milliseconds.
        type: of the value.
        whole: whether the value is the element as it came, so that it can be sent again.
        place: where it stood, for messages.
    """

    value: Any
    timestamp: int
    type: TypeInformation
    whole: bool
    place: str


class WaitingElements(Protocol):
    """What a function says of the elements that it takes; ``OnTimerContext.waiting``."""

    def at_hand(self) -> WaitedElement | None:
        """The element that was taken last; None where the timer has taken none."""

    def set_aside(self) -> WaitedElement | None:
        """Remove the element that failed from the state, and return it; None where the timer has taken none.

        Called after the changes of the timer were undone.
        """
