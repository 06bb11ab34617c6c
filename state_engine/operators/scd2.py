"""``Scd2``: all versions of each key, each with the time from which and until which it was valid (SCD 2).

The state ``versions`` is what a table shows, ready to be published: one entry a version. Flink has no counterpart; it
is the history that a ``FOR SYSTEM_TIME AS OF`` join looks into (its ``TemporalRowTimeJoinOperator`` keeps such a map).
Decision 0065.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from state_engine.core.argument_checks import checked_function
from state_engine.core.errors import ConfigurationError
from state_engine.core.functions.contexts import KeyedContext
from state_engine.core.functions.process_functions import KeyedProcessFunction
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.keys.ordering import key_order
from state_engine.core.state.descriptors import SortedMapStateDescriptor
from state_engine.core.state.sorted_map_state import SortedMapState
from state_engine.core.types.every_type import BooleanType, StructType
from state_engine.core.types.row import Row, RowKind, row_class
from state_engine.core.types.type_information import TypeLike
from state_engine.operators.idle_keys import ForgettableFunction
from state_engine.operators.keyed_rows import GONE, KeyedRows, same

VERSIONS, UNSHOWN, DELETED = "versions", "unshown", "deleted"
"""Names of the states: what is published, what else is needed to correct it, and the sequences of deletions."""
VALID_FROM, VALID_TO, IS_CURRENT = "valid_from", "valid_to", "is_current"
"""Columns of a version beside those of its row; the first is the key of the map."""

Entry = tuple[Any, Any]
"""Of a map."""


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
    """Keeps every version of each key in the sorted map state ``versions``; emits nothing.

    The key of an entry is the time from which the version is valid. Its value has the columns ``valid_to`` (the time of
    the next version or deletion; null where there is none), ``is_current`` (whether it is null) and those of the row.
    Rows may arrive in any order:

    * A row between two versions splits the time of the first one. A row of a time that is known replaces what came
      before it, also a deletion; of rows of one time, the last one in the total order counts.
    * A row that is equal to the one before it in time, in the columns ``tracked``, is not a version of its own; the
      version shown is the first of such rows, with all of its columns. The row is kept, in the state ``unshown``: where
      a later correction makes it differ, it becomes a version again.
    * A delete ends the version of its time, and a later row begins a new one. An ``update_before`` does the same,
      unless any other row has its time: as its ``update_after`` has.
    * With ``sequence``, the row or deletion with the greatest sequence counts among those of one time, in any order of
      arrival, and one that arrives again changes nothing. Of one sequence, a row counts before a deletion, because a
      commit that replaces a row has both.

    An ``update_before`` that ends a version is that of a row whose key changed. It needs a ``valid_from`` that is the
    time of the change, such as the time of the commit. With a time of the row itself, it has the time at which its
    version began, and ends nothing; likewise a delete then removes the version instead of ending it.

    A new row costs the same however many versions there are; a correction looks at all of its key's. ``unshown`` holds
    an entry for each row that is equal to the one before, and for each deletion; it is never cleared.

    Args:
        row_type: type of the elements.
        valid_from: the column with the time from which a row is valid; any type that has an order.
        key: the columns that the stream is keyed by; the state holds the others. Empty where a function gives the key.
        tracked: the columns whose change makes a version; all that the state holds by default, but for the sequence.
        sequence: columns that order the rows of a key and of a time, compared from the first to the last; not of the
            key. ``valid_from`` among them orders nothing within a time.
        merge_equal: False makes every row a version. To change this, or ``tracked``, changes versions only where later
            rows stand beside them.

    Raises:
        ConfigurationError: a column is unknown or not kept, has no order, or has a name that is taken.
        ValueTypeError: of a row, when it is processed: it has not this type, no time, or no sequence.

    Example:
        >>> from state_engine.testing import KeyedHarness
        >>> cities = Scd2("id bigint, city string, moved bigint", key=["id"], valid_from="moved")
        >>> harness = KeyedHarness(cities, key_by=lambda row: row.id)
        >>> rows = [(1, "Turin", 10), (1, "Rome", 30), (1, "Bari", 20), (1, "Bari", 25)]
        >>> harness.process([Row("id", "city", "moved")(*row) for row in rows])
        []
        >>> for valid_from, version in sorted(harness.state("versions")[1].items()):
        ...     print(valid_from, version)
        10 Row(valid_to=20, is_current=False, city='Turin')
        20 Row(valid_to=30, is_current=False, city='Bari')
        30 Row(valid_to=None, is_current=True, city='Rome')
    """

    accepts_changes = True

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
    ) -> None:
        key = tuple(key)
        self._rows = KeyedRows(row_type, apart=[*key, valid_from], operator="Scd2")
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
        taken = sorted({VALID_FROM, VALID_TO, IS_CURRENT} & set(kept.names))
        if taken:
            raise ConfigurationError(f"Scd2 adds columns of these names: rename {taken} of the rows")
        version = StructType(
            (VALID_TO, IS_CURRENT, *kept.names),
            (self._time_type, BooleanType(), *kept.types),
            "row",
            aliases=kept.aliases,
        )
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
        self._versions = runtime_context.get_sorted_map_state(self._versions_descriptor)
        self._unshown = runtime_context.get_sorted_map_state(self._unshown_descriptor)
        self._place = key_order(self._time_type).encode
        if self._sequence:
            self._deleted = runtime_context.get_sorted_map_state(self._deleted_descriptor)
            self._sequence_place = key_order(self._sequence_type).encode

    def forget(self, ctx: KeyedContext) -> Iterable[Any]:
        """Clear all versions of the key."""
        self._versions.clear()
        self._unshown.clear()
        if self._sequence:
            self._deleted.clear()
        return []

    def process_element(self, value: object, ctx: KeyedProcessFunction.Context) -> None:
        """Store the row or the end at its time, and correct what stands beside it."""
        row, kind = self._rows.normal(value), ctx.row_kind()
        [at] = self._rows.values(row, self._valid_from, what="valid_from")
        self._place(at)  # NaN has none
        if kind is RowKind.UPDATE_BEFORE and (self._versions.contains(at) or self._unshown.contains(at)):
            return
        if self._sequence and not self._follows(at, row, kind):
            return
        self._put(at, None if kind in GONE else self._rows.kept_of(row))

    # -- of one time -----------------------------------------------------------------------------------------------

    def _follows(self, at: Any, row: Row, kind: RowKind) -> bool:
        """Whether a row or an end counts instead of what its time has; puts down the sequence of a deletion."""
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
        """The row that is stored at a time, shown or not."""
        shown = self._versions.get(at)
        row: Row | None = self._unshown.get(at) if shown is None else self._shown(at, shown).row
        return row

    # -- an event and its neighbours -------------------------------------------------------------------------------

    def _put(self, at: Any, row: Row | None) -> None:
        """Put an event at its time: only the version that it ends, itself and the next event can change."""
        covering = _before(self._versions, at)
        before = self._event(covering, _before(self._unshown, at), later=True)
        ends = self._end_of(at, row, covering)
        shown = row is not None and not self._merged(before.row if before else None, row)
        self._store(Event(at, row, ends, shown))
        if before is not None and before.row is not None:
            assert covering is not None
            self._end_version(*covering, at if shown or row is None else ends)

    def _end_of(self, at: Any, row: Row | None, covering: Entry | None) -> Any:
        """When an event ends, None for never: at the next one, which is a version again, or none any more."""
        after = self._event(_after(self._versions, at), _after(self._unshown, at), later=False)
        if after is None or after.row is None:
            return None if after is None else after.at
        ends = after.ends
        if not after.shown:  # then it is part of the version that is replaced here, or of the one before
            version = self._versions.get(at)
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


def _before(entries: SortedMapState, at: Any) -> Entry | None:
    """The entry before a time; of the newest time at once."""
    if next(entries.tail_items(at), None) is None:
        return entries.last_entry()
    before = deque(entries.head_items(at), maxlen=1)
    return before[0] if before else None


def _after(entries: SortedMapState, at: Any) -> Entry | None:
    return next((entry for entry in entries.tail_items(at) if entry[0] != at), None)
