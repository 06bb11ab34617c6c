"""``Lateness``: which rows come too late for an operator, and where they go.

The rules that all operators share which wait for rows by event time. Windows have
rules of their own for the rows that they take; those that no window takes go the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from state_engine.core.errors import ConfigurationError, ValueTypeError
from state_engine.core.functions.contexts import KeyedContext
from state_engine.core.functions.output_tag import OutputTag
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.time.local_times import instant
from state_engine.core.types.row import RowKind
from state_engine.core.types.timestamps import MAX_TIMESTAMP

TOO_LATE = "too_late"
"""Name of the metric that counts the rows which come too late."""


@dataclass(frozen=True)
class Lateness:
    """How long an operator waits for rows, and where those go that come later.

    Attributes:
        ms: a row of time ``t`` is too late once the watermark before it is ``t + ms`` or more.
        late_to: the side output for such rows; None drops them.

    Raises:
        ConfigurationError: the time is below 0, or the side output is none.
    """

    ms: int = 0
    late_to: OutputTag | None = None

    def __post_init__(self) -> None:
        if self.ms < 0:
            raise ConfigurationError(f"lateness must be 0 or more, not {self.ms} ms")
        if self.late_to is not None and not isinstance(self.late_to, OutputTag):
            raise ConfigurationError(f"late_to must be an OutputTag, not {self.late_to!r}")

    @property
    def form(self) -> str:
        """What says which rows the state has let go already, as text for the shape of an operator. Decision 0116."""
        return f"lateness {self.ms}"

    def ends(self, at_ms: int) -> int:
        """The watermark at which rows of a time have all come."""
        return plus(at_ms, self.ms)

    def is_over(self, at_ms: int, watermark: int) -> bool:
        """Whether a row of a time is too late."""
        return self.ends(at_ms) <= watermark


class LateRows:
    """Counts the rows that come too late, and sends them to a side output; they keep their kind.

    Args:
        late_to: the side output; None drops them.
    """

    def __init__(self, late_to: OutputTag | None) -> None:
        self._late_to = late_to

    def open(self, runtime_context: RuntimeContext) -> None:
        self._too_late = runtime_context.get_metrics_group().counter(TOO_LATE)

    def outputs(self, value: Any, ctx: KeyedContext) -> list[Any]:
        self._too_late.inc()
        if self._late_to is None:
            return []
        kind = ctx.row_kind()
        return [(self._late_to, value if kind is RowKind.INSERT else (kind, value))]


def time_of(ctx: KeyedContext) -> int:
    """Event time of a row. Raises ValueTypeError where it has none."""
    at_ms = ctx.timestamp()
    if at_ms is None:
        raise ValueTypeError(
            "the row has no event time, which its operator needs: filter such rows, or give them one in a map before"
        )
    return at_ms


def check_time(at_ms: int | None) -> None:
    """Refuse an event time that no timestamp has. Raises ValueTypeError."""
    try:
        if at_ms is not None:
            instant(at_ms)
    except OverflowError:
        raise ValueTypeError(
            f"the event time of the row, {at_ms} ms, is not in the years 1 to 9999: filter such rows"
        ) from None


def plus(at_ms: int, span_ms: int) -> int:
    """A time so much later, and never behind the largest long."""
    return min(at_ms + span_ms, MAX_TIMESTAMP)
