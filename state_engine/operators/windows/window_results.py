"""State and results of windows, whether of a size or sessions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from state_engine.core.choices import check_choice
from state_engine.core.errors import ConfigurationError, ValueTypeError
from state_engine.core.functions.contexts import KeyedContext
from state_engine.core.functions.output_tag import OutputTag
from state_engine.core.functions.process_functions import KeyedProcessFunction
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.functions.timestamped import Timestamped
from state_engine.core.functions.waiting_elements import WaitedElement
from state_engine.core.time.local_times import instant
from state_engine.core.types.row import RowKind
from state_engine.core.types.type_parsing import to_type
from state_engine.operators.aggregates.column_plan import PlanOverColumns
from state_engine.operators.aggregates.group_accumulators import GroupAccumulators
from state_engine.operators.aggregates.plan import AggregatePlan
from state_engine.operators.key_values import key_values
from state_engine.operators.lateness import Lateness, LateRows, plus, time_of
from state_engine.operators.windows.assigners import TimeWindow
from state_engine.operators.windows.contents import Contents, Kept

Emit = Literal["final", "changes", "running"]
"""When results come out.

``final``: once, when no row can change them. ``changes``: when the window ends, and again for each row that
comes later. ``running``: for each row. The last two are changes of a table by key and window.
"""


@dataclass(frozen=True)
class WindowSettings:
    """Options of a window operator, besides its windows.

    Attributes:
        lateness_ms: how long behind its end a window takes rows.
        late_to: the side output for rows that come too late for all of their windows; None drops them.
        firings: whether a window is shown when it ends, and again for each later row, each time as an insert: what
            Flink does.
        clock: whether windows are of the recorded clock of micro-batches, and not of event time.

    Raises:
        ConfigurationError: there is no such way to emit, the lateness is below 0, or nothing could change.
    """

    lateness_ms: int = 0
    late_to: OutputTag | None = None
    emit: Emit = "final"
    firings: bool = False
    clock: bool = False

    def __post_init__(self) -> None:
        check_choice(self.emit, get_args(Emit), what="emit")
        Lateness(self.lateness_ms, self.late_to)
        if self.clock and (self.lateness_ms or self.late_to is not None):
            raise ConfigurationError(
                "windows of the clock have no late rows: a row is in the window of the moment at which it comes. Leave "
                "lateness and late_to out, or use windows of event time"
            )
        if self.firings and self.has_kinds:
            raise ConfigurationError(
                f"allowed_lateness with emit='{self.emit}': each firing is one more insert, and takes nothing back; "
                "leave emit out, or give window(…, lateness=…) instead"
            )
        if self.emit == "changes" and self.lateness_ms == 0:
            raise ConfigurationError(
                "emit='changes' without lateness: no row can change a window that has ended, so use emit='final', or "
                "give a lateness"
            )

    @property
    def form(self) -> str:
        """What says which results came out already, as text behind the shape of the windows. Decision 0116."""
        return f" {'firings' if self.firings else self.emit} lateness {self.lateness_ms}"

    @property
    def has_kinds(self) -> bool:
        return self.emit != "final"

    @property
    def shows_once(self) -> bool:
        """Whether a window is shown once, when it is closed."""
        return self.emit == "final" and not self.firings

    @property
    def shows_again(self) -> bool:
        """Whether a window is shown when it ends, and again for rows that come later."""
        return self.emit == "changes" or self.firings


class WindowAccumulators(Contents):
    """The accumulators of a plan."""

    def __init__(self, plan: AggregatePlan, *, takes_back: bool = False) -> None:
        super().__init__(**{step.name: step.accumulator.accumulator_type for step in plan.steps})
        self.plan = plan
        self._rows, self.takes_back = GroupAccumulators(plan, in_windows=True), takes_back

    def open(self, runtime_context: RuntimeContext) -> None:
        self._rows.open(runtime_context)

    def close(self) -> None:
        self._rows.close()

    def added(self, kept: Kept | None, row: Any, part: int, at: int) -> Kept:
        return self._rows.added(kept, row, at, part)

    def taken_back(self, kept: Kept | None, row: Any, part: int) -> Kept | None:
        return self._rows.taken_back(kept, row, part)

    def merged(self, parts: Iterable[Kept], start: int, end: int) -> Kept | None:
        return self._rows.merged(list(parts), (start, end))

    def joined(self, parts: Sequence[int], whole: int) -> None:
        for part in parts:
            if part != whole:
                self._rows.move(part, whole)

    def dropped(self, part: int, end: int) -> None:
        self._rows.forget(part)

    def elements(self, start: int, end: int, kept: Kept) -> list[Any]:
        """The values of the aggregates; null of one that came to the job when the window had rows."""
        return [self._rows.results(kept, (start, end))]


class Emitter:
    """Makes the outputs of a window from what its contents give: these as they are."""

    clears = False
    """Whether it wants to know of windows that are closed."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get states, and open a function."""

    def close(self) -> None:
        """Close a function."""

    def outputs(self, ctx: KeyedContext, window: Any, elements: list[Any]) -> Iterable[Any]:
        return elements

    def cleared(self, ctx: KeyedContext, window: Any, *, calls: bool = True) -> None:
        """A window is closed; ``calls`` says whether its function is called."""


class RowsWithBounds(Emitter):
    """Rows of the key, ``window_start`` and ``window_end`` (or the ``window_id`` of a count window), and the contents.

    Args:
        record_key: see ``key_values``; None leaves the key out.
    """

    def __init__(self, *, record_key: bool | None = False) -> None:
        self._record_key = record_key

    @property
    def shows_key(self) -> bool:
        return self._record_key is not None

    def outputs(self, ctx: KeyedContext, window: Any, elements: list[Any]) -> Iterable[Any]:
        record = self._record_key
        key = () if record is None else key_values(ctx.get_current_key(), record=record)
        bounds = tuple(map(instant, window)) if isinstance(window, TimeWindow) else tuple(window)
        return [(*key, *bounds, *columns) for columns in elements]


Rows = list[Any]
"""The outputs of a window."""
Call = tuple[str, TimeWindow]
"""What a function of a window does, and the window."""
BOUNDS = ("window_start", "window_end")
"""The columns that come out behind those of the key."""
BOUNDS_TYPE = to_type(", ".join(f"{name} timestamp" for name in BOUNDS), parameter="bounds of a window")


class WindowOperator(KeyedProcessFunction):
    """What windows of a size and sessions have in common: when a window is shown and closed, and late rows.

    If the function of a window raises in a timer, the operator refuses this window, see ``WaitingElements``: it closes
    without results, and the other windows of the key go on.
    """

    def __init__(self, shape: str, contents: Contents, emitter: Emitter, settings: WindowSettings) -> None:
        self.shape, self._settings = shape + settings.form + contents.form, settings
        self._contents, self._emitter = contents, emitter
        self.accepts_changes = contents.takes_back
        self.emits_changes, self.late_to = settings.has_kinds, settings.late_to
        self._late = LateRows(settings.late_to)
        # when the watermark is at a time all rows of it have come; by the clock, more of them may come in a micro-batch
        self._behind_ms = int(settings.clock)
        self._at_hand: Call | None = None
        self._timer: tuple[Any, int] | None = None
        self._failed: set[Call] = set()

    def open(self, runtime_context: RuntimeContext) -> None:
        self._timer = None
        self._late.open(runtime_context)
        self._contents.open(runtime_context)
        self._emitter.open(runtime_context)

    def close(self) -> None:
        self._contents.close()
        self._emitter.close()

    def plan_over_columns(self) -> PlanOverColumns | None:
        """The declared aggregates over columns; None where something else is computed."""
        contents, emitter, settings = self._contents, self._emitter, self._settings
        plain = type(contents) is WindowAccumulators and type(emitter) is RowsWithBounds and emitter.shows_key
        if not plain or contents.takes_back or settings.clock:
            return None
        assert isinstance(contents, WindowAccumulators)
        return PlanOverColumns.of(contents.plan)

    # -- rows ------------------------------------------------------------------------------------------------------

    def _rows(self, ctx: KeyedContext, window: TimeWindow, kept: Kept) -> Rows:
        """The outputs of a window, whose event time is its last millisecond; by the clock they have no other one."""
        elements = self._contents.elements(window.start, window.end, kept)
        outputs = self._emitter.outputs(ctx, window, elements)
        if self._settings.clock:
            return list(outputs)
        return [timed(output, window.max_timestamp()) for output in outputs]

    def _change(self, before: Rows | None, after: Rows | None) -> Rows:
        """What makes the outputs of a window others; None stands for a window that is not shown."""
        if self._settings.firings:
            return after or []
        if before is None or after is None:
            kind = RowKind.INSERT if before is None else RowKind.DELETE
            return [(kind, row) for row in before or after or []]
        return [
            change
            for old, new in zip(before, after, strict=True)
            for change in ((RowKind.UPDATE_BEFORE, old), (RowKind.UPDATE_AFTER, new))
        ]

    # -- functions of windows in a timer ---------------------------------------------------------------------------

    def at_hand(self) -> WaitedElement | None:
        """As of ``WaitingElements``: the window whose function runs."""
        if self._at_hand is None:
            return None
        _, window = self._at_hand
        bounds = (instant(window.start), instant(window.end))
        return WaitedElement(
            bounds, window.max_timestamp(), BOUNDS_TYPE, whole=False, place="a window when its time had come"
        )

    def set_aside(self) -> WaitedElement | None:
        """As of ``WaitingElements``: the window, whose function does not run again in this timer."""
        if self._at_hand is None or self._at_hand in self._failed:
            return None
        self._failed.add(self._at_hand)
        return self.at_hand()

    def _begin_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> None:
        timer = (ctx.get_current_key(), timestamp)
        if timer != self._timer:  # else it fires again, without the windows that failed
            self._timer, self._failed = timer, set()
        ctx.waiting, self._at_hand = self, None

    def _clear_in_timer(self, ctx: KeyedContext, window: TimeWindow) -> None:
        self._emitter.cleared(ctx, window, calls=self._goes_well("clear", window))

    def _goes_well(self, what: str, window: TimeWindow) -> bool:
        """Whether a function of a window has not raised in this timer; it is at hand from now on."""
        self._at_hand = what, window
        return self._at_hand not in self._failed

    # -- times -----------------------------------------------------------------------------------------------------

    def _time_of(self, ctx: KeyedContext) -> int:
        return ctx.current_processing_time() if self._settings.clock else time_of(ctx)

    def _now(self, ctx: KeyedContext) -> int:
        """What ends windows: the watermark, or the clock."""
        return ctx.current_processing_time() if self._settings.clock else ctx.current_watermark()

    def _set_timer(self, ctx: KeyedContext, at_ms: int) -> None:
        timers = ctx.timer_service()
        if self._settings.clock:
            timers.register_processing_time_timer(at_ms)
        else:
            timers.register_event_time_timer(at_ms)

    def _delete_timer(self, ctx: KeyedContext, at_ms: int) -> None:
        timers = ctx.timer_service()
        if self._settings.clock:
            timers.delete_processing_time_timer(at_ms)
        else:
            timers.delete_event_time_timer(at_ms)

    def _completes(self, window: TimeWindow) -> int:
        raise NotImplementedError

    def _closes(self, window: TimeWindow) -> int:
        return plus(self._completes(window), self._settings.lateness_ms)

    def _shows(self, window: TimeWindow) -> int:
        """The watermark at which a window is shown for the first time; running ones are shown with their first row."""
        return self._closes(window) if self._settings.shows_once else self._completes(window)

    def _is_shown(self, window: TimeWindow, watermark: int) -> bool:
        return self._settings.emit == "running" or self._shows(window) <= watermark


def timed(output: Any, at_ms: int) -> Any:
    if isinstance(output, tuple) and len(output) == 2 and isinstance(output[0], OutputTag):
        return output[0], timed(output[1], at_ms)
    return output if type(output) is Timestamped else Timestamped(output, at_ms)


def check_bounds(window: TimeWindow) -> None:
    """Refuse a row of a window whose bounds are outside of all timestamps. Raises ValueTypeError."""
    try:
        instant(window.start), instant(window.end)
    except OverflowError:
        raise ValueTypeError(
            f"the row is in a window from {window.start} to {window.end} ms, which reaches out of the years 1 to 9999: "
            "filter such rows"
        ) from None
