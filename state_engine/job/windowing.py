"""``Windowing``: the windows of a stream, from which each method of a ``WindowedStream`` makes its operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from state_engine.core.choices import check_choice
from state_engine.core.errors import ConfigurationError
from state_engine.core.functions.output_tag import OutputTag
from state_engine.core.functions.process_functions import KeyedProcessFunction
from state_engine.core.keys.key_form import DeclaredKey
from state_engine.core.types.durations import Span, to_milliseconds
from state_engine.core.types.type_information import TypeInformation, TypeLike
from state_engine.core.types.type_parsing import to_type
from state_engine.job.changing_streams import check_times_of_changes, from_origins, origins_of_changes
from state_engine.job.declared_aggregates import Key, key_columns, record_key
from state_engine.job.graph import (
    OperatorInput,
    declared_type,
    type_in_code,
)
from state_engine.job.late_outputs import check_event_time
from state_engine.job.typed_by_input import TimedByInput, TypedByInput, forgetting
from state_engine.operators.aggregates.accumulators import BIGINT
from state_engine.operators.idle_keys import IdleTime
from state_engine.operators.windows.aligned_windows import WINDOWS, AlignedWindows
from state_engine.operators.windows.assigners import Cumulating, Session, Sliding, Tumbling
from state_engine.operators.windows.contents import Contents
from state_engine.operators.windows.count_windows import Counted, CountWindows
from state_engine.operators.windows.flink_names import ClockWindows, GlobalWindows
from state_engine.operators.windows.session_windows import SESSIONS, SessionWindows
from state_engine.operators.windows.window_results import (
    BOUNDS,
    Emit,
    Emitter,
    RowsWithBounds,
    WindowSettings,
)
from state_engine.sources.output_type import OutputType

if TYPE_CHECKING:
    from state_engine.job.streams import DataStream

Windows = Tumbling | Sliding | Cumulating | Session | Counted | GlobalWindows
Assigner = Windows | ClockWindows
_WINDOWS = (Tumbling, Sliding, Cumulating, Session, Counted, GlobalWindows)
WINDOW_ID = "window_id"
"""The column that comes out of count windows instead: their number among those of the key, from 0."""
Adds = Callable[[TypedByInput, str | None, TypeLike], "DataStream"]
"""Adds an operator behind the stream: takes its function, its uid, and the type of its outputs where it is declared."""
Parts = Callable[[OutputType], tuple[Contents, Emitter]]
"""What is kept of rows of some kind, and what comes out."""


@dataclass(frozen=True)
class Windowing:
    """Windows of the rows of a stream.

    Attributes:
        idle: how long count windows keep a key without rows; None for ever.

    Raises:
        ConfigurationError: they are none, the stream has no event time, or its late rows are gone before.
    """

    rows: OperatorInput
    add: Adds
    windows: Windows
    settings: WindowSettings
    idle: IdleTime | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.windows, _WINDOWS):
            raise ConfigurationError(
                f"window takes Tumbling(…), Sliding(…), Cumulating(…) or Session(…), not {self.windows!r}"
            )
        if isinstance(self.windows, Counted | GlobalWindows):
            self._check_no_time()
        elif not self.settings.clock:
            check_event_time(
                self.rows.parent,
                what=f"window({self.windows!r})",
                lateness_ms=self.settings.lateness_ms,
                otherwise="; or use the clock, time='clock'",
            )
        self._check_changes()

    @property
    def origins_of_changes(self) -> list[str]:
        """What makes the rows change; empty where they are only added."""
        return origins_of_changes(self.rows.parent)

    @property
    def key(self) -> Key:
        assert self.rows.key is not None
        return self.rows.key

    @property
    def merge(self) -> bool:
        """Whether windows may become part of others."""
        return isinstance(self.windows, Session)

    @property
    def single_parts(self) -> bool:
        """Whether a window is one part, which is never merged with another one."""
        return isinstance(self.windows, Tumbling) or (
            isinstance(self.windows, Counted) and self.windows.single_parts
        )

    def shown_key(self, kind: OutputType) -> DeclaredKey:
        return key_columns(self.key, kind)

    def bounded_rows(self, kind: OutputType) -> RowsWithBounds:
        key = self.shown_key(kind)
        return RowsWithBounds(record_key=record_key(key) if key.names else None)

    def operator(
        self,
        parts: Parts,
        *,
        form: str,
        shows: tuple[str, str | None] | None = None,
        uid: str | None,
        gives: Callable[[OutputType], OutputType] | None = None,
        output_type: TypeLike = None,
        accepts_changes: bool = False,
    ) -> DataStream:
        """Add the operator, and read the side output of its late rows.

        Args:
            form: what is kept, see ``Contents``.
            shows: the state that a table of windows shows, see ``Function``; without, that of the windows.
            gives: what comes out for rows of some kind; without, and without ``output_type``, such rows.
        """
        windows, settings = self.windows, self.settings

        if isinstance(windows, GlobalWindows):
            raise ConfigurationError(
                "GlobalWindows never fire by themselves: add trigger(CountTrigger.of(n)), alone or in a "
                "PurgingTrigger, or use other windows"
            )

        def made(kind: OutputType) -> KeyedProcessFunction:
            contents, emitter = parts(kind)
            if isinstance(windows, Counted):
                return CountWindows(windows, contents, emitter, settings)
            if isinstance(windows, Session):
                return SessionWindows(windows, contents, emitter, settings)
            return AlignedWindows(windows, contents, emitter, settings)

        function: TypedByInput
        shape = windows.shape + settings.form + form
        if isinstance(windows, Counted):
            function = forgetting(TypedByInput(made, gives=gives, shape=shape), self.idle)
        else:
            function = TimedByInput(
                made,
                gives=gives,
                holds_back_ms=None if settings.clock else settings.lateness_ms + isinstance(windows, Session),
                shape=shape,
                accepts_changes=accepts_changes,
                emits_changes=settings.has_kinds,
                changes_keep_time=settings.has_kinds and not settings.clock,
                windows_differ_in=self._differ_in if settings.has_kinds else (),
                # what is kept of windows that overlap is kept by parts of theirs
                shows=(shows or self._shown) if isinstance(windows, Session | Tumbling) else None,
                late_to=settings.late_to,
                timers_yield=not settings.clock and settings.emit != "running",
            )
        declared = declared_type(self.rows.parent, type_in_code)
        if declared is not None:  # what does not fit is refused here and now
            function.gives(declared)
            parts(declared)
        return self.add(function, uid, output_type)

    def columns_between(self, kind: OutputType) -> dict[str, TypeInformation]:
        """The columns that come out between those of the key and of the results."""
        between = self._columns_of_window()
        clash = [name for name in self.shown_key(kind).names if name in between]
        if clash:
            raise ConfigurationError(
                f"the key has a column '{clash[0]}', and a window puts one of this name out: rename it in a transform "
                "before key_by"
            )
        return between

    def _columns_of_window(self) -> dict[str, TypeInformation]:
        if isinstance(self.windows, Counted):
            return {} if self.windows.grows else {WINDOW_ID: BIGINT}
        return dict.fromkeys(BOUNDS, to_type("timestamp", parameter="bounds of a window"))

    def _check_no_time(self) -> None:
        settings = self.settings
        if settings.lateness_ms or settings.late_to is not None or settings.has_kinds or settings.clock:
            raise ConfigurationError(
                "windows of so many rows have no time, no late rows and one result each: leave lateness, late_to, "
                "emit and time out"
            )

    @property
    def _shown(self) -> tuple[str, str]:
        return SESSIONS if isinstance(self.windows, Session) else WINDOWS, BOUNDS[0]

    @property
    def _differ_in(self) -> tuple[str, ...]:
        """The bounds each of which differs between all windows of a key."""
        start, end = BOUNDS
        if isinstance(self.windows, Cumulating):  # those of a day begin together
            return (end,)
        if isinstance(self.windows, Sliding) and self.windows.time_zone is not None:
            return (start,)  # where the clock changes, some end together
        return (start, end)

    def _check_changes(self) -> None:
        """Refuse sessions, and windows of the clock, of rows that are updated and deleted."""
        origins = self.origins_of_changes
        if not origins:
            return
        what = f"window({self.windows!r}) takes inserts only, and its stream holds updates and deletes, too"
        if self.merge:
            raise ConfigurationError(
                f"{what}{from_origins(origins)}: a deleted row may split a session. Keep the rows in a "
                "KeyedProcessFunction, or drop duplicates before"
            )
        if self.settings.clock:
            raise ConfigurationError(
                f"{what}{from_origins(origins)}: by the clock a row that is taken back is in another window than it "
                "was. Use windows of event time"
            )
        if not isinstance(self.windows, Counted | GlobalWindows):
            check_times_of_changes(self.rows.parent, what=f"window({self.windows!r})")


WindowTime = Literal["event", "clock"]
"""Which time windows are of."""


def windowing(
    add: Callable[..., DataStream],
    rows: OperatorInput,
    windows: Assigner,
    *,
    lateness: Span = 0,
    late_to: OutputTag | None = None,
    emit: Emit = "final",
    time: WindowTime = "event",
    idle: IdleTime | None = None,
) -> Windowing:
    """Windows of a stream, as ``window`` and ``window_all`` take them."""
    check_choice(time, get_args(WindowTime), what="time")
    if isinstance(windows, ClockWindows):
        windows, time = windows.windows, "clock"

    def added(function: TypedByInput, uid: str | None, output_type: TypeLike) -> DataStream:
        return add((rows,), function, method="window", uid=uid, output_type=output_type)

    settings = WindowSettings(to_milliseconds(lateness), late_to, emit, clock=time == "clock")
    return Windowing(rows, added, windows, settings, idle)
