"""Functions of a keyed stream whose state is meant for a table: ``keyed.scd2(…)`` and ``keyed.top_n(…)``.

Their state has the type of the rows, which may show only when these come. Decision 0065.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from state_engine.core.errors import ConfigurationError
from state_engine.core.functions.output_tag import OutputTag
from state_engine.core.state.ttl import StateTtlConfig
from state_engine.core.types.durations import Span, to_milliseconds
from state_engine.job.changing_streams import is_changing, sequence_of_feeds
from state_engine.job.duplicates import Duplicates, EmitOfDuplicates, Keep
from state_engine.job.graph import Node, OperatorInput, SelectedKey, declared_type, type_in_code
from state_engine.job.late_outputs import check_event_time
from state_engine.job.lists_of_rows import check_rows, ranked_columns
from state_engine.job.silences import Silences
from state_engine.job.stream import Stream, column_names, idle_time
from state_engine.job.typed_by_input import TimedByInput, TypedByInput, forgetting
from state_engine.job.windowed_stream import WindowedStream
from state_engine.job.windowing import Assigner, WindowTime, windowing
from state_engine.machine.defects import guarded_class
from state_engine.operators.lateness import Lateness
from state_engine.operators.scd2 import Scd2, Untracked, shape_of
from state_engine.operators.top_n import TopN
from state_engine.operators.windows.count_windows import Counted
from state_engine.operators.windows.window_results import Emit
from state_engine.sources.output_type import OutputType

if TYPE_CHECKING:
    from state_engine.job.streams import DataStream

Key = tuple[str, ...] | SelectedKey


@guarded_class
class TableFunctions(Stream):
    """Methods of ``KeyedStream`` that keep a state for a table."""

    _key: Key

    def window(
        self,
        windows: Assigner,
        *,
        lateness: Span = 0,
        late_to: OutputTag | None = None,
        emit: Emit = "final",
        time: WindowTime = "event",
    ) -> WindowedStream:
        """Group the rows of each key by windows of event time.

        ``keyed.window(Session("30 min"), lateness="2 h").aggregate(n=count())``. A window takes rows until the
        watermark is ``lateness`` behind its end, and then nothing of it is kept.

        Args:
            windows: ``Tumbling``, ``Sliding``, ``Cumulating`` or ``Session``; or what PyFlink's names make.
            lateness: how long behind its end a window takes rows. Operators that read the results have a watermark so
                much earlier.
            late_to: the side output for rows that come too late for all of their windows; without, they are dropped and
                counted.
            emit: ``final`` puts each window out once, when it takes no more rows; ``changes`` when it ends, and again
                for each later row; ``running`` for each row. The last two make a stream of changes.
            time: ``clock`` for windows of the recorded clock of micro-batches, which is the time of all of their rows:
                how rows are cut into micro-batches decides which window they are in. A replay repeats it.

        Raises:
            ConfigurationError: the stream has no event time, late rows are gone before, or nothing could change.
        """
        rows = OperatorInput(self._node, self._key)
        made = windowing(self._add, rows, windows, lateness=lateness, late_to=late_to, emit=emit, time=time)
        return WindowedStream(made)

    def count_window(
        self, size: int, slide: int | None = None, *, ttl: Span | StateTtlConfig | None = None
    ) -> WindowedStream:
        """Group every so many rows of each key: ``keyed.count_window(3).aggregate(total=sum_("cents"))``.

        A window comes out as its last row comes, in the total order of the rows; one that is not full never does. Its
        ``window_id`` numbers the windows of a key, from 0. The rows of a key are numbered for ever, unless ``ttl`` says
        otherwise.

        Args:
            size: how many rows a window has.
            slide: how many rows lie between the starts of two windows, not above the size; by default as many. Rows
                before the first full window do not fire, other than in Flink's Java API.
            ttl: forget a key this time after its last row: its next row is the first one of window 0 again, and what
                has come of a window that is not full is gone.

        Raises:
            ConfigurationError: a number is below 1, or the slide above the size.
        """
        idle = idle_time(self._node, ttl, method="count_window")
        rows = OperatorInput(self._node, self._key)
        return WindowedStream(windowing(self._add, rows, Counted(size, slide), idle=idle))

    def drop_duplicates(
        self,
        *,
        within: Span | None = None,
        keep: Keep = "first",
        sequence: str | Sequence[str] | None = None,
        emit: EmitOfDuplicates = "at_once",
        lateness: Span = 0,
        late_to: OutputTag | None = None,
        ttl: Span | StateTtlConfig | None = None,
        uid: str | None = None,
    ) -> DataStream:
        """One row of each key, or one each time: ``orders.key_by("id").drop_duplicates(within="7 days")``.

        Whole rows come out. With ``keep="first"`` it is the first row of the key; with ``within``, a row that is nearer
        to one that came out is a duplicate, and one as far away, or farther, is none. Duplicates are not counted from,
        so the result depends neither on cuts nor on how far the watermark is. With ``keep="last"`` the changes of the
        last row of each key come out. Without ``within``, one entry for each key is kept for ever, unless ``ttl`` says
        otherwise. The state is ``seen``, or ``row`` of the last rows: ``publish(table)`` shows it.

        Args:
            within: the span of event time in which rows of one key are duplicates, before and behind.
            keep: ``first`` or ``last``.
            sequence: columns that order the rows of a key, for ``keep="last"``. By default their event time; of a
                stream that changes, or has no event time, the total order.
            emit: ``at_once`` puts the row out that comes first. ``final`` waits until no earlier row can come, and puts
                the row with the least event time out, however they came.
            lateness: how long behind the watermark a row is taken. Operators that read the results have a watermark so
                much earlier.
            late_to: the side output for rows that come later; without, they are dropped and counted.
            ttl: forget a key this time after its last row: its next row is the first one again.
            uid: identity of the operator and of its state.

        Raises:
            ConfigurationError: the stream has no event time and needs it, changes where the first row is kept, or the
                arguments do not fit each other.

        Example:
            >>> from state_engine import FileSource, StatefulJob
            >>> job = StatefulJob("payments")
            >>> source = FileSource("in", schema="id string, cents bigint, at timestamp")
            >>> payments = job.source("payments", source, event_time="at")
            >>> once = payments.key_by("id").drop_duplicates(within="7 days")
        """
        late = Lateness(to_milliseconds(lateness), late_to)
        within_ms = None if within is None else to_milliseconds(within)
        asked = Duplicates(within_ms, keep, sequence, emit, late, forgets=ttl is not None)
        made = asked.function(self._node, _columns(self._key))
        return self._table_function(made, "drop_duplicates", uid, ttl)

    def silent(
        self,
        after: Span,
        *,
        lateness: Span = 0,
        back: bool = False,
        take: Sequence[str] = (),
        forget_after: Span | None = None,
        uid: str | None = None,
    ) -> DataStream:
        """Find keys that have no row for some time: ``sensors.key_by("id").silent(after="10 min")``.

        Give the source ``watermark="clock"``: where nothing else comes, only the clock says that time goes on. A result
        has the columns of the key, ``silent_since``, which is the time of the last row, and those of ``take``. It comes
        once a silence, when all rows of this time have come; a row exactly ``after`` later is in it. One entry for
        each key is kept for ever, unless ``forget_after`` says otherwise, in the state ``last_seen``, which
        ``publish(table)`` shows. When a job is drained, all keys become silent.

        Args:
            after: how long a key may be without rows.
            lateness: how long behind the watermark a row is taken. Rows that come later are dropped and counted.
            back: whether one more row comes when a key speaks again, with its time in ``back_at``.
            take: columns of the last row that come out, too.
            forget_after: forget a key this time after its last row, not before its silence: its next row is its first
                one.
            uid: identity of the operator and of its state.

        Raises:
            ConfigurationError: the stream has no event time, or changes; a span is none, or a column is unknown or has
                the name of another one.

        Example:
            >>> from state_engine import FileSource, StatefulJob
            >>> job = StatefulJob("sensors")
            >>> source = FileSource("in", schema="id string, degrees double, at timestamp")
            >>> sensors = job.source("sensors", source, event_time="at", watermark="clock", clock_delay="1 min")
            >>> silences = sensors.key_by("id").silent(after="10 min", back=True)
        """
        asked = Silences(
            to_milliseconds(after),
            to_milliseconds(lateness),
            back,
            column_names(take, what="take of silent"),
            None if forget_after is None else to_milliseconds(forget_after),
        )
        return self._table_function(asked.function(self._node, self._key), "silent", uid, None)

    def scd2(
        self,
        *,
        valid_from: str,
        tracked: Sequence[str] | None = None,
        sequence: str | Sequence[str] | None = None,
        merge_equal: bool = True,
        untracked: Untracked = "first",
        lateness: Span | None = None,
        late_to: OutputTag | None = None,
        ttl: Span | StateTtlConfig | None = None,
        uid: str | None = None,
    ) -> DataStream:
        """Keep all versions of each key, with the time from which and until which each was valid (SCD 2).

        They are in the map state ``versions``; publish it: ``keyed.scd2(valid_from="moved", uid="homes")
        .publish(DeltaStateTable(path))``. Or read the stream: it has the changes of the versions, each with the
        columns of the key, ``valid_from``, ``valid_to``, ``is_current`` and the others. Rows may come in any order. See
        ``Scd2``.

        Args:
            valid_from: the column with the time from which a row is valid.
            tracked: the columns whose change makes a version; all but those of the key, the time and the sequence by
                default.
            sequence: columns that order the rows of one key and time, the greatest counts: then any order of arrival
                gives the same versions. By default that of the ``ChangeFormat`` of the stream's sources.
            merge_equal: False makes every row a version.
            untracked: ``last`` lets a version show the last of its rows, and not the first, in columns not tracked.
            lateness: how far behind the watermark the ``valid_from`` of a row may be. Then rows that are part of a
                version, and deletions, are kept only as long as a row could come before them. By default for ever.
            late_to: the side output for rows that come later; without, they are dropped and counted.
            ttl: forget a key, with all of its versions, this time after its last row. A published table loses them.
                By default the state grows with the rows, for ever.
            uid: identity of the operator and of its state.

        Raises:
            ConfigurationError: as ``Scd2`` does; where the stream declares its type, here and now. Or the stream has no
                event time and needs it, or the arguments do not fit each other.
        """
        asked = Versions(valid_from, tracked, sequence, merge_equal, untracked, lateness, late_to)
        versions = self._table_function(
            asked.function(self._node, _columns(self._key), ttl), "scd2", uid, ttl
        )
        if late_to is not None:
            versions.get_side_output(late_to)
        return versions

    def top_n(
        self,
        n: int,
        *,
        by: str | Sequence[str],
        ascending: bool = False,
        ties: bool = False,
        rank: bool = True,
        ttl: Span | StateTtlConfig | None = None,
        uid: str | None = None,
    ) -> DataStream:
        """Keep the greatest rows of each key by rank, in the map state ``top``.

        Publish it: ``keyed.top_n(3, by="points", uid="best").publish(DeltaStateTable(path))``. Or read the stream: it
        has the changes of the list by rank, each row with its ``rank``. There is no ``emit``: a list without a window
        has no end, so nothing of it is final. On a stream that changes all rows are kept, to take some back.
        ``keyed.window(…).top_n(…)`` is a list for each window. See ``TopN``.

        Args:
            n: how many ranks there are.
            by: columns to compare, from the first to the last; null is below every value, NaN above all.
            ascending: the least rows instead of the greatest.
            ties: also keep all rows that are equal to the n-th.
            rank: False puts rows out without rank: those that come into the list, and that leave it.
            ttl: forget a key this time after its last row. Its list is deleted, also in a published table. By default
                there are ``n`` rows for each key, for ever.
            uid: identity of the operator and of its state.

        Raises:
            ConfigurationError: as ``TopN`` does; where the stream declares its type, here and now.
        """
        keep_all = is_changing(self._node)
        made = TypedByInput(
            partial(_top_n, _columns(self._key), n, by, keep_all, ascending, ties, rank),
            gives=partial(ranked_columns, rank=rank),
            accepts_changes=keep_all,
            emits_changes=True,
            shows=TopN.shows,
        )
        return self._table_function(made, "top_n", uid, ttl)

    def _table_function(
        self, made: TypedByInput, method: str, uid: str | None, ttl: Span | StateTtlConfig | None
    ) -> DataStream:
        made = forgetting(made, idle_time(self._node, ttl, method=method))
        declared = declared_type(self._node, type_in_code)
        if declared is not None:
            made.gives(declared)
            made.bound(declared)  # what does not fit is refused here and now
        by_key = (OperatorInput(self._node, self._key),)
        return self._add(by_key, made, method=method, uid=uid, output_type=None)


def _columns(key: Key) -> tuple[str, ...]:
    return () if isinstance(key, SelectedKey) else key


def _top_n(
    key: tuple[str, ...],
    n: int,
    by: str | Sequence[str],
    keep_all: bool,
    ascending: bool,
    ties: bool,
    rank: bool,
    kind: OutputType,
) -> TopN:
    check_rows(kind, "top_n")
    return TopN(kind.columns, n, by=by, key=key, keep_all=keep_all, ascending=ascending, ties=ties, rank=rank)


@dataclass(frozen=True)
class Versions:
    """The arguments of ``scd2``, see there."""

    valid_from: str
    tracked: Sequence[str] | None
    sequence: str | Sequence[str] | None
    merge_equal: bool
    untracked: Untracked
    lateness: Span | None
    late_to: OutputTag | None

    def function(self, node: Node, key: tuple[str, ...], ttl: Span | StateTtlConfig | None) -> TypedByInput:
        """What the operator runs.

        Args:
            key: the columns that the stream is keyed by.

        Raises:
            ConfigurationError: the arguments do not fit each other, or the stream has no event time and needs it.
        """
        late = self._late(node, ttl)
        of_feeds = sequence_of_feeds(node) if self.sequence is None else None
        made = partial(self._scd2, key, of_feeds, late)
        typed = TypedByInput if late is None else TimedByInput
        return typed(
            made,
            gives=partial(_columns_of, made),
            holds_back_ms=None if late is None else late.ms,
            shape=shape_of(self.untracked, late),
            accepts_changes=Scd2.accepts_changes,
            emits_changes=Scd2.emits_changes,
            shows=Scd2.shows,
            late_to=None if late is None else late.late_to,
        )

    def _late(self, node: Node, ttl: Span | StateTtlConfig | None) -> Lateness | None:
        if self.lateness is None:
            if self.late_to is not None:
                raise ConfigurationError(
                    "scd2 takes all rows, however late, and late_to would get none: give lateness, too, or leave "
                    "late_to out"
                )
            return None
        late = Lateness(to_milliseconds(self.lateness), self.late_to)
        check_event_time(node, what="scd2(lateness=…)", lateness_ms=late.ms)
        if ttl is not None:
            raise ConfigurationError(
                "scd2 with lateness takes no ttl, because a row that is too late must not keep its key: leave one of "
                "them out"
            )
        return late

    def _scd2(
        self, key: tuple[str, ...], of_feeds: str | None, late: Lateness | None, kind: OutputType
    ) -> Scd2:
        check_rows(kind, "scd2")
        sequence = self.sequence
        if of_feeds in kind.columns.names and of_feeds not in (*key, self.valid_from):
            sequence = of_feeds
        return Scd2(
            kind.columns,
            key=key,
            valid_from=self.valid_from,
            tracked=self.tracked,
            sequence=sequence,
            merge_equal=self.merge_equal,
            untracked=self.untracked,
            lateness=late,
        )


def _columns_of(made: partial[Scd2], kind: OutputType) -> OutputType:
    return OutputType(made(kind).results, scalar=False)
