"""``WindowedStream``: a keyed stream whose rows are grouped by windows, ``keyed.window(Session("30 min"))``.

Mirrors ``org.apache.flink.streaming.api.datastream.WindowedStream``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from state_engine.core.errors import ConfigurationError
from state_engine.core.functions.output_tag import OutputTag
from state_engine.core.functions.process_functions import KeyedProcessFunction
from state_engine.core.types.durations import Span, to_milliseconds
from state_engine.core.types.type_parsing import to_type
from state_engine.job.declared_aggregates import (
    Key,
    check_aggregates,
    key_columns,
    record_key,
    result_columns,
)
from state_engine.job.graph import (
    OperatorInput,
    SourceNode,
    declared_type,
    stream_ends,
    type_in_code,
    upstream,
)
from state_engine.job.typed_by_input import TimedByInput
from state_engine.machine.defects import guarded_class
from state_engine.operators.aggregates.declarations import Aggregate
from state_engine.operators.aggregates.plan import plan
from state_engine.operators.windows.aligned_windows import WINDOWS, AlignedWindows
from state_engine.operators.windows.assigners import Cumulating, Session, Sliding, Tumbling
from state_engine.operators.windows.session_windows import SESSIONS, SessionWindows
from state_engine.operators.windows.window_results import Emit, WindowSettings
from state_engine.sources.output_type import OutputType

if TYPE_CHECKING:
    from state_engine.job.streams import DataStream

Assigner = Tumbling | Sliding | Cumulating | Session
BOUNDS = ("window_start", "window_end")
"""The columns that come out behind those of the key."""


@guarded_class
class WindowedStream:
    """What ``KeyedStream.window`` gives: say what is computed of each window."""

    def __init__(
        self,
        rows: OperatorInput,
        add: Callable[[TimedByInput, str | None], DataStream],
        windows: Assigner,
        *,
        lateness: Span = 0,
        late_to: OutputTag | None = None,
        emit: Emit = "final",
    ) -> None:
        if not isinstance(windows, Tumbling | Sliding | Cumulating | Session):
            raise ConfigurationError(
                f"window takes Tumbling(…), Sliding(…), Cumulating(…) or Session(…), not {windows!r}"
            )
        self._rows, self._add, self._windows = rows, add, windows
        self._settings = WindowSettings(to_milliseconds(lateness), late_to, emit)
        self._check_time()

    def aggregate(self, *, uid: str | None = None, **aggregates: Aggregate) -> DataStream:
        """The aggregates of the rows of each key and window.

        A result has the columns of the key, ``window_start`` and ``window_end`` (exclusive) as instants, and one column
        for each aggregate. Its event time is the last millisecond of the window. With ``emit="changes"`` and
        ``"running"`` it is a stream of changes, for a sink with the key ``[…, "window_start"]``. Rows that
        come too late for all of their windows go to ``late_to``, which ``get_side_output`` of the stream reads. The
        metric ``too_late`` counts them.

        Args:
            uid: identity of the operator and of its state: ``sessions``, ``windows``, or ``slices`` where they overlap.
            aggregates: ``count``, ``sum_``, ``avg``, ``min_`` and ``max_``, by the names of their columns.

        Raises:
            ConfigurationError: there is none, one does not fit the columns of the stream, or the stream changes.

        Example:
            >>> from state_engine import FileSource, Session, StatefulJob, count
            >>> job = StatefulJob("clicks")
            >>> clicks = job.source("clicks", FileSource("in", schema="user string, at timestamp"), event_time="at")
            >>> sessions = clicks.key_by("user").window(Session("30 min"), lateness="2 h").aggregate(n=count())
        """
        if not aggregates:
            raise ConfigurationError(
                "aggregate of a window needs aggregates by the name of the column that each becomes, as in "
                "aggregate(n=count(), total=sum_('amount'))"
            )
        check_aggregates(aggregates)
        key, windows, settings = self._rows.key, self._windows, self._settings
        assert key is not None
        made = TimedByInput(
            partial(_function, aggregates, key, windows, settings),
            gives=partial(_columns, aggregates, key),
            holds_back_ms=settings.lateness_ms + isinstance(windows, Session),
            shape=windows.shape,
            emits_changes=settings.has_kinds,
            shows=_shown(windows),
            late_to=settings.late_to,
        )
        declared = declared_type(self._rows.parent, type_in_code)
        if declared is not None:
            made.gives(declared)  # what does not fit is refused here and now
        results = self._add(made, uid)
        if settings.late_to is not None:
            results.get_side_output(settings.late_to)
        return results

    def _check_time(self) -> None:
        """Refuse a stream without event time, and one whose late rows are gone before a window could take them."""
        node = self._rows.parent
        if not any(isinstance(one, SourceNode) and one.timed for one in upstream(node)):
            raise ConfigurationError(
                f"window({self._windows!r}) needs event time, and none of the sources of the stream has it: give "
                "source(event_time=…), or assign_timestamps_and_watermarks(…)"
            )
        ends = [end for end in stream_ends(node) if isinstance(end, SourceNode) and end.late_to is not None]
        if ends and self._settings.lateness_ms:
            raise ConfigurationError(
                f"source '{ends[0].name}' diverts late rows before window({self._windows!r}) could take them: move "
                "late_to from the source to window(…, late_to=…), or leave lateness out"
            )


def _shown(windows: Assigner) -> tuple[str, str] | None:
    """The state with a row for each window; windows that overlap have none."""
    if isinstance(windows, Session):
        return SESSIONS, BOUNDS[0]
    return (WINDOWS, BOUNDS[0]) if isinstance(windows, Tumbling) else None


def _function(
    aggregates: Mapping[str, Aggregate],
    key: Key,
    windows: Assigner,
    settings: WindowSettings,
    kind: OutputType,
) -> KeyedProcessFunction:
    made = plan(aggregates, kind.columns, scalar=kind.scalar, changing=False)
    settings = replace(settings, record_key=record_key(key_columns(key, kind)))
    if isinstance(windows, Session):
        return SessionWindows(windows, made, settings)
    return AlignedWindows(windows, made, settings)


def _columns(aggregates: Mapping[str, Aggregate], key: Key, kind: OutputType) -> OutputType:
    clash = [name for name in key_columns(key, kind).names if name in BOUNDS]
    if clash:
        raise ConfigurationError(
            f"the key has a column '{clash[0]}', and a window puts one of this name out: rename it in a transform "
            "before key_by"
        )
    bounds = dict.fromkeys(BOUNDS, to_type("timestamp", parameter="bounds of a window"))
    return result_columns(aggregates, key, kind, changing=False, between=bounds)
