"""State and results of windows, whether of a size or sessions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, get_args

from state_engine.core.choices import check_choice
from state_engine.core.errors import ConfigurationError, ValueTypeError
from state_engine.core.functions.contexts import KeyedContext
from state_engine.core.functions.output_tag import OutputTag
from state_engine.core.functions.process_functions import KeyedProcessFunction
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.functions.timestamped import Timestamped
from state_engine.core.time.local_times import EPOCH
from state_engine.core.types.row import RowKind
from state_engine.core.types.timestamps import MAX_TIMESTAMP
from state_engine.operators.aggregates.plan import AggregatePlan
from state_engine.operators.key_values import key_values
from state_engine.operators.windows.assigners import TimeWindow

Emit = Literal["final", "changes", "running"]
"""When results come out.

``final``: once, when no row can change them. ``changes``: when the window ends, and again for each row that
comes later. ``running``: for each row. The last two are changes of a table by key and window.
"""

TOO_LATE = "too_late"
"""Name of the metric that counts the rows which come too late for all of their windows."""


@dataclass(frozen=True)
class WindowSettings:
    """Options of a window operator, besides its windows.

    Attributes:
        lateness_ms: how long behind its end a window takes rows.
        late_to: the side output for rows that come too late for all of their windows; None drops them.
        record_key: see ``key_values``.

    Raises:
        ConfigurationError: there is no such way to emit, the lateness is below 0, or nothing could change.
    """

    lateness_ms: int = 0
    late_to: OutputTag | None = None
    emit: Emit = "final"
    record_key: bool = False

    def __post_init__(self) -> None:
        check_choice(self.emit, get_args(Emit), what="emit")
        if self.lateness_ms < 0:
            raise ConfigurationError(f"lateness must be 0 or more, not {self.lateness_ms} ms")
        if self.late_to is not None and not isinstance(self.late_to, OutputTag):
            raise ConfigurationError(f"late_to must be an OutputTag, not {self.late_to!r}")
        if self.emit == "changes" and self.lateness_ms == 0:
            raise ConfigurationError(
                "emit='changes' without lateness: no row can change a window that has ended, so use emit='final', or "
                "give a lateness"
            )

    @property
    def has_kinds(self) -> bool:
        """Whether results are taken back."""
        return self.emit != "final"


class WindowAccumulators:
    """What is kept of the rows of a window: their number and the accumulators of a plan."""

    def __init__(self, plan: AggregatePlan) -> None:
        self._plan = plan
        self.empty = (0, *(step.accumulator.create_accumulator() for step in plan.steps))

    def added(self, kept: tuple[Any, ...] | None, row: Any) -> tuple[Any, ...]:
        """With one more row."""
        rows, *accumulators = self.empty if kept is None else kept
        after = [rows + 1]
        for step, accumulator in zip(self._plan.steps, accumulators, strict=True):
            value = step.value_of(row)
            missed = accumulator is None or value is None
            after.append(accumulator if missed else step.accumulator.add(value, accumulator))
        return tuple(after)

    def merged(self, parts: Iterable[tuple[Any, ...]]) -> tuple[Any, ...] | None:
        """Those of several parts of a window together; None of none."""
        whole: tuple[Any, ...] | None = None
        for part in parts:
            whole = part if whole is None else self._together(whole, part)
        return whole

    def _together(self, one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
        after = [one[0] + other[0]]
        for step, a, b in zip(self._plan.steps, one[1:], other[1:], strict=True):
            after.append(None if a is None or b is None else step.accumulator.merge(a, b))
        return tuple(after)

    def results(self, kept: tuple[Any, ...]) -> list[Any]:
        """The values of the aggregates; null of one that came to the job when the window had rows."""
        shown = []
        for result in self._plan.results:
            accumulator = kept[0] if result.step is None else kept[1 + result.step]
            if result.step is not None and accumulator is not None:
                accumulator = self._plan.steps[result.step].accumulator.get_result(accumulator)
            shown.append(accumulator)
        return shown


class WindowResults:
    """Rows of results: the key, ``window_start``, ``window_end`` and the aggregates.

    Their event time is the last millisecond of the window.
    """

    def __init__(self, accumulators: WindowAccumulators, settings: WindowSettings) -> None:
        self._accumulators, self._settings = accumulators, settings

    def row(self, ctx: KeyedContext, window: TimeWindow, kept: tuple[Any, ...]) -> Timestamped:
        """The result of a window, as an insert."""
        key = key_values(ctx.get_current_key(), record=self._settings.record_key)
        bounds = map(_instant, window)
        return Timestamped((*key, *bounds, *self._accumulators.results(kept)), window.max_timestamp())

    def change(
        self,
        ctx: KeyedContext,
        window: TimeWindow,
        before: tuple[Any, ...] | None,
        after: tuple[Any, ...] | None,
    ) -> list[Any]:
        """What makes the result of a window another one; None stands for a window that is not shown."""
        if before is None and after is None:
            return []
        if before is None or after is None:
            kind, kept = (RowKind.INSERT, after) if before is None else (RowKind.DELETE, before)
            assert kept is not None
            return [(kind, self.row(ctx, window, kept))]
        return [
            (RowKind.UPDATE_BEFORE, self.row(ctx, window, before)),
            (RowKind.UPDATE_AFTER, self.row(ctx, window, after)),
        ]


class WindowFunction(KeyedProcessFunction):
    """What windows of a size and sessions have in common: when a window is shown and closed, and late rows."""

    def __init__(self, shape: str, plan: AggregatePlan, settings: WindowSettings) -> None:
        self.shape, self._settings = shape, settings
        self._accumulators = WindowAccumulators(plan)
        self._results = WindowResults(self._accumulators, settings)
        self.emits_changes, self.late_to = settings.has_kinds, settings.late_to

    def open(self, runtime_context: RuntimeContext) -> None:
        self._too_late = runtime_context.get_metrics_group().counter(TOO_LATE)

    def _late(self, value: Any) -> Iterable[Any]:
        """The output for a row that no window takes, which counts."""
        self._too_late.inc()
        return [] if self._settings.late_to is None else [(self._settings.late_to, value)]

    def _completes(self, window: TimeWindow) -> int:
        """The watermark at which a window has all rows that are in time."""
        raise NotImplementedError

    def _closes(self, window: TimeWindow) -> int:
        """The watermark at which a window is closed."""
        return plus(self._completes(window), self._settings.lateness_ms)

    def _shows(self, window: TimeWindow) -> int:
        """The watermark at which a window is shown for the first time; running ones are shown with their first row."""
        return self._closes(window) if self._settings.emit == "final" else self._completes(window)

    def _is_shown(self, window: TimeWindow, watermark: int) -> bool:
        return self._settings.emit == "running" or self._shows(window) <= watermark


def time_of(ctx: KeyedContext) -> int:
    """Event time of a row. Raises ValueTypeError where it has none."""
    at_ms = ctx.timestamp()
    if at_ms is None:
        raise ValueTypeError(
            "the row has no event time, so it is in no window: filter such rows, or give them one in a map before"
        )
    return at_ms


def plus(at_ms: int, span_ms: int) -> int:
    """A time so much later, and never behind the largest long."""
    return min(at_ms + span_ms, MAX_TIMESTAMP)


def check_bounds(window: TimeWindow) -> None:
    """Refuse a row of a window whose bounds are outside of all timestamps. Raises ValueTypeError."""
    try:
        _instant(window.start), _instant(window.end)
    except OverflowError:
        raise ValueTypeError(
            f"the row is in a window from {window.start} to {window.end} ms, which reaches out of the years 1 to 9999: "
            "filter such rows"
        ) from None


def _instant(at_ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=at_ms)
