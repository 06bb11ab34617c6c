"""PyFlink's names of windows and triggers: programs port by their imports.

Each makes existing windows. A trigger is accepted if the windows fire in this way by themselves.
Mirrors ``pyflink.datastream.window``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from state_engine.core.errors import ConfigurationError
from state_engine.core.types.durations import Span
from state_engine.operators.windows.assigners import Session, Sliding, Tumbling
from state_engine.operators.windows.count_windows import Counted


@dataclass(frozen=True)
class ClockWindows:
    """Windows of the recorded clock: what ``window(…, time="clock")`` takes."""

    windows: Tumbling | Sliding | Session


class SessionWindowTimeGapExtractor:
    """Gives the gap behind each element, in milliseconds; a callable does as well."""

    def extract(self, element: Any) -> int:
        """The gap behind an element."""
        raise NotImplementedError(f"{type(self).__name__} must define extract(self, element)")


class TumblingEventTimeWindows:
    """Makes ``Tumbling`` windows."""

    @staticmethod
    def of(size: Span, offset: Span | None = None) -> Tumbling:
        """``Tumbling(size, offset)``."""
        return Tumbling(size, 0 if offset is None else offset)


class SlidingEventTimeWindows:
    """Makes ``Sliding`` windows."""

    @staticmethod
    def of(size: Span, slide: Span, offset: Span | None = None) -> Sliding:
        """``Sliding(size, every=slide, offset=offset)``."""
        return Sliding(size, slide, 0 if offset is None else offset)


class EventTimeSessionWindows:
    """Makes ``Session`` windows."""

    @staticmethod
    def with_gap(size: Span) -> Session:
        """``Session(size)``."""
        return Session(size)

    @staticmethod
    def with_dynamic_gap(extractor: SessionWindowTimeGapExtractor | Callable[[Any], Span]) -> Session:
        """``Session(extractor.extract)``."""
        return Session(_gap(extractor))


class DynamicEventTimeSessionWindows:
    """Makes ``Session`` windows of a computed gap."""

    @staticmethod
    def with_dynamic_gap(extractor: SessionWindowTimeGapExtractor | Callable[[Any], Span]) -> Session:
        """``Session(extractor.extract)``."""
        return Session(_gap(extractor))


class TumblingProcessingTimeWindows:
    """Makes ``Tumbling`` windows of the clock."""

    @staticmethod
    def of(size: Span, offset: Span | None = None) -> ClockWindows:
        """``Tumbling(size, offset)``, with ``time="clock"``."""
        return ClockWindows(TumblingEventTimeWindows.of(size, offset))


class SlidingProcessingTimeWindows:
    """Makes ``Sliding`` windows of the clock."""

    @staticmethod
    def of(size: Span, slide: Span, offset: Span | None = None) -> ClockWindows:
        """``Sliding(size, every=slide, offset=offset)``, with ``time="clock"``."""
        return ClockWindows(SlidingEventTimeWindows.of(size, slide, offset))


class ProcessingTimeSessionWindows:
    """Makes ``Session`` windows of the clock."""

    @staticmethod
    def with_gap(size: Span) -> ClockWindows:
        """``Session(size)``, with ``time="clock"``."""
        return ClockWindows(Session(size))

    @staticmethod
    def with_dynamic_gap(extractor: SessionWindowTimeGapExtractor | Callable[[Any], Span]) -> ClockWindows:
        """``Session(extractor.extract)``, with ``time="clock"``."""
        return ClockWindows(Session(_gap(extractor)))


class DynamicProcessingTimeSessionWindows:
    """Makes ``Session`` windows of the clock, of a computed gap."""

    @staticmethod
    def with_dynamic_gap(extractor: SessionWindowTimeGapExtractor | Callable[[Any], Span]) -> ClockWindows:
        """``Session(extractor.extract)``, with ``time="clock"``."""
        return ClockWindows(Session(_gap(extractor)))


class CountTumblingWindowAssigner:
    """Makes count windows, one behind the other."""

    @staticmethod
    def of(size: int) -> Counted:
        """The windows of ``count_window(size)``."""
        return Counted(size)


class CountSlidingWindowAssigner:
    """Makes count windows that overlap."""

    @staticmethod
    def of(size: int, slide: int) -> Counted:
        """The windows of ``count_window(size, slide)``."""
        return Counted(size, slide)


@dataclass(frozen=True)
class GlobalWindows:
    """One window for all rows of a key, which a ``CountTrigger`` fires."""

    @staticmethod
    def create() -> GlobalWindows:
        """The windows; ``trigger(CountTrigger.of(n))`` belongs behind them."""
        return GlobalWindows()


class Trigger:
    """When windows fire. Triggers of your own are refused: write a function with state and timers."""


@dataclass(frozen=True)
class EventTimeTrigger(Trigger):
    """Fires when the watermark ends a window: what windows of event time do by themselves."""

    @staticmethod
    def create() -> EventTimeTrigger:
        """The trigger."""
        return EventTimeTrigger()


@dataclass(frozen=True)
class ProcessingTimeTrigger(Trigger):
    """Fires when the clock ends a window: what windows of the clock do by themselves."""

    @staticmethod
    def create() -> ProcessingTimeTrigger:
        """The trigger."""
        return ProcessingTimeTrigger()


@dataclass(frozen=True)
class CountTrigger(Trigger):
    """Fires every so many rows, for ``GlobalWindows``: all rows of the key are kept."""

    count: int

    @staticmethod
    def of(window_size: int) -> CountTrigger:
        """The trigger."""
        return CountTrigger(window_size)


@dataclass(frozen=True)
class PurgingTrigger(Trigger):
    """Drops the rows of a window that another trigger fires: of a ``CountTrigger`` it makes count windows."""

    nested: Any

    @staticmethod
    def of(nested_trigger: Any) -> PurgingTrigger:
        """The trigger."""
        return PurgingTrigger(nested_trigger)


AnyWindows = Tumbling | Sliding | Session | Counted | Any


def triggered(windows: AnyWindows, trigger: Any, *, clock: bool) -> AnyWindows:
    """The windows that a trigger makes of others.

    Raises:
        ConfigurationError: the windows do not fire as the trigger says.
    """
    if isinstance(windows, GlobalWindows):
        if isinstance(trigger, CountTrigger):
            return Counted(trigger.count, grows=True)
        if isinstance(trigger, PurgingTrigger) and isinstance(trigger.nested, CountTrigger):
            return Counted(trigger.nested.count)
        raise ConfigurationError(
            f"{trigger!r} on GlobalWindows: only a CountTrigger fires them, alone or in a PurgingTrigger; use one, or "
            "a KeyedProcessFunction with state and timers"
        )
    by_default = ProcessingTimeTrigger if clock else EventTimeTrigger
    if isinstance(windows, Counted) or not isinstance(trigger, by_default):
        raise ConfigurationError(
            f"{trigger!r} on {windows!r}: a window fires when it ends. For results on the way use emit='running', for "
            "late rows lateness and emit='changes', and for anything else a KeyedProcessFunction with state and timers"
        )
    return windows


def _gap(extractor: Any) -> Callable[[Any], Span]:
    gap = extractor.extract if isinstance(extractor, SessionWindowTimeGapExtractor) else extractor
    if not callable(gap):
        raise ConfigurationError(
            f"with_dynamic_gap takes a SessionWindowTimeGapExtractor or a callable of the element, not {extractor!r}"
        )
    made: Callable[[Any], Span] = gap
    return made
