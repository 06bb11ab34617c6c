"""``TopN``: the greatest rows of each key, in their order.

The state ``top`` is what a table shows, ready to be published: one entry a rank. Mirrors
``org.apache.flink.table.runtime.operators.rank.AppendOnlyTopNFunction`` and, with ``keep_all``,
``RetractableTopNFunction``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import count, takewhile, zip_longest
from typing import Any, NamedTuple

from state_engine.core.argument_checks import checked_function
from state_engine.core.functions.contexts import KeyedContext
from state_engine.core.functions.process_functions import KeyedProcessFunction
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.state.descriptors import MapStateDescriptor, SortedMapStateDescriptor
from state_engine.core.types.every_type import ListType
from state_engine.core.types.row import Row, RowKind
from state_engine.core.types.type_information import TypeLike
from state_engine.operators.idle_keys import ForgettableFunction
from state_engine.operators.keyed_rows import GONE, KeyedRows, same
from state_engine.operators.ranking import RANK, Ranking

TOP, ROWS = "top", "rows"
"""Names of the states: what is published, and all rows, where these are kept."""
Shown = tuple[Row, int]
"""A row and its rank."""


class TopN(ForgettableFunction):
    """Keeps the ``n`` greatest rows of each key in the map state ``top``, by rank, beginning with 1.

    Of rows that are equal in ``by``, the first in the total order has the better rank. An element writes the ranks that
    it changes: all from its own on. These changes come out, by rank: whole rows with their ``rank``.

    Only with ``keep_all`` can rows be taken back: where a row goes, another one comes from behind the last rank, so all
    rows of the key stay in the state ``rows``, and an element reads the first ``n`` of them. A delete, as an
    ``update_before``, takes back one row that is equal in all columns; it is ignored where there is none.

    Args:
        row_type: type of the elements.
        n: how many ranks there are.
        by: columns to compare, from the first to the last; not of the key. Null is below every value, NaN above all.
        key: the columns that the stream is keyed by; the state holds the others. Empty where a function gives the key.
        keep_all: keep all rows, to take updates and deletes.
        ascending: the least rows instead of the greatest.
        ties: also keep all rows that are equal to the n-th in ``by``; those that are equal have one rank. The state
            numbers them.
        rank: False puts rows out without rank, and so only those that come into the list and that leave it.

    Raises:
        ConfigurationError: a column is unknown, has no order, or belongs to the key; there is no rank.
        ValueTypeError: of a row, when it is processed: it has not this type.

    Example:
        >>> from state_engine.testing import KeyedHarness
        >>> best = TopN("game string, player string, points bigint", 2, by="points", key=["game"])
        >>> harness = KeyedHarness(best, key_by=lambda row: row.game)
        >>> scores = [("go", "ada", 3), ("go", "eva", 5), ("go", "bob", 3), ("go", "kim", 4)]
        >>> changes = harness.process([Row("game", "player", "points")(*score) for score in scores])
        >>> [(str(kind), row) for kind, row in changes[-2:]]
        [('-U', ('go', 'ada', 3, 2)), ('+U', ('go', 'kim', 4, 2))]
        >>> harness.state("top")
        {'go': {1: Row(player='eva', points=5), 2: Row(player='kim', points=4)}}
    """

    shows = (TOP, RANK)
    emits_changes = True
    sees_time = False

    @checked_function
    def __init__(
        self,
        row_type: TypeLike,
        n: int,
        *,
        by: str | Sequence[str],
        key: Iterable[str] = (),
        keep_all: bool = False,
        ascending: bool = False,
        ties: bool = False,
        rank: bool = True,
    ) -> None:
        key = tuple(key)
        self._rows = KeyedRows(row_type, apart=key, operator="TopN")
        self._ranking = Ranking(self._rows, n, by=by, key=key, ascending=ascending, ties=ties)
        self.accepts_changes = self._keep_all = keep_all
        self._shows_rank = rank
        kept = self._rows.kept
        self._top_descriptor = MapStateDescriptor(TOP, int, kept)
        # by the bytes of ``by``: the first in the list come first
        self._rows_descriptor = SortedMapStateDescriptor(ROWS, bytes, ListType(kept))

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the states; without ``keep_all`` there is only one."""
        self._top = runtime_context.get_map_state(self._top_descriptor)
        if self._keep_all:
            self._all = runtime_context.get_sorted_map_state(self._rows_descriptor)

    def process_element(self, value: object, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        """Put the row at its rank, or take it back; what that changes."""
        row = self._rows.normal(value)
        kept = self._rows.kept_of(row)
        place = self._ranking.place(kept)
        if self._keep_all:
            before = self._all.get(place) or []
            self._all_at(place, _without(before, kept) if ctx.row_kind() in GONE else [*before, kept])
            shown, after = self._shown(), self._listed(self._first_of_all())
        elif self._is_behind(place):
            return []
        else:
            shown = self._shown()
            after = shown.with_row(kept, place)
        return self._show(row, shown, after.first(self._ranking.count(after.places)))

    def forget(self, ctx: KeyedContext) -> Iterable[Any]:
        """Clear what is kept of the key; the deletes of its list."""
        gone = self._show(self._rows.of_key(ctx.get_current_key()), self._shown(), _NOTHING)
        if self._keep_all:
            self._all.clear()
        return gone

    def _is_behind(self, place: bytes) -> bool:
        """Whether a row stands behind the last one in a list that is full."""
        last = self._top.get(self._ranking.n)
        if last is None:
            return False
        of_last = self._ranking.place(last)
        return of_last < place or (of_last == place and not self._ranking.ties)

    def _shown(self) -> _Listed:
        kept = (self._top.get(rank) for rank in count(1))
        return self._listed(list(takewhile(lambda row: row is not None, kept)))

    def _listed(self, rows: list[Row]) -> _Listed:
        return _Listed(rows, [self._ranking.place(row) for row in rows])

    def _first_of_all(self) -> list[Row]:
        """As many of all rows as may be in the list, and perhaps some more."""
        first: list[Row] = []
        for rows in self._all.values():
            first += rows
            if len(first) >= self._ranking.n:
                break
        return first

    def _all_at(self, place: bytes, rows: list[Row]) -> None:
        if rows:
            self._all.put(place, rows)
        else:
            self._all.remove(place)

    def _show(self, of_key: Sequence[Any], before: _Listed, after: _Listed) -> list[Any]:
        """Write the ranks that differ; the changes."""
        for at, (old, new) in enumerate(zip_longest(before.rows, after.rows), 1):
            if new is None:
                self._top.remove(at)
            elif old is None or not same(old, new):
                self._top.put(at, new)
        if not self._shows_rank:
            gone = [(RowKind.DELETE, row) for row in _apart(before.rows, after.rows)]
            come = [(RowKind.INSERT, row) for row in _apart(after.rows, before.rows)]
            return [(kind, self._rows.whole_of(row, of_key)) for kind, row in [*gone, *come]]
        return [
            (kind, (*self._rows.whole_of(row, of_key), rank))
            for old, new in zip_longest(self._ranked(before), self._ranked(after))
            for kind, (row, rank) in _changes(old, new)
        ]

    def _ranked(self, listed: _Listed) -> list[Shown]:
        return list(zip(listed.rows, self._ranking.ranks(listed.places), strict=True))


class _Listed(NamedTuple):
    """Rows in the order of their places."""

    rows: list[Row]
    places: list[bytes]

    def with_row(self, row: Row, place: bytes) -> _Listed:
        """With one more, behind those of its place."""
        at = bisect_right(self.places, place)
        return _Listed([*self.rows[:at], row, *self.rows[at:]], [*self.places[:at], place, *self.places[at:]])

    def first(self, number: int) -> _Listed:
        return _Listed(self.rows[:number], self.places[:number])


_NOTHING = _Listed([], [])


def _changes(old: Shown | None, new: Shown | None) -> list[tuple[RowKind, Shown]]:
    """What makes the row at a place of the list another one."""
    if old is None or new is None:
        given = [(RowKind.INSERT, new), (RowKind.DELETE, old)]
        return [(kind, shown) for kind, shown in given if shown is not None]
    if old[1] == new[1] and same(old[0], new[0]):
        return []
    return [(RowKind.UPDATE_BEFORE, old), (RowKind.UPDATE_AFTER, new)]


def _apart(rows: list[Row], others: list[Row]) -> list[Row]:
    """The rows that are not among others, each as often as it is more often here."""
    left = list(rows)
    for other in others:
        left = _without(left, other)
    return left


def _without(rows: list[Row], gone: Row) -> list[Row]:
    at = next((at for at, row in enumerate(rows) if same(row, gone)), len(rows))
    return rows[:at] + rows[at + 1 :]
