"""``Scd2``: all versions of each key, each with the time from which and until which it was valid (SCD 2).

The state ``versions`` is what a table shows, ready to be published: one entry a version. Flink has no counterpart; it
is the history that a ``FOR SYSTEM_TIME AS OF`` join looks into (its ``TemporalRowTimeJoinOperator`` keeps such a map).
Decision 0065.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, time
from itertools import islice
from typing import Any, Literal, NamedTuple, get_args

from state_engine.core.argument_checks import checked_function
from state_engine.core.choices import check_choice
from state_engine.core.errors import ConfigurationError
from state_engine.core.functions.contexts import KeyedContext
from state_engine.core.functions.process_functions import KeyedProcessFunction
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.keys.ordering import key_order
from state_engine.core.state.descriptors import SortedMapStateDescriptor
from state_engine.core.state.sorted_map_state import SortedMapState
from state_engine.core.time.local_times import milliseconds_of
from state_engine.core.types.every_type import BooleanType, DateType, StructType, TimestampType
from state_engine.core.types.row import Row, RowKind, row_class
from state_engine.core.types.type_information import TypeInformation, TypeLike
from state_engine.operators.idle_keys import ForgettableFunction
from state_engine.operators.key_values import key_values
from state_engine.operators.keyed_rows import GONE, KeyedRows, same
from state_engine.operators.lateness import Lateness, LateRows

VERSIONS, UNSHOWN, DELETED = "versions", "unshown", "deleted"
"""Names of the states: what is published, what else is needed to correct it, and the sequences of deletions."""
VALID_FROM, VALID_TO, IS_CURRENT = "valid_from", "valid_to", "is_current"
"""Columns of a version beside those of its row; the first is the key of the map."""

Untracked = Literal["first", "last"]
"""Which of the rows that are one version gives the columns whose change makes none."""
Entry = tuple[Any, Any]
"""Of a map."""
Change = tuple[RowKind, Any, Row]
"""Of a version: its kind, the time from which it is valid, and its columns."""


class Event(NamedTuple):
    """What came for a key at a time: a row, or the end of the row before, where ``row`` is None.

    Attributes:
        ends: the end of the version, where the event is shown as one.
    """

    at: Any
    row: Row | None
    ends: Any = None
    shown: bool = False


class Scd2(ForgettableFunction):
    """Keeps every version of each key in the sorted map state ``versions``, and emits what changes in it.

    The key of an entry is the time from which the version is valid. Its value has the columns ``valid_to`` (the time of
    the next version or deletion; null where there is none), ``is_current`` (whether it is null) and those of the row.
    Rows may arrive in any order:

    * A row between two versions splits the time of the first one. A row of a time that is known replaces what came
      before it, also a deletion; of rows of one time, the last one in the total order counts.
    * A row that is equal to the one before it in time, in the columns ``tracked``, is not a version of its own; the
      version shown is the first of such rows, with all of its columns; with ``untracked="last"`` the last one. The row
      is kept, in the state ``unshown``: where a later correction makes it differ, it becomes a version again.
    * A delete ends the version of its time, and a later row begins a new one. An ``update_before`` does the same,
      unless any other row has its time: as its ``update_after`` has.
    * With ``sequence``, the row or deletion with the greatest sequence counts among those of one time, in any order of
      arrival, and one that arrives again changes nothing. Of one sequence, a row counts before a deletion, because a
      commit that replaces a row has both.

    An ``update_before`` that ends a version is that of a row whose key changed. It needs a ``valid_from`` that is the
    time of the change, such as the time of the commit. With a time of the row itself, it has the time at which its
    version began, and ends nothing; likewise a delete then removes the version instead of ending it.

    An output is a version with the columns of the key, ``valid_from``, and those of the state. An element gives the
    deletes of versions that are gone; then, by ``valid_from``, a pair for each that is another one, and the inserts.

    State: a new row costs the same however many versions there are; a correction looks at all of its key's.
    ``versions`` holds an entry for each version, for ever. ``unshown`` holds one for each row that is equal to the one
    before, and for each deletion; with ``untracked="last"`` also one for each version that shows a later row.
    ``deleted``, with a sequence, holds one for each deletion. Without ``lateness`` they stay for ever. With it, both
    have at most ``1 + r`` entries a key, where ``r`` are its rows and deletions in ``unshown`` whose time was above
    ``watermark - lateness`` as its last row came: no other row can come before these.

    Args:
        row_type: type of the elements.
        valid_from: the column with the time from which a row is valid; any type that has an order.
        key: the columns that the stream is keyed by; the state holds the others. Empty where a function gives the key.
        tracked: the columns whose change makes a version; all that the state holds by default, but for the sequence.
        sequence: columns that order the rows of a key and of a time, compared from the first to the last; not of the
            key. ``valid_from`` among them orders nothing within a time.
        merge_equal: False makes every row a version. To change this, or ``tracked``, changes versions only where later
            rows stand beside them.
        untracked: which of the rows that are one version gives its columns that are not tracked: ``first`` or ``last``.
        lateness: how far behind the watermark the time of a row, its ``valid_from``, may be. One that comes later
            changes nothing, is counted in the metric ``too_late``, and goes to a side output. None takes all rows.

    Raises:
        ConfigurationError: a column is unknown or not kept, has no order, or has a name that is taken; or arguments do
            not fit each other.
        ValueTypeError: of a row, when it is processed: it has not this type, no time, or no sequence.

    Example:
        >>> from state_engine.testing import KeyedHarness
        >>> cities = Scd2("id bigint, city string, moved bigint", key=["id"], valid_from="moved")
        >>> harness = KeyedHarness(cities, key_by=lambda row: row.id)
        >>> rows = [(1, "Turin", 10), (1, "Rome", 30), (1, "Bari", 20), (1, "Bari", 25)]
        >>> changes = harness.process([Row("id", "city", "moved")(*row) for row in rows])
        >>> [(str(kind), row) for kind, row in changes[:2]]
        [('+I', (1, 10, None, True, 'Turin')), ('-U', (1, 10, None, True, 'Turin'))]
        >>> for valid_from, version in sorted(harness.state("versions")[1].items()):
        ...     print(valid_from, version)
        10 Row(valid_to=20, is_current=False, city='Turin')
        20 Row(valid_to=30, is_current=False, city='Bari')
        30 Row(valid_to=None, is_current=True, city='Rome')
    """

    accepts_changes = True
    emits_changes = True
    shows = (VERSIONS, VALID_FROM)

    @checked_function
    def __init__(
        self,
        row_type: TypeLike,
        *,
        valid_from: str,
        key: Iterable[str] = (),
        tracked: Iterable[str] | None = None,
        sequence: str | Sequence[str] | None = None,
        merge_equal: bool = True,
        untracked: Untracked = "first",
        lateness: Lateness | None = None,
    ) -> None:
        key = self._key = tuple(key)
        self._rows = KeyedRows(row_type, apart=[*key, valid_from], operator="Scd2")
        self._shows_last = check_choice(untracked, get_args(Untracked), what="untracked") == "last"
        if self._shows_last and not merge_equal:
            raise ConfigurationError(
                "Scd2: with merge_equal=False each row is a version, with its own columns: leave untracked out"
            )
        self._valid_from, self._merge_equal = (valid_from,), merge_equal
        [self._time_type] = self._rows.in_order(self._valid_from, what="valid_from").types
        kept = self._rows.kept
        self._sequence = self._within_a_time(sequence, key)
        by_default = tuple(name for name in kept.names if name not in self._sequence)
        self._tracked = by_default if tracked is None else self._rows.named(tracked)
        apart = [name for name in self._tracked if name not in kept.names]
        if apart:
            raise ConfigurationError(
                f"Scd2: {apart} of the key or of the time cannot be tracked: a version has one"
            )
        taken = sorted({VALID_FROM, VALID_TO, IS_CURRENT} & {*key, *kept.names})
        if taken:
            raise ConfigurationError(f"Scd2 adds columns of these names: rename {taken} of the rows")
        version = StructType(
            (VALID_TO, IS_CURRENT, *kept.names),
            (self._time_type, BooleanType(), *kept.types),
            "row",
            aliases=kept.aliases,
        )
        front = self._rows.only(key)
        self.results = StructType(
            (*front.names, VALID_FROM, *version.names),
            (*front.types, self._time_type, *version.types),
            "row",
            aliases=self._rows.columns.aliases,
        )
        self.shape = shape_of(untracked, lateness)
        self._lateness, self._late = lateness, LateRows(lateness.late_to if lateness else None)
        if lateness is not None:
            self.holds_back_ms, self.late_to = lateness.ms, lateness.late_to
            _check_time(self._time_type, valid_from)
        self._versions_descriptor = SortedMapStateDescriptor(VERSIONS, self._time_type, version)
        self._unshown_descriptor = SortedMapStateDescriptor(UNSHOWN, self._time_type, kept)
        if self._sequence:
            self._sequence_type = self._rows.in_order(self._sequence, what="sequence")
            self._deleted_descriptor = SortedMapStateDescriptor(DELETED, self._time_type, self._sequence_type)

    def _within_a_time(self, sequence: str | Sequence[str] | None, key: Sequence[str]) -> tuple[str, ...]:
        """The columns of the sequence that may differ between rows of one key and time."""
        named = (sequence,) if isinstance(sequence, str) else tuple(sequence or ())
        left = tuple(name for name in named if name not in self._valid_from)
        in_key = [name for name in left if name in key]
        if in_key:
            raise ConfigurationError(f"Scd2: the sequence {in_key} is part of the key: it orders nothing")
        if named and not left:
            raise ConfigurationError(
                f"Scd2: the sequence is '{named[0]}', as valid_from is: name a column that orders rows of one time, or "
                "leave sequence out"
            )
        return left

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the states."""
        self._place = key_order(self._time_type).encode
        versions = runtime_context.get_sorted_map_state(self._versions_descriptor)
        self._versions = ChangingEntries(versions, self._place)
        self._unshown = runtime_context.get_sorted_map_state(self._unshown_descriptor)
        self._late.open(runtime_context)
        if self._sequence:
            self._deleted = runtime_context.get_sorted_map_state(self._deleted_descriptor)
            self._sequence_place = key_order(self._sequence_type).encode

    def forget(self, ctx: KeyedContext) -> Iterable[Any]:
        """Clear all versions of the key; their deletes."""
        gone = [(RowKind.DELETE, at, version) for at, version in self._versions.entries.items()]
        self._versions.entries.clear()
        self._unshown.clear()
        if self._sequence:
            self._deleted.clear()
        return self._outputs(gone, ctx)

    def process_element(self, value: object, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        """Store the row or the end at its time, and correct what stands beside it; what that changes."""
        row, kind = self._rows.normal(value), ctx.row_kind()
        [at] = self._rows.values(row, self._valid_from, what="valid_from")
        self._place(at)  # NaN has none
        if self._lateness is not None and self._lateness.is_over(_ms_of(at), ctx.current_watermark()):
            return self._late.outputs(value, ctx)
        self._versions.begin()
        if self._counts(at, row, kind):
            self._put(at, None if kind in GONE else self._rows.kept_of(row))
        if self._lateness is not None:
            self._drop_settled(self._lateness, ctx.current_watermark())
        return self._outputs(self._versions.changes(), ctx)

    def _outputs(self, changes: Iterable[Change], ctx: KeyedContext) -> list[Any]:
        of_key = key_values(ctx.get_current_key(), record=len(self._key) > 1) if self._key else ()
        return [(kind, (*of_key, at, *version)) for kind, at, version in changes]

    # -- of one time -----------------------------------------------------------------------------------------------

    def _counts(self, at: Any, row: Row, kind: RowKind) -> bool:
        """Whether a row or an end counts instead of what its time has."""
        if kind is RowKind.UPDATE_BEFORE and (
            self._versions.entries.contains(at) or self._unshown.contains(at)
        ):
            return False
        return not self._sequence or self._follows(at, row, kind)

    def _follows(self, at: Any, row: Row, kind: RowKind) -> bool:
        """Whether its sequence lets it count; puts down the sequence of a deletion."""
        sequence = self._rows.values(row, self._sequence, what="sequence")
        gone, stored = kind in GONE, self._row_at(at)
        last = self._deleted.get(at) if stored is None else tuple(stored[name] for name in self._sequence)
        if last is not None:
            new, old = self._sequence_place(sequence), self._sequence_place(tuple(last))
            if new < old or (new == old and (gone or stored is not None)):
                return False
        if kind is RowKind.DELETE:
            self._deleted.put(at, sequence)
        elif last is not None:
            self._deleted.remove(at)
        return True

    def _row_at(self, at: Any) -> Row | None:
        row: Row | None = self._unshown.get(at)
        if row is None and (shown := self._versions.entries.get(at)) is not None:
            row = self._shown(at, shown).row
        return row

    # -- an event and its neighbours -------------------------------------------------------------------------------

    def _put(self, at: Any, row: Row | None) -> None:
        """Put an event at its time: only the version that it ends, itself and the next event can change."""
        if not self._shows_last:
            self._put_between(at, row)
            return
        versions = self._versions.entries
        beside = (_before(versions, at), _after(versions, at), _after(self._unshown, at))
        near = {self._place(one): one for one in (at, *(entry[0] for entry in beside if entry is not None))}
        for one in near.values():
            self._show_own(one)
        self._put_between(at, row)
        for one in near.values():
            self._show_last(one)

    def _put_between(self, at: Any, row: Row | None) -> None:
        covering = _before(self._versions.entries, at)
        before = self._event(covering, _before(self._unshown, at), later=True)
        ends = self._end_of(at, row, covering)
        shown = row is not None and not self._merged(before.row if before else None, row)
        self._store(Event(at, row, ends, shown))
        if before is not None and before.row is not None:
            assert covering is not None
            self._end_version(*covering, at if shown or row is None else ends)

    def _end_of(self, at: Any, row: Row | None, covering: Entry | None) -> Any:
        """When an event ends, None for never: at the next one, which is a version again, or none any more."""
        after = self._event(_after(self._versions.entries, at), _after(self._unshown, at), later=False)
        if after is None or after.row is None:
            return None if after is None else after.at
        ends = after.ends
        if not after.shown:  # then it is part of the version that is replaced here, or of the one before
            version = self._versions.entries.get(at)
            if version is None:
                assert covering is not None
                version = covering[1]
            ends = version.valid_to
        shown = not self._merged(row, after.row)
        if shown is not after.shown:
            self._store(Event(after.at, after.row, ends, shown))
        return after.at if shown else ends

    def _merged(self, before: Row | None, row: Row) -> bool:
        """Whether a row is no version of its own behind another one."""
        return (
            self._merge_equal
            and before is not None
            and all(same(before[name], row[name]) for name in self._tracked)
        )

    def _store(self, event: Event) -> None:
        if event.shown:
            assert event.row is not None
            self._versions.put(event.at, (event.ends, event.ends is None, *event.row))
            self._unshown.remove(event.at)
        else:
            self._unshown.put(event.at, event.row)
            self._versions.remove(event.at)

    def _end_version(self, at: Any, version: Row, ends: Any) -> None:
        if version.valid_to != ends:
            self._versions.put(at, version.replace(valid_to=ends, is_current=ends is None))

    # -- versions that show the last of their rows -----------------------------------------------------------------

    def _show_own(self, at: Any) -> None:
        """Let a version show the row that began it."""
        version, own = self._versions.entries.get(at), self._unshown.get(at)
        if version is not None and own is not None:
            self._store(Event(at, own, version.valid_to, shown=True))

    def _show_last(self, at: Any) -> None:
        """Let a version that shows the row that began it show its last one, and keep the first."""
        version = self._versions.entries.get(at)
        if version is None:
            return
        last = _last_within(self._unshown, at, version.valid_to)
        if last is not None:
            self._unshown.put(at, self._shown(at, version).row)
            self._versions.put(at, (version.valid_to, version.is_current, *last[1]))

    # -- what no other row can come before -------------------------------------------------------------------------

    def _drop_settled(self, lateness: Lateness, watermark: int) -> None:
        """Drop what is not shown of times that are too late, but for the newest: the next row may follow on it."""

        def settled(at: Any) -> bool:
            return lateness.is_over(_ms_of(at), watermark)

        while len(first := [at for at, _ in islice(self._unshown.items(), 2)]) == 2 and settled(first[1]):
            self._unshown.remove(first[0])
            if self._sequence:
                self._deleted.remove(first[0])

    # -- what is stored --------------------------------------------------------------------------------------------

    def _event(self, shown: Entry | None, unshown: Entry | None, *, later: bool) -> Event | None:
        """The later or the earlier one of a version and another event."""
        if unshown is not None and (
            shown is None or (self._place(shown[0]) < self._place(unshown[0])) is later
        ):
            return Event(*unshown)
        return None if shown is None else self._shown(*shown)

    def _shown(self, at: Any, version: Row) -> Event:
        valid_to, _, *values = tuple(version)
        return Event(at, row_class(self._rows.kept.names)(*values), valid_to, shown=True)


class ChangingEntries:
    """The versions of a key, and what is written of them.

    Attributes:
        entries: the state. It is written through this class alone.
    """

    def __init__(self, entries: SortedMapState, place: Any) -> None:
        self.entries, self._place = entries, place
        self._replaced: dict[bytes, tuple[Any, Row | None]] = {}

    def begin(self) -> None:
        self._replaced.clear()

    def put(self, at: Any, version: tuple[Any, ...]) -> None:
        self._note(at)
        self.entries.put(at, version)

    def remove(self, at: Any) -> None:
        self._note(at)
        self.entries.remove(at)

    def changes(self) -> list[Change]:
        """What changed: deletes come first, then the rest by time."""
        both = [(at, old, self.entries.get(at)) for _, (at, old) in sorted(self._replaced.items())]
        gone = [(RowKind.DELETE, at, old) for at, old, new in both if new is None and old is not None]
        return [*gone, *(change for at, old, new in both for change in _shown_changes(at, old, new))]

    def _note(self, at: Any) -> None:
        place = self._place(at)
        if place not in self._replaced:
            self._replaced[place] = at, self.entries.get(at)


def _shown_changes(at: Any, old: Row | None, new: Row | None) -> Iterator[Change]:
    if new is None or (old is not None and same(old, new)):
        return
    if old is None:
        yield RowKind.INSERT, at, new
    else:
        yield RowKind.UPDATE_BEFORE, at, old
        yield RowKind.UPDATE_AFTER, at, new


def shape_of(untracked: Untracked, lateness: Lateness | None) -> str | None:
    """What the state holds, as text; None of all rows, and versions that show their first one.

    Example:
        >>> shape_of("first", None), shape_of("last", Lateness(5))
        (None, 'versions of rows, the last ones lateness 5')
    """
    if untracked == "first" and lateness is None:
        return None
    return f"versions of rows, the {untracked} ones" + (f" {lateness.form}" if lateness else "")


def _check_time(kind: TypeInformation, valid_from: str) -> None:
    if not isinstance(kind, TimestampType | DateType):
        raise ConfigurationError(
            f"Scd2: with lateness, the valid_from column '{valid_from}' is compared with the watermark, and it is "
            f"{kind}: make a timestamp or a date of it in a transform before, or leave lateness out"
        )


def _ms_of(at: date) -> int:
    """A timestamp or a date as milliseconds since 1970; in UTC without a zone."""
    moment = at if isinstance(at, datetime) else datetime.combine(at, time())
    return milliseconds_of(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def _last_within(entries: SortedMapState, at: Any, until: Any) -> Entry | None:
    """The last entry behind a time and before another one; of the newest version at once."""
    if until is None:
        last = entries.last_entry()
        return last if next(entries.tail_items(at), None) is not None else None
    within = deque(entries.sub_items(at, until), maxlen=1)
    return within[0] if within else None


def _before(entries: SortedMapState, at: Any) -> Entry | None:
    if next(entries.tail_items(at), None) is None:
        return entries.last_entry()
    before = deque(entries.head_items(at), maxlen=1)
    return before[0] if before else None


def _after(entries: SortedMapState, at: Any) -> Entry | None:
    return next((entry for entry in entries.tail_items(at) if entry[0] != at), None)
