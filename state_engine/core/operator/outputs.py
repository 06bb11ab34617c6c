"""What a subtask of an operator produced in a micro-batch: outputs, side outputs and refusals, with their origins.

An origin says what an output came from, and so where it stands in the total order that outputs inherit:

| origin | what came from it | place |
|---|---|---|
| int | the element of this index, an ordered broadcast one too, and timers that it set when they were due | its own |
| ``TimerOrigin`` | a timer | see ``core.operator.output_order``: not where batches are cut |
| ``BroadcastOrigin`` | the broadcast element of this index | the element's, or first of all without ``order_by`` |
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from state_engine.core.functions.waiting_elements import WaitedElement
from state_engine.core.time.timers import AT_ONCE, Timer, place_of


class TimerOrigin(NamedTuple):
    """A timer that an output came from.

    Attributes:
        stage, at: when it fired: stage of the batch and time in it, see ``timers.Entry``.
    """

    stage: int
    at: int
    key: Any

    @property
    def event_ms(self) -> int | None:
        """Event time of what it yields; None for a timer of processing time."""
        return None if self.stage == AT_ONCE else self.at


class BroadcastOrigin(NamedTuple):
    """The broadcast element, by its index, that an output came from."""

    element: int


Origin = int | TimerOrigin | BroadcastOrigin


@dataclass(frozen=True)
class Refusal:
    """An element or a timer that its function refused.

    Attributes:
        index: position of the element in this subtask's input (of broadcast elements, where ``broadcast`` and these
            come first); None for a timer, and where opening, closing or a snapshot raised.
        key: its key; None where there is none.
        error: class and message of what was raised; for a timer also which one.
        waited: the element that was refused when a timer took it; None for any other.
    """

    index: int | None
    key: Any
    error: str
    traceback_text: str
    timer: Timer | None = None
    broadcast: bool = False
    waited: WaitedElement | None = None

    @property
    def place(self) -> str | None:
        """Where a refused timer stands, ``timer at 5 ms (event time)``, or what it took; None for anything else."""
        if self.waited is not None:
            return self.waited.place
        return None if self.timer is None else place_of(self.timer)

    def caused_by(self, error: Exception) -> Refusal:
        """The same, with what was raised: behind what it says already, and where."""
        return replace(
            self,
            error=f"{self.error}{type(error).__name__}: {error}",
            traceback_text="".join(traceback.format_exception(error)),
        )


class ElementRefused(Exception):
    """Ends the batch at the first refused element or timer; carries its Refusal."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.error)
        self.refusal = refusal


@dataclass
class SideOutputs:
    """The values of one side output and their origins, in the order they were yielded.

    Attributes:
        times_ms: event times of those that have their own, by place; a column beside ``table``.
        table: values as columns, instead of ``values``, where a function over columns gave them.
        kinds: beside ``table``, ``RowKind.value`` of each, where outputs have kinds.
    """

    values: list[Any] = field(default_factory=list)
    origins: Any = field(default_factory=list)
    times_ms: Any = field(default_factory=dict)
    table: Any = None
    kinds: Any = None


@dataclass
class ElementOutputs:
    """What a subtask produced: ``values[i]`` came from ``origins[i]``, in the order they were yielded.

    Attributes:
        values: normal outputs; where they have kinds, an ``ElementChange`` each.
        side: side outputs by the id of their tag; only those that got a value.
        times_ms, table, kinds: as of ``SideOutputs``.
    """

    values: list[Any] = field(default_factory=list)
    origins: Any = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    side: dict[str, SideOutputs] = field(default_factory=dict)
    times_ms: Any = field(default_factory=dict)
    table: Any = None
    kinds: Any = None

    def lengths(self) -> dict[str | None, int]:
        """How much there is, to come back to by ``cut``."""
        counts: dict[str | None, int] = {tag: len(side.values) for tag, side in self.side.items()}
        counts[None] = len(self.values)
        return counts

    def cut(self, lengths: dict[str | None, int]) -> None:
        """Drop what came after ``lengths``."""
        parts: list[tuple[str | None, Any]] = [(None, self), *self.side.items()]
        for tag, part in parts:
            length = lengths.get(tag, 0)
            for place in range(length, len(part.values)) if part.times_ms else ():
                part.times_ms.pop(place, None)
            del part.values[length:], part.origins[length:]

    def forget(self, origin: Origin) -> None:
        """Drop the newest outputs, as far back as they came from this origin."""
        parts: list[Any] = [self, *self.side.values()]
        for part in parts:
            while part.origins and part.origins[-1] == origin:
                part.origins.pop()
                part.values.pop()
                part.times_ms.pop(len(part.values), None)
